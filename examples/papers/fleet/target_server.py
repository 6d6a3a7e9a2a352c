"""A target's server: a queue, batches, passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from papers.fleet.fleet_batching import Former
from papers.fleet.fleet_job import Job, Kind
from papers.fleet.fleet_scenario import Batching
from papers.fleet.fleet_topology import Serving

__all__ = ["Schedule", "TargetServer"]

Schedule = Callable[[float, Callable[[float, Any], None], Any], None]
"""Called with a time, an action and its subject."""


class TargetServer:
    """One target. Mutable.

    Attributes:
        number, pool: of the target, and the name of its pool.
        unfinished: requests that were routed here and are not settled.
        busy_s, passes, rows, sequences: sums over all passes.
        largest: most sequences in one pass.

    Args:
        serving: its costs.
        rules: how it forms batches.
        schedule: plans an event.
        finished: called with the time and each job of a pass when the pass ends.
    """

    __slots__ = (
        *("_batch", "_costs", "_draft_costs", "_finished", "_for_slot", "_former", "_held", "_max_batch"),
        *("_padded", "_schedule", "_slots", "_timer_s", "_waiting", "_window_s"),
        *("busy_s", "largest", "number", "passes", "pool", "rows", "sequences", "unfinished"),
    )

    def __init__(
        self,
        number: int,
        serving: Serving,
        rules: Batching,
        schedule: Schedule,
        finished: Callable[[float, Job], None],
    ) -> None:
        self.number = number
        self.pool = serving.pool.name
        self.unfinished = 0
        self.busy_s = 0.0
        self.passes = self.rows = self.sequences = self.largest = 0
        self._costs, self._draft_costs = serving.costs, serving.draft_costs
        self._former = Former(rules)
        self._max_batch, self._window_s, self._padded = rules.max_batch, rules.window_ms / 1e3, rules.padded
        self._schedule, self._finished = schedule, finished
        self._slots = serving.pool.slots
        self._held = 0
        self._for_slot: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._batch: list[Job] | None = None
        self._timer_s = -1.0

    def enqueue(self, now: float, job: Job) -> None:
        """Take a job."""
        job.queued_s = now
        if self._slots and job.kind is Kind.PROMPT and job.before == 0:
            if self._held >= self._slots:
                self._for_slot.append(job)
                return
            self._held += 1
        self._waiting.append(job)
        if self._batch is None:
            self._wake(now)

    def release(self, now: float) -> None:
        """Free the cache of an answer that is settled."""
        self.unfinished -= 1
        if not self._slots:
            return
        self._held -= 1
        if self._for_slot:
            self._held += 1
            self._waiting.append(self._for_slot.popleft())
            if self._batch is None:
                self._wake(now)

    def _wake(self, now: float) -> None:
        """Begin a pass behind all that is planned for this moment: jobs that come together share it."""
        if self._timer_s != now:
            self._timer_s = now
            self._schedule(now, self._waited, None)

    def _consider(self, now: float) -> None:
        """Begin a pass, or wait for more jobs."""
        waiting = self._waiting
        if not waiting:
            return
        if self._window_s and len(waiting) < self._max_batch:
            due_s = waiting[0].queued_s + self._window_s
            if now < due_s:
                if self._timer_s != due_s:
                    self._timer_s = due_s
                    self._schedule(due_s, self._waited, None)
                return
        batch = self._former.form(waiting)
        self._batch = batch
        took_s = self._pass_s(now, batch)
        self.busy_s += took_s
        self.passes += 1
        size = len(batch)
        self.sequences += size
        self.largest = max(self.largest, size)
        self._schedule(now + took_s, self._end, batch)

    def _waited(self, now: float, _nothing: None) -> None:
        self._timer_s = -1.0
        if self._batch is None:
            self._consider(now)

    def _end(self, now: float, batch: list[Job]) -> None:
        finished = self._finished
        for job in batch:
            if job.taken < job.rows:  # a prompt with chunks to come goes on first
                job.before += job.taken
                job.rows -= job.taken
                self._waiting.appendleft(job)
            else:
                finished(now, job)
        self._batch = None
        self._consider(now)

    def _pass_s(self, now: float, batch: list[Job]) -> float:
        """Return the time of a pass, s, and book the jobs' waits."""
        costs = self._costs
        rows = logits = sequences = kv_tokens = row_kv = 0
        prompts_s = 0.0
        prompts: list[Job] | None = None
        longest = 0
        for job in batch:
            taken = job.taken
            rows += taken
            before = job.before
            job.began_s = now
            if job.kind is Kind.PROMPT:
                if before == 0:  # the first chunk
                    job.answer.wait_prompt_s = now - job.queued_s
                logits += taken == job.rows
                prompts_s += costs.prompt_attention_s(taken, before)
                prompts = [job] if prompts is None else [*prompts, job]
            else:
                job.answer.wait_rounds_s += now - job.queued_s
                logits += taken
                sequences += 1
                kv_tokens += before
                row_kv += taken * before
                longest = max(longest, before)
        if self._padded:
            kv_tokens, row_kv = longest * sequences, longest * (rows - sum(j.taken for j in prompts or ()))
            if prompts:
                most = max(job.taken for job in prompts)
                rows += most * len(prompts) - sum(job.taken for job in prompts)
        self.rows += rows
        seconds = costs.rows_s(rows, logits) + prompts_s
        if sequences:
            seconds += costs.attending_s(sequences, kv_tokens, row_kv)
        if self._draft_costs is not None:
            seconds += self._draft_s(batch, prompts or [])
        return seconds

    def _draft_s(self, batch: list[Job], prompts: list[Job]) -> float:
        """Return the time of drafting on this server, for all windows of the batch at once (mode "fused")."""
        costs = self._draft_costs
        assert costs is not None
        seconds = 0.0
        if prompts:
            seconds += costs.rows_s(sum(job.taken for job in prompts), 0)
            seconds += sum(costs.prompt_attention_s(job.taken, job.before) for job in prompts)
        drafting = sorted((job for job in batch if job.drafted), key=lambda job: job.drafted)
        done = 0
        while drafting:
            steps = drafting[0].drafted - done
            kv_tokens = sum(job.before for job in drafting)
            count = len(drafting)
            seconds += steps * (costs.rows_s(count, count) + costs.attending_s(count, kv_tokens, kv_tokens))
            done += steps
            drafting = [job for job in drafting if job.drafted > done]
        return seconds
