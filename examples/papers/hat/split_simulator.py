"""Runs a fleet with a split model, in virtual time.

A request goes through these steps, in every arm:

1. It arrives at its device, which computes the shallow layers of its prompt, chunk by chunk, and sends each chunk's
   states as soon as the link is free (`disco.speculate.chunks`; `prompt_s` is this without other requests).
2. The cloud computes what has come, batched with the rows of other requests. The states of all positions come down, or
   of the last one (`SplitArm.reply`). The head makes the first token of it.
3. Rounds until the answer has its length: the device drafts (or not), computes the shallow layers of the newest token
   and the draft, and sends their states. All rows come down, since the head needs each of them. Tokens count up to the
   first that the model would not have written; the model's own follows.

Drafting in parallel goes on behind each of the likeliest last tokens of the draft while that is verified. What the
paper leaves open is settled so: a branch is the next draft where all but the last token were right and the branch's
token is the model's own, or where all were right and the branch of the last token begins with the model's further
token. A rejection before the last token makes every branch useless. A branch that was still sure is drafted to its end.

What happens on a device and its link depends on nothing but the answer itself, so that only the cloud needs events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from disco.replay import DraftedRequest
from disco.speculate import SplitPath, VerifyCurve, ahead_steps, equation3, makespan_chunk
from papers.fleet.event_heap import EventHeap
from papers.hat.split_answer import SplitAnswer
from papers.hat.split_cloud import SplitCloud, SplitJob
from papers.hat.split_fleet import SplitFleet, SplitModel
from papers.hat.split_requests import Placed, placed

__all__ = ["SplitRun", "cloud_curve", "simulate_split", "split_path"]

_CURVE_ROWS: Final = (*range(1, 17), *range(24, 257, 8), *range(288, 1025, 32), *range(1152, 4097, 128))
_CONTEXT: Final = 500  # tokens in the cache of a typical row, for the curve that chunk sizes look at
_SIZES: Final = (*range(1, 33), *range(34, 65, 2), *range(72, 257, 8), *range(288, 4097, 32))


@dataclass(frozen=True, slots=True)
class SplitRun:
    """A run.

    Attributes:
        answers: all, in the order of arrival.
        passes: (begin, seconds on one GPU, rows) of every batch of the cloud.
        ended_s: the time of the last event.
    """

    answers: list[SplitAnswer]
    passes: list[tuple[float, float, int]]
    ended_s: float


class _Line:
    """Seconds of the shallow layers by rows."""

    __slots__ = ("_base_s", "_row_s")

    def __init__(self, base_s: float, row_s: float) -> None:
        self._base_s, self._row_s = base_s, row_s

    def s(self, rows: int, /) -> float:
        return self._base_s + self._row_s * rows


def cloud_curve(model: SplitModel) -> VerifyCurve:
    """Return g: the time of a batch in the cloud by its rows, on all GPUs together."""
    costs = model.costs
    attention_s = costs.prompt_attention_s(1, _CONTEXT)
    return VerifyCurve(
        (rows, model.cloud_share * (costs.layers.at(rows) + attention_s)) for rows in _CURVE_ROWS
    )


def split_path(fleet: SplitFleet, one: Placed, curve: VerifyCurve, load: float = 0.0) -> SplitPath:
    """Return what a device knows of its way to the cloud."""
    times = fleet.times
    return SplitPath(
        up_bps=one.up_bps,
        down_bps=one.down_bps,
        rtt_s=fleet.rtt_s,
        state_bytes=fleet.model.state_bytes,
        device_s=_Line(one.slowness * times.shallow_s, one.slowness * times.shallow_row_s),
        cloud_s=curve,
        load=load,
        pipeline=fleet.pipeline,
    )


def simulate_split(fleet: SplitFleet, requests: Sequence[DraftedRequest]) -> SplitRun:
    """Run a fleet until every request has its answer. The same seed gives the same bits.

    Args:
        fleet: what to run.
        requests: in the order of arrival; for an arm with a drafter, with its confidences.
    """
    return _Simulation(fleet, placed(fleet, requests)).run()


class _Simulation:
    """A fleet at work. Mutable."""

    def __init__(self, fleet: SplitFleet, coming: list[Placed]) -> None:
        self._fleet, self._arm = fleet, fleet.arm
        self._coming = coming
        self._answers = [SplitAnswer(number, one) for number, one in enumerate(coming)]
        self._events = EventHeap()
        self._cloud = SplitCloud(
            fleet.model, fleet.pipeline, fleet.arm.server_rows, self._events.schedule, self._passed
        )
        self._curve = cloud_curve(fleet.model)
        self._way_s = fleet.rtt_s / 2
        self._size = fleet.model.state_bytes
        self._branches = Random(f"{fleet.seed} branches")
        self._busy: dict[int, deque[SplitAnswer]] = {}
        self._draft: Callable[[SplitAnswer, int], tuple[int, float]] = {
            "none": self._no_draft,
            "tree": self._tree,
            "drafter": self._drafted,
        }[fleet.arm.drafting]

    def run(self) -> SplitRun:
        for answer in self._answers:
            self._events.schedule(answer.arrived_s, self._arrive, answer)
        self._events.run()
        return SplitRun(self._answers, self._cloud.passes, self._events.now)

    # The prompt

    def _arrive(self, now: float, answer: SplitAnswer) -> None:
        if self._fleet.one_at_a_time:
            waiting = self._busy.get(answer.device)
            if waiting is not None:
                waiting.append(answer)
                return
            self._busy[answer.device] = deque()
        self._begin(now, answer)

    def _begin(self, now: float, answer: SplitAnswer) -> None:
        answer.began_s = now
        prompt = answer.request.prompt_tokens
        path = answer.path = split_path(
            self._fleet, self._coming[answer.number], self._curve, self._cloud.monitor.load
        )
        chunk = answer.chunk = self._chunk(path, prompt)
        ready_s = sent_s = now
        for at in range(0, prompt, chunk):
            rows = min(chunk, prompt - at)
            ready_s += path.device_s.s(rows)
            sent_s = max(sent_s, ready_s) + rows * self._size / answer.up_bps
            job = SplitJob(answer, rows, at, is_prompt=True, is_last=at + rows == prompt)
            self._events.schedule(sent_s + self._way_s, self._cloud.enqueue, job)

    def _chunk(self, path: SplitPath, prompt: int) -> int:
        if self._arm.chunks == "equation3":
            return equation3(path, prompt)
        if self._arm.chunks == "makespan":
            sizes = {*_SIZES, prompt, equation3(path, prompt)}
            return makespan_chunk(
                path, prompt, sizes=[size for size in sizes if size <= prompt], reply=self._arm.reply
            )
        return prompt

    # What has been through the cloud

    def _passed(self, now: float, job: SplitJob, rows: int, left: int) -> None:
        answer = job.answer
        if not job.is_prompt:
            self._judge(self._down_s(now, answer, rows) + self._head_s(answer), answer)
            return
        is_last = job.is_last and not left
        if self._arm.reply == "all":
            here_s = self._down_s(now, answer, rows)
        elif is_last:
            here_s = self._down_s(now, answer, 1)
        if is_last:
            at_s = here_s + self._head_s(answer)
            answer.write(at_s, 1)
            self._go_on(at_s, answer, 0)

    def _down_s(self, now: float, answer: SplitAnswer, rows: int) -> float:
        answer.down_free_s = max(now, answer.down_free_s) + rows * self._size / answer.down_bps
        return answer.down_free_s + self._way_s

    def _head_s(self, answer: SplitAnswer) -> float:
        return answer.slowness * self._fleet.times.head_s

    # Rounds

    def _go_on(self, at_s: float, answer: SplitAnswer, branch: int) -> None:
        """Draft and send, or end; `branch` tokens are drafted already, from the answer's newest token on."""
        if answer.is_done():
            self._events.schedule(at_s, self._complete, answer)
            return
        drafted, draft_s = self._draft(answer, branch)
        rows = self._fleet.tree_rows if self._arm.drafting == "tree" else drafted + 1
        answer.in_flight = drafted
        # A drafter has computed the shallow layers of all rows but the last one in its steps.
        computed = rows if self._arm.drafting == "tree" else 1
        answer.sent_s = at_s + draft_s + answer.path.device_s.s(computed)
        before = answer.request.prompt_tokens + len(answer.token_s) - 1
        arrives_s = answer.sent_s + rows * self._size / answer.up_bps + self._way_s
        self._events.schedule(arrives_s, self._cloud.enqueue, SplitJob(answer, rows, before))

    def _no_draft(self, answer: SplitAnswer, _branch: int) -> tuple[int, float]:  # noqa: ARG002 - as the others
        return 0, 0.0

    def _tree(self, answer: SplitAnswer, _branch: int) -> tuple[int, float]:
        return self._fleet.tree_depth, answer.slowness * self._fleet.times.tree_s

    def _drafted(self, answer: SplitAnswer, branch: int) -> tuple[int, float]:
        # As the live drafter stops with the window "confidence".
        drafted = answer.request.drafted_until_unsure(len(answer.token_s), self._fleet.most, self._fleet.eta)
        return drafted, max(0, drafted - branch) * self._step_s(answer)

    def _step_s(self, answer: SplitAnswer) -> float:
        return answer.slowness * self._fleet.times.step_s

    def _judge(self, at_s: float, answer: SplitAnswer) -> None:
        """The verdict on a round is known."""
        place, drafted = len(answer.token_s), answer.in_flight
        right = min(answer.request.runs[place], drafted)
        answer.rounds += 1
        answer.drafted += drafted
        answer.accepted += right
        answer.write(at_s, right + 1)
        branch = self._branch(at_s, answer, place, right) if self._arm.parallel and drafted else 0
        answer.hits += branch > 0
        self._go_on(at_s, answer, branch)

    def _branch(self, at_s: float, answer: SplitAnswer, place: int, right: int) -> int:
        """Return how many tokens are drafted already behind the model's own token."""
        drafted, step_s = answer.in_flight, self._step_s(answer)
        if right < drafted - 1 or not step_s:
            return 0
        ahead = ahead_steps(answer.path, drafted, step_s, rtt=self._arm.exact_ahead)
        ready = min(ahead, int((at_s - answer.sent_s) / step_s), self._fleet.most)
        if right == drafted:  # the branch of the last token: its first token must be the model's own
            bonus = place + drafted
            accepts = answer.request.accepts
            return ready - 1 if ready > 1 and accepts[bonus % len(accepts)] else 0
        return ready if self._branches.random() < self._fleet.branch_hits else 0

    def _complete(self, now: float, answer: SplitAnswer) -> None:
        waiting = self._busy.get(answer.device)
        if waiting:
            self._begin(now, waiting.popleft())
        elif waiting is not None:
            del self._busy[answer.device]
