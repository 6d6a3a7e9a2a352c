"""The policy "assist": the server writes a short beginning while the device reads the prompt; the device then goes on.

`assist_solver` has the arithmetic. Here stands when an answer may be divided at all. Where it may not, the policy
"auto" decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from disco.candidate import READ_BATCH_TOKENS, Candidate
from disco.dispatch.arranging import Arrangement, BudgetClass
from disco.dispatch.assist_solver import AnswerSurvival, AssistCase, Refining, best_share
from disco.dispatch.policies.policy import expected
from disco.dispatch.presets import AssistSection
from disco.dispatch.request_features import TYPICAL_ANSWER_TOKENS, Features
from disco.dispatch.two_sided import TwoSided, sides
from disco.plan import FOLLOW_TOKENS, Assist, Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["AssistPolicy", "Undivided", "typical_answers"]

Undivided = Literal[
    "budget_class",  # the request is to use no budget, or all of it
    "budget",  # an absolute budget does not cover both sides (`within_budget`)
    "endpoints",  # there is no device that can go on with an answer, or no server that keeps to a limit
    "pace",  # the text is not shown at a pace that could hide a hand-over
    "pinned",  # the answer must come from one endpoint as a whole: tools, JSON, several choices, log probabilities
    "reasoning",  # the server's tokens could all be thoughts
    "device_first",  # the device is expected to be ready before the server's first token
    "server_pace", "device_pace", "reading_pace", "too_many", "not_cheaper",  # see `assist_solver.NoShare`
]  # fmt: skip
"""Why an answer is not divided; route records contain it."""

_ENDS = 1 / TYPICAL_ANSWER_TOKENS  # the probability that the next token is the last, where nothing is known
# The quantile of the server's time to first token to plan with: a faster server leaves the device less time. At 10 %,
# up to 6 % of hand-overs would be late with a server like DeepSeek's; the lowest costs a token or two more.
_SOON = 0.0


@dataclass(frozen=True, slots=True)
class _Memoryless:
    """Answers that end with any token alike, at the latest with the limit."""

    limit: int | None

    def survival(self, n: int, /) -> float:
        return 0.0 if self.limit is not None and n >= self.limit else (1 - _ENDS) ** n

    def expected_remaining(self, n: int, /) -> float:
        left = 1 / _ENDS
        return left if self.limit is None else left * (1 - (1 - _ENDS) ** max(0, self.limit - n))


def typical_answers(max_tokens: int | None) -> AnswerSurvival:
    """Return the distribution of the lengths of answers with this limit, where none were seen."""
    return _Memoryless(max_tokens)


def _heir_prompt(features: Features, device: str) -> tuple[int, int, int | None]:
    """Return the prompt's length, what the device has in its cache, and the refined length: as counted, if it was."""
    whole, refined = features.prompt_tokens, features.refined_tokens
    if (counted := features.heir_prompts.get(device)) is None:
        return whole, 0, None if refined is None else max(1, min(whole, refined))
    if refined is None:
        return counted.tokens, counted.cached_tokens, None
    return max(whole, counted.tokens), counted.cached_tokens, counted.tokens


class AssistPolicy:
    """Divides each answer between the cheapest server and the cheapest device, where that is feasible and cheapest.

    Args:
        settings: the preset's [assist].
        otherwise: decides where the answer is not divided.
        answers: returns the distribution of the lengths of answers with this limit, as it is known now.
    """

    __slots__ = ("_answers", "_otherwise", "_settings")

    def __init__(
        self, settings: AssistSection, otherwise: TwoSided, answers: Callable[[int | None], AnswerSurvival]
    ) -> None:
        self._settings, self._otherwise, self._answers = settings, otherwise, answers

    def arrange(
        self, features: Features, able: Sequence[Candidate], budget_class: BudgetClass
    ) -> Arrangement:
        """Start server and device together, the server with a limit, or the server alone if that is no dearer.

        Where neither is possible, start what the policy "auto" starts.
        """
        device, server = sides(able)
        divided = self._divided(features, device, server, budget_class)
        if divided == "not_cheaper" and server is not None and device is not None:
            why = expected("dearer_divided", server, features.prompt_tokens)
            return Arrangement((Start(server.name, 0.0, why),), (server.name, device.name), undivided=divided)
        if isinstance(divided, str):
            return replace(self._otherwise.arrange(features, able, budget_class), undivided=divided)
        assert device is not None
        reads_s = device.time_to_first_token_s(divided.heir_tokens or features.prompt_tokens)
        times = device.times_from, device.times_seen
        starts = (
            Start(divided.writer, 0.0, Why("divided_writer", divided.tokens, None, *times, divided.heir)),
            Start(divided.heir, 0.0, Why("divided_heir", reads_s, None, *times, divided.writer)),
        )
        return Arrangement(starts, (divided.heir, divided.writer), assist=divided)

    def _divided(
        self,
        features: Features,
        device: Candidate | None,
        server: Candidate | None,
        budget_class: BudgetClass,
    ) -> Assist | Undivided:
        if budget_class != "standard":
            return "budget_class"
        if device is None or server is None:
            return "endpoints"
        if not (device.parks and device.continues and server.limits):
            return "endpoints"
        if not features.may_migrate:
            return "pinned"
        if "reasoning" in features.needs:
            return "reasoning"
        pace_tps = features.divided_at_tps
        if pace_tps is None:
            return "pace"
        soon_s = server.first_token_quantile_s(_SOON)
        whole, cached, refined = _heir_prompt(features, device.name)
        if device.time_to_first_token_s((refined or whole) - cached) <= soon_s:
            return "device_first"
        settings = self._settings
        kept = 1.0 if refined is None else (refined - cached) / (whole - cached)
        share = best_share(
            AssistCase(
                prompt_tokens=whole,
                cached_tokens=cached,
                server_ttft_s=soon_s,
                server_tpot_s=1 / server.decode_tps,
                device_read_s=device.reading_spare / device.prefill_tps,
                device_tpot_s=1 / device.decode_tps,
                # The last batch of the server's text is read when the prompt is.
                device_overhead_s=device.time_to_first_token_s(READ_BATCH_TOKENS),
                slowest_tpot_s=1 / pace_tps,
                lengths=self._answers(features.max_tokens),
                batch_tokens=2 * FOLLOW_TOKENS,  # one batch that is being read, and one that is not yet full
                server_rates=server.rates,
                device_rates=device.rates,
                refinings=(Refining("lexical", kept),) if kept < 1 else (),
                most_tokens=None if settings.tokens == "auto" else settings.tokens,
            )
        )
        if share.tokens is None or share.tokens >= (features.max_tokens or inf):
            return "not_cheaper" if share.reason is None else share.reason.value
        heir_tokens = refined if share.refining is not None else None
        return Assist(server.name, device.name, share.tokens, settings.tempo, heir_tokens)

    def limited(self, able: Sequence[Candidate]) -> frozenset[str]:
        """Return what `otherwise` returns."""
        return self._otherwise.limited(able)

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Use these distributions from now on, where the answer is not divided."""
        self._otherwise.refit(lengths, ttft)
