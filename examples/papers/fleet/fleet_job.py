"""What waits at a server, and the answer it belongs to."""

from __future__ import annotations

from enum import Enum

from disco.replay import DraftedRequest
from papers.fleet.fleet_pair import Pair

__all__ = ["Answer", "Job", "Kind"]


class Kind(Enum):
    """What a job asks of the target: to read a prompt, to verify a window, to write one token alone."""

    PROMPT = 0
    ROUND = 1
    TOKEN = 2


class Answer:
    """A request on its way. Mutable.

    Attributes:
        number: in the order of arrival.
        request: what is asked.
        drafter: number of its drafter.
        arrived_s, began_s, first_s, done_s: when it came, when its drafter took it up, when the first and the last
            token reached the device; -1 where that has not been.
        target: number of its target; -1 before it is routed.
        pair: of drafter and target.
        runs: see `DraftedRequest.runs`.
        length: tokens that the target has settled.
        ready_s: when the drafter has read the prompt.
        settled_s: when the target settled the newest token.
        windows: drafted tokens of each round, 0 for a token of the target alone.
        drafted, accepted: tokens in all rounds; `wasted`: drafted tokens that never reached a pass of the target.
        wait_prompt_s, wait_rounds_s: in the target's queue.
        wait_network_s: behind other messages of the device.
    """

    __slots__ = (
        *("accepted", "arrived_s", "began_s", "done_s", "drafted", "drafter", "first_s", "job"),
        *("length", "number", "output", "pair", "ready_s", "request", "runs", "settled_s", "target"),
        *("wait_network_s", "wait_prompt_s", "wait_rounds_s", "wasted", "windows"),
    )

    def __init__(self, number: int, request: DraftedRequest, drafter: int, arrived_s: float) -> None:
        self.number, self.request, self.drafter, self.arrived_s = number, request, drafter, arrived_s
        self.output = request.output_tokens
        self.runs = request.runs
        self.target = -1
        self.pair: Pair = None  # type: ignore[assignment]  # set when it is routed
        self.began_s = self.first_s = self.done_s = self.settled_s = -1.0
        self.ready_s = 0.0
        self.length = self.drafted = self.accepted = self.wasted = 0
        self.wait_prompt_s = self.wait_rounds_s = self.wait_network_s = 0.0
        self.windows: list[int] = []
        self.job = Job(self)


class Job:
    """Work for a target. Mutable: an answer drafted in turn uses one job for all of its rounds.

    Attributes:
        answer: whose work it is.
        kind: what is asked.
        drafted: tokens of the window.
        rows: that the pass computes for it; of a prompt, those that are left.
        taken: of them, in the pass that is running.
        before: tokens in the cache before these rows.
        queued_s, began_s: when it came to the queue, and when its pass began.
        at, streak: of a window drafted in parallel; see `parallel_drafting`.
    """

    __slots__ = (
        "answer",
        "at",
        "before",
        "began_s",
        "drafted",
        "kind",
        "queued_s",
        "rows",
        "streak",
        "taken",
    )

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.kind = Kind.PROMPT
        self.drafted = 0
        self.rows = answer.request.prompt_tokens
        self.taken = 0
        self.before = 0
        self.queued_s = self.began_s = 0.0
        self.at = 0
        self.streak = 0

    @property
    def length(self) -> int:
        """Tokens of the whole context: what length-aware batching compares."""
        return self.before + self.rows
