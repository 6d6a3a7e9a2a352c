"""Presets: a user's choices as one small TOML file; the shipped ones are in `policies/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from disco._resources import resource_dir
from disco._settings_files import settings_toml
from disco.dispatch.policies.policy_registry import (
    ASSIST,
    AUTO,
    CASCADE,
    check_options,
    has_budget,
    is_known_policy,
    known_policies,
)
from disco.dispatch.power.power_section import PowerSection
from disco.dispatch.preset_section import Section
from disco.dispatch.sections import LimitsSection, SpeculateSection
from disco.errors import ConfigurationError, by_nearness, meant, nearest, shown
from disco.judging import MOST_SCORES, Rule, SequenceConfidence, check_beta
from disco.plan import Order, ReleaseUnit, Tempo

__all__ = [
    "AssistSection",
    "CascadeSection",
    "CostSection",
    "DispatchSection",
    "LimitsSection",
    "MigrationSection",
    "PlaybackSection",
    "Preset",
    "available_presets",
    "load_preset",
    "with_limits",
]

# Policies without a budget of tokens, with the only `budget` that may be given with each (None: none).
_BUDGETLESS = {"race": 1.0, "device_only": None, "server_only": None, CASCADE: None}
# What a cascade may aim at besides a share of answers, with the key that says how much of it an answer may cost.
_AIMS = {"bytes": "bytes_per_answer", "money": "usd_per_answer"}


class DispatchSection(Section):
    """[dispatch]: which endpoints start when.

    Attributes:
        policy: "auto" (the regime selects one of the next two), "wait_time", "length_threshold",
            "optimal_wait" (always spares the device, as "wait_time" does, with a smaller mean TTFT for the same
            budget), "race", "random", "device_only", "server_only", "cascade" (see `CascadeSection`), "assist" (see
            `AssistSection`), or a policy that an installed package adds.
        budget: share `b` of all prompt tokens that the constrained endpoint may process, in [0, 1].
        tail: share α of all prompt tokens kept for slow servers (wait_time), in [0, 1); at most `budget`
            of it is used. Under "optimal_wait", 0 minimises the mean TTFT; a share above 0 also keeps P99 no worse
            than under "wait_time" with that share.
        takeover: names of endpoints in the order in which they take over when another one fails, refuses or is late;
            the others come behind them, in the policy's order. That is: under "server_only" servers (backups, the
            cheapest first, then tiers from the best to the smallest) before devices; under other policies the cheapest
            first, and backups last.
        when_busy: what happens to a prompt that the budget would leave to a device which has other answers to write
            first. "server": where the server's first word would come sooner, the server starts, too; that is counted,
            and never refused. "wait": it starts only where the budget has room.
        options: settings of a policy that an installed package adds; the package says which there are.
    """

    policy: str = AUTO
    budget: float = Field(default=0.5, ge=0.0, le=1.0)
    tail: float = Field(default=0.05, ge=0.0, lt=1.0)
    takeover: tuple[str, ...] = ()
    when_busy: Literal["server", "wait"] = "server"
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.policy not in (ASSIST, CASCADE) and not is_known_policy(self.policy):
            known = (*known_policies(), ASSIST, CASCADE)
            raise ValueError(f"no policy is called {shown(self.policy)}. {nearest(self.policy, known)}")
        if "budget" in self.model_fields_set and self.policy in _BUDGETLESS:
            implied = _BUDGETLESS[self.policy]
            if self.budget != implied:
                raise ValueError(
                    f"the policy {self.policy!r} has no budget; remove budget, or choose "
                    "'auto', 'length_threshold' or 'wait_time'"
                )
        check_options(self.policy, self.options)
        checked = self.policy in (ASSIST, *_BUDGETLESS)
        if "budget" in self.model_fields_set and not checked and not has_budget(self.policy):
            raise ValueError(f"the policy {self.policy!r} has no budget; remove budget")
        return self


class CostSection(Section):
    """[cost]: what the device's energy is worth.

    Attributes:
        exchange_rate: λ, USD per 10⁶ FLOPs, at least 0. It makes the device's work comparable with the server's
            price; above a value that depends on both, the device is the constrained side.
    """

    exchange_rate: float = Field(default=4e-12, ge=0.0)


class MigrationSection(Section):
    """[migration]: whether an answer may move to a cheaper endpoint in mid-sentence.

    Attributes:
        enabled: whether answers may move.
        order: when the source of a migration stops: "auto" pauses a device at the cut, and lets it go on if the target
            is late; it stops a server at the cut where the target's time is known well, else when the target writes.
            "make_before_break" keeps any source writing until the target writes, too; "break_before_make" stops any
            source at the cut.
    """

    enabled: bool = True
    order: Order = "auto"


class PlaybackSection(Section):
    """[playback]: how the text reaches the reader.

    Attributes:
        pace_tps: the reader's pace in tokens per second, above 0. While a migration is prepared, text is shown at
            this pace and never more slowly. "off" passes everything on as it arrives.
        max_hold_s: longest time that text may be held back at any other time, s; with sentences, how long a listener
            waits at most for the end of a sentence that has begun.
        release: what text leaves by: "word", or "sentence" for a voice, which speaks whole sentences (one chunk of the
            stream for each).
    """

    pace_tps: float | Literal["off"] = 12.0
    max_hold_s: float = Field(default=0.3, ge=0.0)
    release: ReleaseUnit = "word"

    @model_validator(mode="after")
    def _has_a_pace(self) -> Self:
        if self.release == "sentence" and self.pace_tps == "off":
            raise ValueError(
                'release = "sentence" needs pace_tps, the pace of the voice in tokens per second, such as 3.5'
            )
        return self

    @field_validator("pace_tps", mode="before")
    @classmethod
    def _is_a_pace(cls, value: object) -> object:
        if value == "off" or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
            return value
        raise ValueError(f'must be above 0 tokens per second, or "off", not {value!r}')


class CascadeSection(Section):
    """[cascade]: how the policy "cascade" judges answers, and which of them it hands up to the next tier.

    Attributes:
        beta: the share of answers that each tier hands up, between 0 and 1. With another aim, the share to begin with.
        window: scores that each history keeps, 1 to 10,000.
        rule: "exact" hands up the share `beta` whatever the scores; "paper" follows RecServe (`judging.Rule`).
        confidence: how the log probabilities of a free answer become its score; "auto": disco's default. Answers of a
            request with classes are always scored by their classes.
        stream: what a reader of a stream sees before the verdict. "whole": nothing. "guard": text that is judged as it
            is written. "revise": all of it, and a correction where the answer is replaced.
        guard_tokens: how many tokens wait for the first verdict under "guard", at least 1.
        early_exit: whether an answer that is shown as a whole, or revised, may be handed up before it is complete.
            Under "guard" it always may, under the rule "paper" never.
        aim: what is held: "share" (of answers, by `beta`), "bytes" or "money" (a mean of all answers; `beta` follows).
        bytes_per_answer: what an answer may cost on average under the aim "bytes", bytes, above 0.
        usd_per_answer: what an answer may cost on average under the aim "money", USD, above 0.
    """

    beta: float = 0.3
    window: int = Field(default=1_000, ge=1, le=MOST_SCORES)
    rule: Rule = "exact"
    confidence: Literal["auto", SequenceConfidence] = "auto"
    stream: Literal["guard", "whole", "revise"] = "guard"
    guard_tokens: int = Field(default=16, ge=1)
    early_exit: bool = False
    aim: Literal["share", "bytes", "money"] = "share"
    bytes_per_answer: float | None = Field(default=None, gt=0.0)
    usd_per_answer: float | None = Field(default=None, gt=0.0)

    @field_validator("beta")
    @classmethod
    def _is_a_share(cls, value: float) -> float:
        return check_beta(value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for aim, amount in _AIMS.items():
            if self.aim == aim and getattr(self, amount) is None:
                raise ValueError(
                    f'aim = "{aim}" needs {amount}, the mean that an answer may cost; add it, or write aim = "share"'
                )
            if self.aim != aim and getattr(self, amount) is not None:
                raise ValueError(f'{amount} has no effect unless aim = "{aim}"; remove it, or change aim')
        return self


class AssistSection(Section):
    """[assist]: how the policy "assist" divides an answer between a server and the device.

    The slowest pace at which the server's text is shown is `playback.pace_tps`.

    Attributes:
        tokens: the most tokens that the server may write; an answer that needs more of them is not divided. "auto": no
            limit but what the device needs.
        beta: the share of divided answers, between 0 and 1, that stay at the server, which is then asked to go on:
            those with whose beginning the device's model agrees least. "off": the device always goes on.
        refine: "lexical": the device reads only the sentences of a long prompt that have most to do with the question
            (docs/concepts/refine.md). "off": it reads all of it, as the server always does.
        keep: the share of that prose which the device reads under "lexical", above 0 and at most 1.
        tempo: "follow": the server's text is shown at a pace that follows the device's prefill. "once": the pace is
            computed once, when the first token comes (Eq. 4 of P/D-Device).
    """

    tokens: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    beta: Literal["off"] | float = "off"
    refine: Literal["off", "lexical"] = "off"
    keep: float = Field(default=0.4, gt=0.0, le=1.0)
    tempo: Tempo = "follow"

    @field_validator("beta")
    @classmethod
    def _is_a_share(cls, value: float | Literal["off"]) -> float | Literal["off"]:
        return value if value == "off" else check_beta(value)


class Preset(Section):
    """Everything that a user chooses about how answers are made.

    Attributes:
        name: the preset's name; by default that of its file.
        summary: one line for listings.
        dispatch, cascade, assist, cost, power, migration, playback, limits, speculate: see the sections.
    """

    name: str = "custom"
    summary: str = ""
    dispatch: DispatchSection = Field(default_factory=DispatchSection)
    cascade: CascadeSection = Field(default_factory=CascadeSection)
    assist: AssistSection = Field(default_factory=AssistSection)
    cost: CostSection = Field(default_factory=CostSection)
    power: PowerSection = Field(default_factory=PowerSection)
    migration: MigrationSection = Field(default_factory=MigrationSection)
    playback: PlaybackSection = Field(default_factory=PlaybackSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    speculate: SpeculateSection = Field(default_factory=SpeculateSection)

    @model_validator(mode="after")
    def _check(self) -> Self:
        policy = self.dispatch.policy
        if self.limits.local_only and policy in (
            "server_only",
            "race",
            "random",
            "wait_time",
            "optimal_wait",
            "length_threshold",
        ):
            raise ValueError(
                f"limits.local_only forbids the server that the policy {policy!r} needs; "
                "choose 'device_only' or 'auto', or set local_only = false"
            )
        for section in (CASCADE, ASSIST):
            if section in self.model_fields_set and policy != section:
                raise ValueError(
                    f"[{section}] has no effect under the policy {policy!r}; remove it, or write policy = {section!r}"
                )
        if policy == ASSIST and self.playback.pace_tps == "off":
            raise ValueError(
                'the policy "assist" shows the server\'s text at a pace; write playback.pace_tps, in tokens per second'
            )
        return self


def available_presets() -> tuple[str, ...]:
    """Names of the shipped presets, sorted."""
    return tuple(sorted(path.stem for path in resource_dir("policies").glob("*.toml")))


def load_preset(preset: str | os.PathLike[str] | Mapping[str, Any] | Preset) -> Preset:
    """Load and check a preset.

    Args:
        preset: the name of a shipped preset, the path of a TOML file (a string is a path when it ends
            in ".toml" or contains a path separator), a mapping with the keys of such a file, or a preset.

    Raises:
        ConfigurationError: an unknown name, an unreadable file, unknown keys, values out of range, or
            settings that contradict each other; the message names the key and what to write instead.
    """
    if isinstance(preset, Preset):
        return preset
    if isinstance(preset, Mapping):
        return Preset(**preset)
    if isinstance(preset, str) and not preset.endswith(".toml") and not {"/", os.sep} & set(preset):
        if preset not in available_presets():
            raise ConfigurationError(_no_preset(preset))
        path = resource_dir("policies") / f"{preset}.toml"
    elif isinstance(preset, str | os.PathLike):
        path = Path(preset)
    else:
        raise ConfigurationError(
            f"preset is {shown(preset)}. Leave it out for the default, or give a name, a path or a dict of settings."
        )
    return _read(path)


def _no_preset(name: str) -> str:
    """Return the message for a name that no shipped preset has: every name with its summary, the nearest first."""
    known = available_presets()
    listed = (f"  {one}: {load_preset(one).summary}" for one in by_nearness(name, known))
    said = " ".join(filter(None, (f"no preset is called {shown(name)}.", meant(name, known))))
    return f'{said} To use a file of your own, give its path, such as "./mine.toml". Presets:\n' + "\n".join(
        listed
    )


def with_limits(preset: Preset, limits: object) -> Preset:
    """Return the preset with these settings of [limits] in place of its own; unchanged where `limits` is None.

    Of `per` and `window_s`, one replaces the other.

    Raises:
        ConfigurationError: not a mapping, an unknown key, a value out of range, or a contradiction.
    """
    if limits is None:
        return preset
    if not isinstance(limits, Mapping):
        amount = limits if isinstance(limits, int | float) and limits > 0 else 5
        raise ConfigurationError(
            f"budget is {shown(limits)}, which does not say of what and for how long. Write for example "
            f'budget={{"usd": {amount}, "per": "month"}} (or "hour", "day", "week").'
        )
    try:
        own = preset.limits.model_dump(exclude_unset=True)
        if {"per", "window_s"} & set(limits):
            own = {name: value for name, value in own.items() if name not in ("per", "window_s")}
        changed = LimitsSection(**{**own, **{str(name): value for name, value in limits.items()}})
        kept = {name: getattr(preset, name) for name in preset.model_fields_set}
        return Preset(**{**kept, "limits": changed})
    except ConfigurationError as error:
        raise ConfigurationError(f"budget: {error}") from None


def _read(path: Path) -> Preset:
    values = settings_toml(path, "the preset")
    try:
        return Preset(**{"name": path.stem, **values})
    except ConfigurationError as error:
        raise ConfigurationError(f"preset {path}: {error}") from None
