"""Which answers are judged, and by what: from a preset and what a request asks to the judge of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

from disco.candidate import Candidate
from disco.dispatch.policies.policy_registry import CASCADE
from disco.dispatch.presets import CascadeSection, Preset
from disco.errors import ConfigurationError
from disco.events import Traffic
from disco.judging import (
    DEFAULT_SEQUENCE_CONFIDENCE,
    AgreementJudge,
    ClassJudge,
    HistoryKey,
    HistoryStore,
    JudgeBook,
    LabelPrior,
    SequenceConfidence,
    SequenceJudge,
    ShareControl,
    Standard,
)
from disco.plan import Cascade, Display, Plan

__all__ = ["DEFAULT_TASK", "Judging", "RequestJudge"]

AGREEMENTS: Final = 1_000
"""How many scores of agreement are kept; more hardly change a threshold."""

DEFAULT_TASK: Final = "default"
"""The task of requests that name none."""


class RequestJudge:
    """Judges the attempts at one answer; see `session.session_config.AnswerJudge`."""

    def __init__(
        self,
        book: JudgeBook,
        settings: CascadeSection,
        task: str,
        beta: float,
        classes: tuple[str, ...],
        model_of: Callable[[str], str],
        *,
        leaves_early: bool,
    ) -> None:
        self._book, self._settings, self._model_of = book, settings, model_of
        self._leaves_early = leaves_early
        self._task, self._beta, self._classes = task, beta, classes

    def of(self, candidate: Candidate, *, is_highest: bool) -> ClassJudge | SequenceJudge | None:
        """Return the judge of an attempt on that endpoint; None for a free answer of the highest tier."""
        settings = self._settings
        # With the endpoint's name: two tiers may run the same model, and each sees other requests.
        model = f"{candidate.name}/{self._model_of(candidate.name)}"
        if self._classes:
            key = HistoryKey(self._task, model, "class")
            standard = Standard(key, self._beta, settings.rule)
            if is_highest and not candidate.label_scores:  # it is not asked for scores
                return ClassJudge(standard, self._classes, None, LabelPrior(len(self._classes)))
            history = self._book.history(key, settings.window)
            prior = self._book.prior(key, self._classes, settings.window)
            return ClassJudge(standard, self._classes, None if is_highest else history, prior)
        if is_highest:
            return None
        kind: SequenceConfidence = (
            DEFAULT_SEQUENCE_CONFIDENCE if settings.confidence == "auto" else settings.confidence
        )
        is_lowest = kind == "mean" and settings.rule == "exact"
        key = HistoryKey(self._task, model, "lowest_mean" if is_lowest else kind)
        exits = self._book.exits(key, kind, settings.window)
        return SequenceJudge(
            Standard(key, self._beta, settings.rule),
            exits,
            trusts_from=settings.guard_tokens,
            leaves_early=self._leaves_early,
        )


class Judging:
    """The judge of a client's answers: the histories, and the shares that follow a budget. Both outlive requests.

    Mutable: `book`, `_controls`. Not safe for threads: one event loop uses it.

    Attributes:
        book: the histories.
    """

    def __init__(self, store: HistoryStore | None = None) -> None:
        self.book = JudgeBook(store)
        self._controls: dict[int, ShareControl] = {}  # by id of the preset, which the client keeps

    def judged(
        self,
        plan: Plan,
        preset: Preset,
        model_of: Callable[[str], str],
        *,
        task: str | None = None,
        classes: tuple[str, ...] = (),
        wish: Display | Literal["off"] | None = None,
        is_text: bool = True,
        streams: bool = True,
        revises: bool = True,
    ) -> tuple[Plan, RequestJudge | None]:
        """Return the plan of an answer as it is judged, and its judge; without a cascade if it is not judged.

        A class is chosen also where the answer is not judged: it may not rise, or there is no other tier.

        Args:
            plan: with the tiers that the answer may rise through, if there are several.
            preset: how answers are judged.
            model_of: returns the model that an endpoint's history belongs to. Called when the endpoint writes: a local
                server may not be asked before which model it has.
            task: the kind of the request, whose answers are compared with each other; None: `DEFAULT_TASK`.
            classes: the texts of which the answer is one; empty: it is a free answer.
            wish: how the request wants its answer judged, in place of the preset's way; "off": not at all.
            is_text: whether the answer is plain text, whose log probabilities say something about it; a tool call or
                a document bound by a grammar is not.
            streams: whether a reader gets the answer while it is written.
            revises: whether text that was shown can be taken back.

        Raises:
            ConfigurationError: one task too many.
        """
        if preset.dispatch.policy != CASCADE:
            return plan, None
        tiers = () if plan.cascade is None or wish == "off" else plan.cascade.tiers
        if not is_text or not (tiers or classes):
            return replace(plan, cascade=None), None
        settings, task = preset.cascade, task or DEFAULT_TASK
        try:
            self.book.check_task(task)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        display: Display = settings.stream
        if wish is not None and wish != "off":
            display = wish
        if classes:
            display = "whole"  # one word, which is wrong or right as a whole
        elif display == "revise" and not revises:
            display = "guard"
        if not streams:
            display = "whole"  # nothing is shown early, so a lower answer can be kept until a higher one is complete
        leaves_early = settings.early_exit or display == "guard"
        if settings.rule == "paper":  # its threshold says nothing about an answer that is being written
            display, leaves_early = ("whole" if display == "guard" else display), False
        wants = frozenset({"label_scores" if classes else "logp"})
        plan = replace(plan, wants=wants, cascade=Cascade(tiers, display))
        judge = RequestJudge(
            self.book,
            settings,
            task,
            self._beta(preset),
            classes,
            model_of,
            leaves_early=leaves_early,
        )
        return plan, judge

    def agreement(
        self, plan: Plan, preset: Preset, model_of: Callable[[str], str], *, task: str | None = None
    ) -> AgreementJudge | None:
        """Return what judges whether an heir goes on with a divided answer; None where it always does.

        Raises:
            ConfigurationError: one task too many.
        """
        beta, assist = preset.assist.beta, plan.assist
        if assist is None or beta == "off":
            return None
        key = HistoryKey(task or DEFAULT_TASK, f"{assist.heir}/{model_of(assist.heir)}", "agreement")
        try:
            history = self.book.history(key, AGREEMENTS)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        return AgreementJudge(Standard(key, beta), history)

    def _beta(self, preset: Preset) -> float:
        control = self._control(preset)
        return preset.cascade.beta if control is None else control.beta

    def _control(self, preset: Preset) -> ShareControl | None:
        """Return what makes the preset's share follow its budget; None where the share itself is the aim."""
        settings = preset.cascade
        target = settings.bytes_per_answer if settings.aim == "bytes" else settings.usd_per_answer
        if settings.aim == "share" or target is None:
            return None
        control = self._controls.get(id(preset))  # two presets may have the same name
        if control is None:
            control = self._controls[id(preset)] = ShareControl(
                target, beta=settings.beta, rule=settings.rule
            )
        return control

    def answered(self, plan: Plan, preset: Preset, traffic: Iterable[Traffic], bill_usd: float) -> None:
        """Learn what an answer that might go up has cost: the bytes of its attempts, and its bill in USD."""
        if plan.cascade is None or not plan.cascade.tiers:
            return
        control = self._control(preset)
        if control is not None:
            in_bytes = preset.cascade.aim == "bytes"
            control.spent(sum(t.bytes_up + t.bytes_down for t in traffic) if in_bytes else bill_usd)
