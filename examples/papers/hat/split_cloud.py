"""The cloud of a split model: a queue, continuous batches, a pipeline of GPUs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from disco.speculate import CloudMonitor
from papers.hat.split_answer import SplitAnswer
from papers.hat.split_fleet import SplitModel

__all__ = ["SplitCloud", "SplitJob"]


class SplitJob:
    """Rows for the cloud. Mutable: a prompt that the server cuts shrinks.

    Attributes:
        answer: whose rows these are.
        rows: still to be computed.
        before: tokens in the cache before them.
        is_prompt: whether they are of the prompt; `is_last`: and have its last position.
    """

    __slots__ = ("answer", "before", "is_last", "is_prompt", "rows")

    def __init__(
        self, answer: SplitAnswer, rows: int, before: int, *, is_prompt: bool = False, is_last: bool = False
    ) -> None:
        self.answer, self.rows, self.before = answer, rows, before
        self.is_prompt, self.is_last = is_prompt, is_last


Passed = Callable[[float, SplitJob, int, int], None]
"""Called with the time, a job, the rows of it that have passed, and those that are left."""


class SplitCloud:
    """The cloud. Mutable.

    A batch takes whatever waits when the first GPU is free, up to `most_rows`: first drafts and single tokens, then
    prompts in the order of arrival. Each GPU computes its share of the layers for one batch at a time, in the order in
    which they came.

    Attributes:
        monitor: moving averages, as a live server keeps them.
        passes: (begin, seconds on one GPU, rows) of every batch.

    Args:
        model: what is computed.
        pipeline: GPUs.
        most_rows: of a batch; 0: no limit.
        schedule: plans an event.
        passed: called at the end of a batch, for each job.
    """

    __slots__ = (
        *("_costs", "_free_s", "_most_rows", "_passed", "_pipeline", "_schedule", "_share"),
        *("_waiting", "_woken", "monitor", "passes"),
    )

    def __init__(
        self,
        model: SplitModel,
        pipeline: int,
        most_rows: int,
        schedule: Callable[[float, Callable[[float, Any], None], Any], None],
        passed: Passed,
    ) -> None:
        self._costs, self._share = model.costs, model.cloud_share
        self._pipeline, self._most_rows = pipeline, most_rows
        self._schedule, self._passed = schedule, passed
        self._free_s = [0.0] * pipeline
        self._waiting: deque[SplitJob] = deque()
        self._woken = False
        self.monitor = CloudMonitor()
        self.passes: list[tuple[float, float, int]] = []

    def enqueue(self, now: float, job: SplitJob) -> None:
        """Take rows."""
        self._waiting.append(job)
        self._wake(now)

    def _wake(self, now: float) -> None:
        if not self._woken and self._waiting:
            self._woken = True
            # Behind all that is planned for this moment: what comes together shares a batch.
            self._schedule(max(now, self._free_s[0]), self._begin, None)

    def _begin(self, now: float, _nothing: None) -> None:
        self._woken = False
        batch = self._form()
        seconds = self.pass_s(batch)
        stage_s = seconds / self._pipeline
        rows = sum(taken for _, taken in batch)
        self.monitor.batch(rows, seconds)
        self.passes.append((now, stage_s, rows))
        done_s = now
        for place, free_s in enumerate(self._free_s):
            done_s = self._free_s[place] = max(done_s, free_s) + stage_s
        self._schedule(done_s, self._end, [(job, taken, job.rows) for job, taken in batch])
        self._wake(now)

    def _form(self) -> list[tuple[SplitJob, int]]:
        """Take a batch out of the queue: jobs and how many of their rows."""
        waiting, most = self._waiting, self._most_rows
        batch: list[tuple[SplitJob, int]] = []
        if not most:
            batch = [(job, job.rows) for job in waiting]
            waiting.clear()
        else:
            left = most
            for job in sorted(waiting, key=lambda job: job.is_prompt):
                taken = min(job.rows, left) if job.is_prompt else job.rows
                # The first one is always taken, so that none waits for ever.
                if taken and (taken <= left or not batch):
                    batch.append((job, taken))
                    left = max(0, left - taken)
            partly = {id(job): taken for job, taken in batch}
            self._waiting = deque(job for job in waiting if partly.get(id(job), 0) < job.rows)
        for job, taken in batch:
            job.rows -= taken
            job.before += taken
        return batch

    def pass_s(self, batch: list[tuple[SplitJob, int]]) -> float:
        """Return the time of a batch on all GPUs; its rows are counted in `before` already."""
        costs = self._costs
        rows = sequences = kv_tokens = row_kv = 0
        seconds = 0.0
        for job, taken in batch:
            rows += taken
            before = job.before - taken
            if job.is_prompt:
                seconds += costs.prompt_attention_s(taken, before)
            else:
                sequences += 1
                kv_tokens += before
                row_kv += taken * before
        if sequences:
            seconds += costs.attending_s(sequences, kv_tokens, row_kv)
        return self._share * (seconds + costs.layers.at(rows))

    def _end(self, now: float, batch: list[tuple[SplitJob, int, int]]) -> None:
        passed = self._passed
        for job, taken, left in batch:
            passed(now, job, taken, left)
