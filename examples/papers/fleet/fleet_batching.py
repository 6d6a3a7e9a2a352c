"""Batching: which of the waiting jobs go into a server's next pass."""

from __future__ import annotations

from collections import deque

from papers.fleet.fleet_job import Job, Kind
from papers.fleet.fleet_scenario import Batching

__all__ = ["Former"]


class Former:
    """Takes batches out of a server's queue.

    Mutable: `_together`, the answers whose tokens a server without continuous batching writes as one batch.

    Args:
        rules: see `Batching`.
    """

    __slots__ = ("_aware", "_rules", "_together")

    def __init__(self, rules: Batching) -> None:
        self._rules = rules
        self._aware = rules.order == "length_aware"
        self._together: set[int] = set()

    def form(self, waiting: deque[Job]) -> list[Job]:
        """Take the jobs of the next pass out of the queue; `taken` of a prompt is set to the rows it gets.

        The first job is always taken, so that no job waits for ever.
        """
        rules = self._rules
        if rules.continuous and not self._aware and not rules.max_rows and not rules.chunk_tokens:
            most = rules.max_batch
            if len(waiting) <= most:
                batch = list(waiting)
                waiting.clear()
            else:
                batch = [waiting.popleft() for _ in range(most)]
            for job in batch:
                job.taken = job.rows
            return batch
        batch = self._within(self._candidates(waiting))
        taken = set(map(id, batch))
        left = [job for job in waiting if id(job) not in taken]
        waiting.clear()
        waiting.extend(left)
        if not rules.continuous and batch[0].kind is Kind.TOKEN:
            self._together = {job.answer.number for job in batch}
        return batch

    def _candidates(self, waiting: deque[Job]) -> list[Job]:
        """Return the jobs that may share a pass, in the order in which they are taken."""
        rules = self._rules
        jobs = list(waiting)
        if not rules.continuous:
            together = [job for job in jobs if job.kind is Kind.TOKEN and job.answer.number in self._together]
            if together:
                return together
            jobs = [job for job in jobs if job.kind is jobs[0].kind]
        if rules.chunk_tokens:  # rounds first, so that prompts fill what is left
            jobs.sort(key=lambda job: job.kind is Kind.PROMPT)
        if self._aware:
            # Chunks have put the longest waiting job elsewhere; the queue's own head leads.
            head = waiting[0] if waiting[0] in jobs else jobs[0]
            near = [job for job in jobs if abs(job.length - head.length) <= rules.similar * head.length]
            jobs = [head, *(job for job in near if job is not head)]
        return jobs

    def _within(self, jobs: list[Job]) -> list[Job]:
        """Take jobs while they fit."""
        rules = self._rules
        budget = rules.chunk_tokens or rules.max_rows
        batch: list[Job] = []
        rows = 0
        for job in jobs:
            if len(batch) == rules.max_batch:
                break
            job.taken = job.rows
            if budget and rows + job.rows > budget:
                if rules.chunk_tokens and job.kind is Kind.PROMPT and budget > rows:
                    job.taken = budget - rows
                elif batch:
                    break
            batch.append(job)
            rows += job.taken
        return batch
