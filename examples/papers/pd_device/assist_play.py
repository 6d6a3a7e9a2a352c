"""One answer shown token by token: by the paper's display, and by ours.

An arm returns what the reader saw. The arms here play the closed forms; `session_runs.play_session` runs a session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from disco.dispatch.assist_solver import AnswerSurvival, AssistCase, Refining
from disco.rates import Rates
from disco.session.switching.answer_lengths import AnswerLengths
from papers.pd_device.assumptions import LONGEST_ANSWER, LOST_AT_CUT, SLOWEST_S, DeviceSpeed
from papers.pd_device.paper_forms import PaperCase

__all__ = [
    "AFTER_SEAM",
    "CONSISTENT",
    "LEXICAL",
    "MASK",
    "OURS",
    "PARALLEL",
    "PRINTED",
    "SEAM_ARMS",
    "Played",
    "SeamArm",
    "assist_case",
    "our_case",
    "pace_s",
]

PRINTED: Final = "Eq. 4 as printed"
CONSISTENT: Final = "Eq. 4, consistent"
OURS: Final = "ours"

PARALLEL: Final = "whole prompt"
LEXICAL: Final = "lexical"
MASK: Final = "server mask"

AFTER_SEAM: Final = 20
"""Tokens that are played after the seam."""
_LONG: Final = AnswerLengths.geometric(200)
_FREE: Final = Rates()


@dataclass(frozen=True, slots=True)
class Played:
    """What the reader saw of one answer.

    Attributes:
        shown_s: when each token was shown, s after the request.
        seam: number of tokens that the server wrote of those shown.
        pace_s: the display's pace before the seam, s per token.
        next_s: its pace after the seam, s per token.
    """

    shown_s: tuple[float, ...]
    seam: int
    pace_s: float
    next_s: float

    @property
    def stall_s(self) -> float:
        """How much later the first token after the seam came than its pace says.

        Tokens of one word are shown together, and the next word then waits for the time of all of them.
        """
        last_s = self.shown_s[self.seam - 1]
        together = self.shown_s[: self.seam].count(last_s)
        return max(self.shown_s[self.seam] - last_s - together * self.next_s, 0.0)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two tokens."""
        return max(later - sooner for sooner, later in itertools.pairwise(self.shown_s))


SeamArm = Callable[[PaperCase, int], Played]
"""Plays a request with a given L."""


def assist_case(
    prompt_tokens: int,
    device: DeviceSpeed,
    token_s: float,
    tpot_s: float,
    *,
    refinings: tuple[Refining, ...] = (),
    lengths: AnswerSurvival = _LONG,
    server_rates: Rates = _FREE,
    batch_tokens: int = 1,
) -> AssistCase:
    """Return the solver's input for a device and a server with that TTFT and TPOT, s."""
    return AssistCase(
        prompt_tokens=prompt_tokens,
        server_ttft_s=token_s,
        server_tpot_s=tpot_s,
        device_read_s=device.read_s,
        device_tpot_s=device.tpot_s,
        slowest_tpot_s=SLOWEST_S,
        lengths=lengths,
        server_rates=server_rates,
        device_overhead_s=device.overhead_s,
        refinings=refinings,
        lost_at_cut=LOST_AT_CUT,
        batch_tokens=batch_tokens,
        most_tokens=LONGEST_ANSWER,
    )


def our_case(case: PaperCase) -> AssistCase:
    """Return the same request for the solver: the server's first token does not wait for the refinement.

    The refiners are the lexical one, at the time of the request, and the server's mask, after its first token.
    """
    cloud = case.cloud
    mask_s = cloud.refine_s * case.prompt_tokens + cloud.decompress_s
    return assist_case(
        case.prompt_tokens,
        case.device,
        cloud.token_s(case.prompt_tokens),
        cloud.tpot_s,
        refinings=(Refining(LEXICAL, case.kept), Refining(MASK, case.kept, mask_s, by_server=True)),
    )


def pace_s(case: AssistCase, read_s: float, tokens: int) -> float:
    """Return the pace at which a display with L = `tokens` runs dry just when the device's first token comes, s.

    It shows no faster than the server writes.
    """
    ready_s = case.ready_s(read_s, tokens)
    shown = tokens - case.lost_at_cut
    return max((ready_s - case.server_ttft_s) / shown, case.server_tpot_s)


def _printed(case: PaperCase, tokens: int) -> Played:
    return _paper(case, tokens, case.smooth_s(tokens))


def _consistent(case: PaperCase, tokens: int) -> Played:
    return _paper(case, tokens, case.consistent_smooth_s(tokens))


def _paper(case: PaperCase, tokens: int, smooth_s: float) -> Played:
    """The device writes all L tokens again (Procedure 2), from TTFT_d on, and is shown after them."""
    cloud, device = case.cloud, case.device
    from_server = (case.cloud_token_s + i * cloud.tpot_s for i in range(tokens))
    from_device = (case.device_token_s + (tokens + i) * device.tpot_s for i in range(AFTER_SEAM))
    return _shown(itertools.chain(from_server, from_device), tokens, smooth_s, device.tpot_s)


def _ours(case: PaperCase, tokens: int) -> Played:
    """The device reads the prompt, refined by the lexical refiner, from the request on, and the server's tokens."""
    assist = our_case(case)
    read_s = assist.read_s(assist.refinings[0])
    seam = tokens - assist.lost_at_cut
    ready_s = assist.ready_s(read_s, tokens)
    from_server = (assist.server_ttft_s + i * assist.server_tpot_s for i in range(seam))
    from_device = (ready_s + i * assist.device_tpot_s for i in range(AFTER_SEAM))
    pace = pace_s(assist, read_s, tokens)
    return _shown(itertools.chain(from_server, from_device), seam, pace, assist.device_tpot_s, at_seam_s=pace)


SEAM_ARMS: Final[Mapping[str, SeamArm]] = {PRINTED: _printed, CONSISTENT: _consistent, OURS: _ours}


def _shown(
    available_s: Iterator[float],
    seam: int,
    before_s: float,
    after_s: float,
    *,
    at_seam_s: float | None = None,
) -> Played:
    """Show each token when it is there and the one before has been shown for its pace."""
    at_seam_s = after_s if at_seam_s is None else at_seam_s
    shown: list[float] = []
    for i, at_s in enumerate(available_s):
        pace = before_s if i < seam else at_seam_s if i == seam else after_s
        shown.append(max(at_s, shown[-1] + pace) if shown else at_s)
    return Played(tuple(shown), seam, before_s, at_seam_s)
