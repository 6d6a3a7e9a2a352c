"""Options of a request, in `extra_body={"disco": {...}}`, and of a client, in `default_options`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from disco.candidate import Reach
from disco.errors import ConfigurationError, nearest
from disco.request import check_classes

__all__ = ["DEFAULT_PRESET", "NO_OPTIONS", "RequestOptions", "chosen_preset", "merge_options", "take_options"]

DEFAULT_PRESET: Final = "server-first"
"""What applies where no preset is named: no answer is worse for it than the server's alone."""

_TASK = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestOptions(BaseModel):
    """Options of one request. An option that is not given, or is None, is as in the client's preset.

    Attributes:
        preset: the name of a preset, or the path of a preset file, for this request only. `policy` is its former
            name.
        local_only: True keeps the prompt on this machine, even if that fails the request.
        reach: how far the prompt may travel: "device" (not off this machine, as `local_only`), "own" (to the user's
            own machines) or "any". The narrowest of `reach`, `local_only` and the preset applies.
        pace_tps: reading pace in tokens/s, above 0, or "off" to release text as it comes.
        migrate: False forbids migration of this answer. Failover stays allowed.
        deadline_s: seconds after the request by which the whole answer must be complete. Later, the request fails
            with an `AnswerTimeoutError` that holds the text so far. Above 0. Replaces `timeouts.total_s`.
        budget_class: "background" spends nothing of the budget: the side that is not constrained answers alone,
            unless it fails. "standard" is as in the preset. "urgent" starts both sides at once, whatever share
            the preset's budget allows. An absolute budget (`[limits]`) still applies to an urgent request: it may
            use the part that is kept in reserve, up to the limit.
        task: under the policy "cascade", the name of the kind of work: answers to one task are judged by each other's
            scores. At most 64 letters, digits, ".", "_" and "-".
        classes: the same, for the complete answers to choose between: 2 to 256 different texts; None: a free answer.
        judge: what a reader sees before the verdict of a cascade, in place of the preset's `stream`; "off": the answer
            is not judged and does not rise.
        speculate: False: no model drafts for the server, whatever the client's `speculate` says.
        endpoint: the name of the only endpoint that may answer, such as "server", "device" or "backup-1"; no other
            takes over when it fails. None: whoever the preset chooses.
        takeover: names of endpoints in the order in which they take over when another one fails, refuses or is late;
            the others come behind them, in the preset's order. Replaces the preset's `[dispatch] takeover`.
    """

    # Strict: the text "5" is not a pace, and True is not 1.0.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    preset: str | None = None
    local_only: bool | None = None
    reach: Reach | None = None
    pace_tps: float | Literal["off"] | None = None
    migrate: bool | None = None
    deadline_s: float | None = Field(default=None, gt=0.0)
    budget_class: Literal["background", "standard", "urgent"] | None = None
    task: str | None = None
    classes: tuple[str, ...] | None = None
    judge: Literal["whole", "guard", "revise", "off"] | None = None
    speculate: bool | None = None
    endpoint: str | None = None
    takeover: tuple[str, ...] | None = None

    @field_validator("takeover", mode="before")
    @classmethod
    def _are_names(cls, value: object) -> object:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise ValueError('must be a list of names of endpoints, such as ["backup-1", "device"]')
        return tuple(value)

    @field_validator("preset", mode="before")
    @classmethod
    def _may_be_a_path(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @field_validator("task")
    @classmethod
    def _is_a_short_name(cls, value: str | None) -> str | None:
        if value is not None and _TASK.fullmatch(value) is None:
            raise ValueError('must be 1 to 64 letters, digits, ".", "_" or "-", such as "triage"')
        return value

    @field_validator("classes", mode="before")
    @classmethod
    def _are_classes(cls, value: object) -> object:
        """Return a tuple of the classes."""
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise ValueError('must be a list of texts, such as ["spam", "ham"]')
        check_classes(value)
        return tuple(value)

    @field_validator("pace_tps", mode="before")
    @classmethod
    def _is_a_pace(cls, value: object) -> object:
        if value in (None, "off"):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return value
        raise ValueError('must be above 0 tokens per second, or "off"')


Named = TypeVar("Named")

NO_OPTIONS = RequestOptions()
"""No option given: everything is as in the client's preset."""


def chosen_preset(preset: Named, policy: Named | None) -> Named:
    """Return the preset of a client that is given `preset` or, under its former name, `policy`.

    Raises:
        ConfigurationError: both are given.
    """
    if policy is None:
        return preset
    if preset != DEFAULT_PRESET:
        raise ConfigurationError("preset and policy, its former name, are both given. Give preset only.")
    return policy


def merge_options(
    options: RequestOptions, given: object, *, where: str = 'extra_body["disco"]'
) -> RequestOptions:
    """Return `options` with the values in `given` replaced; a None in `given` restores the client's preset.

    Args:
        options: the values that apply unless given.
        given: a mapping of options, checked here.
        where: where the caller wrote them, for the message.

    Raises:
        ConfigurationError: an unknown option (the nearest names are suggested) or a wrong value.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{where} must be a dict of options, such as {{"local_only": True}}; got {type(given).__name__}.'
        )
    given = dict(given)
    if "policy" in given:
        if "preset" in given:
            raise ConfigurationError(
                f'{where} has "preset" and "policy", its former name; give "preset" only.'
            )
        given["preset"] = given.pop("policy")
    for key in given:
        if key not in RequestOptions.model_fields:
            hint = nearest(str(key), RequestOptions.model_fields)
            raise ConfigurationError(f"Unknown option {key!r} in {where}. {hint}")
    try:
        return RequestOptions.model_validate({**options.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{where}: option {first['loc'][0]!r}: {problem}.") from None


def take_options(
    extra_body: object, defaults: RequestOptions = NO_OPTIONS
) -> tuple[RequestOptions, dict[str, Any] | None]:
    """Split `extra_body` into disco's options, validated and merged over `defaults`, and the rest, for the server.

    Raises:
        ConfigurationError: as `merge_options`.
    """
    if not isinstance(extra_body, Mapping) or "disco" not in extra_body:
        return defaults, extra_body  # type: ignore[return-value] # the SDK checks its type
    rest = {key: value for key, value in extra_body.items() if key != "disco"}
    return merge_options(defaults, extra_body["disco"]), rest or None
