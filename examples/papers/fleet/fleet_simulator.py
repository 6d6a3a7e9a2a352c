"""Runs a fleet: one heap of events, from the first arrival to the last answer.

A request goes through these steps, in every mode:

1. It arrives at its device. In the mode "distributed" a device works on one request at a time; others wait for it.
2. It is routed to a target with the device's vocabulary, and stays there: that target has its cache. The prompt
   travels up; the target reads it in a batch, which yields the first token; meanwhile the drafter reads the prompt.
3. Rounds, drafted in turn (this module) or in parallel (`parallel_drafting`), until the answer has its length. The
   drafted tokens of a window that count are those up to the first one that the target would not have written
   (`DraftedRequest.runs`); the target's own token follows. A window of 0 is one token of the target alone.
4. The last verdict travels down.

The window is chosen when a verdict is known, from what was seen until then. In the mode "alone" no window is drafted;
in "fused" the target's server drafts, too, and nothing travels between the rounds.

Randomness: arrivals, requests, routing and jitter have generators of their own, seeded by the scenario's seed and the
part's name, so that the same seed gives the same bits, and another policy the same requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Final

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest, read_drafts
from disco.speculate import VerifyCurve, Window
from papers.fleet.event_heap import EventHeap
from papers.fleet.fleet_arrivals import Arrival, open_arrivals, total_requests
from papers.fleet.fleet_job import Answer, Job, Kind
from papers.fleet.fleet_pair import AccessLink, Pair
from papers.fleet.fleet_routing import router
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_topology import Drafting, Topology, expand
from papers.fleet.made_up_requests import made_up_requests
from papers.fleet.parallel_drafting import ParallelDrafting
from papers.fleet.target_server import TargetServer

__all__ = ["Finished", "Simulation", "requests_of", "simulate_fleet"]

# Sizes of messages, in bytes; they matter only where a link's bandwidth is given.
PROMPT_BYTES: Final = (600, 6)  # of a request, and of each of its prompt's tokens as text
ROUND_BYTES: Final = (350, 6)  # of a window or a verdict, and of each of its tokens
_CURVE_ROWS: Final = (1, 2, 3, 5, 9, 13, 17, 33, 65)
_TELL: Final = 200  # answers between two calls of the progress


@dataclass(frozen=True, slots=True)
class Finished:
    """A run.

    Attributes:
        answers: those that were finished, in the order of their ends.
        unfinished: how many were not when the run ended at `until_ms`.
        ended_s: the time of the last event.
        targets: the servers, with their sums.
        events: how many.
        drafters: how many there are.
    """

    answers: list[Answer]
    unfinished: int
    ended_s: float
    targets: list[TargetServer]
    events: int
    drafters: int


class _Device:
    """A drafter. Mutable."""

    __slots__ = ("access", "busy", "drafting", "kv_s", "pairs", "step_s", "waiting")

    def __init__(self, drafting: Drafting) -> None:
        costs = drafting.costs
        self.drafting = drafting
        self.step_s = costs.verify_s(1, 0)
        self.kv_s = (costs.verify_s(1, 1000) - self.step_s) / 1000
        self.busy = False
        self.waiting: deque[Answer] = deque()
        self.access = AccessLink()
        self.pairs: dict[int, Pair] = {}


def requests_of(scenario: FleetScenario) -> list[DraftedRequest]:
    """Return the requests of a scenario: its trace, or made-up ones."""
    if scenario.requests.made_up is not None:
        return made_up_requests(scenario.requests.made_up, Random(f"{scenario.seed} requests"))
    return read_drafts(scenario.requests.trace)


def simulate_fleet(
    scenario: FleetScenario,
    requests: list[DraftedRequest] | None = None,
    *,
    new_window: Callable[[], Window] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Finished:
    """Run a scenario.

    Args:
        scenario: what to run.
        requests: in place of the scenario's own.
        new_window: makes the window of a pair, in place of the scenario's own.
        progress: called now and then with the number of finished requests, and of all (0: not known).

    Raises:
        ConfigurationError: the scenario's parts do not fit together, or its trace cannot be read.
    """
    simulation = Simulation(scenario, expand(scenario), requests or requests_of(scenario), new_window)
    return simulation.run(progress)


class Simulation:
    """A fleet at work. Mutable.

    Attributes:
        schedule: see `EventHeap`.
        finished: answers that are finished.
        begun: all that have arrived, in the order of their numbers.
        targets: the servers.
    """

    def __init__(
        self,
        scenario: FleetScenario,
        topology: Topology,
        requests: list[DraftedRequest],
        new_window: Callable[[], Window] | None = None,
    ) -> None:
        self._events = EventHeap()
        self.schedule = self._events.schedule
        self.finished: list[Answer] = []
        self.begun: list[Answer] = []
        self._scenario, self._topology, self._requests = scenario, topology, requests
        self._new_window = new_window or scenario.new_window
        self._distributed, self._alone = scenario.mode == "distributed", scenario.mode == "alone"
        seed = scenario.seed
        self._jitter = Random(f"{seed} jitter")
        self._route = router(scenario.routing.policy, Random(f"{seed} routing"))
        self.targets = [
            TargetServer(number, serving, scenario.batching, self.schedule, self._pass_ended)
            for number, serving in enumerate(topology.targets)
        ]
        self._devices = [_Device(drafting) for drafting in topology.drafters]
        self._load = [0] * len(self.targets)
        self._all = tuple(range(len(self.targets)))
        self._curves: dict[int, VerifyCurve] = {}
        self._parallel = ParallelDrafting(self, scenario.parallel) if scenario.parallel > 1 else None
        self._total = total_requests(scenario.arrivals, requests)
        if self._new_window().stop_below and not all(one.confidence for one in requests):
            raise ConfigurationError(
                f"the window {scenario.window.get('name')!r} stops by the drafter's confidence, which these requests "
                "do not have; take a trace with confidence_seq (`python -m papers.fleet record` writes it)"
            )

    # Events

    @property
    def now(self) -> float:
        """The time, s."""
        return self._events.now

    def run(self, progress: Callable[[int, int], None] | None = None) -> Finished:
        """Run until nothing is left to happen, or until the scenario's end."""
        self._open()
        until_ms = self._scenario.until_ms
        until_s = float("inf") if until_ms is None else until_ms / 1e3
        told = 0

        def tell() -> None:
            nonlocal told
            if progress is not None and len(self.finished) >= told + _TELL:
                told = len(self.finished)
                progress(told, self._total if until_ms is None else 0)

        self._events.run(until_s, None if progress is None else tell)
        unfinished = len(self.begun) - len(self.finished)
        return Finished(
            self.finished,
            unfinished,
            self._events.now,
            self.targets,
            self._events.planned,
            len(self._devices),
        )

    # Arrivals

    def _open(self) -> None:
        scenario, arrivals = self._scenario, self._scenario.arrivals
        rng = Random(f"{scenario.seed} arrivals")
        if arrivals.kind != "closed_loop":
            self._coming = open_arrivals(arrivals, self._requests, len(self._devices), rng)
            self._await_next()
            return
        endless = arrivals.requests == 0
        in_turn: Iterator[DraftedRequest] = cycle(self._requests)
        self._loop = in_turn if endless else islice(in_turn, self._total)
        for number in range(len(self._devices)):
            self.schedule(rng.random() * arrivals.ramp_ms / 1e3, self._next_in_loop, number)

    def _await_next(self) -> None:
        arrival = next(self._coming, None)
        if arrival is not None:
            self.schedule(arrival[0], self._arrive, arrival)

    def _arrive(self, now: float, arrival: Arrival) -> None:
        self._await_next()
        self._begin(now, arrival[1], arrival[2])

    def _next_in_loop(self, now: float, drafter: int) -> None:
        request = next(self._loop, None)
        if request is not None:
            self._begin(now, drafter, request)

    def _begin(self, now: float, drafter: int, request: DraftedRequest) -> None:
        answer = Answer(len(self.begun), request, drafter, now)
        self.begun.append(answer)
        device = self._devices[drafter]
        if self._distributed and device.busy:
            device.waiting.append(answer)
        else:
            self._take_up(now, answer)

    def _take_up(self, now: float, answer: Answer) -> None:
        """Route the answer, send its prompt, and let the drafter read it, too."""
        device = self._devices[answer.drafter]
        device.busy = True
        answer.began_s = now
        target = self._route(device.drafting.targets, self._load)
        answer.target = target
        self._load[target] += 1
        self.targets[target].unfinished += 1
        pair = answer.pair = device.pairs.get(target) or self._new_pair(device, target)
        prompt = answer.request.prompt_tokens
        if self._distributed:
            costs = device.drafting.costs
            answer.ready_s = now + costs.rows_s(prompt, 1) + costs.prompt_attention_s(prompt, 0)
        size = PROMPT_BYTES[0] + PROMPT_BYTES[1] * prompt
        self.schedule(pair.up_s(now, size), self.targets[target].enqueue, answer.job)

    def _new_pair(self, device: _Device, target: int) -> Pair:
        serving = self._topology.targets[target]
        link = self._topology.links[device.drafting.pool.name, serving.pool.name]
        curve = self._curves.get(id(serving))
        if curve is None:
            # At a context of 500 tokens, as the server alone would measure it.
            points = [(rows, serving.costs.verify_s(rows, 500)) for rows in _CURVE_ROWS]
            curve = self._curves[id(serving)] = VerifyCurve(points)
        draft_s = device.step_s + 500 * device.kv_s
        if not self._distributed and serving.draft_costs is not None:
            draft_s = serving.draft_costs.verify_s(1, 500)
        window = self._new_window()
        pair = device.pairs[target] = Pair(window, link, device.access, self._jitter, draft_s, curve)
        return pair

    # Rounds in turn

    def _pass_ended(self, now: float, job: Job) -> None:
        """A target has done a job: count its tokens, and go on."""
        answer = job.answer
        if job.kind is Kind.ROUND:
            if self._parallel is not None:
                self._parallel.verified(now, job)
                return
            drafted, place = job.drafted, answer.length
            right = answer.runs[place]
            right = min(right, drafted)
            gained = right + 1
            gained = min(gained, answer.output - place)
            answer.length = place + gained
            answer.drafted += drafted
            answer.accepted += right
            answer.windows.append(drafted)
            pair = answer.pair
            if pair.fixed is None:
                self.learn(now, job, drafted, right, gained)
        elif job.kind is Kind.TOKEN:
            answer.length += 1
            answer.windows.append(0)
            if answer.pair.fixed is None:
                self.learn(now, job, 0, 0, 1)
        else:
            answer.length = 1
            answer.first_s = answer.pair.down_s(now, ROUND_BYTES[0])
        if answer.length >= answer.output:
            self.settle(now, answer)
            return
        answer.settled_s = now
        if self._parallel is not None:
            self._parallel.go_on(now, answer)
        else:
            self._go_on(now, job)

    def learn(self, now: float, job: Job, drafted: int, right: int, gained: int) -> None:
        """Tell the pair's window what a verdict has shown."""
        answer = job.answer
        answer.pair.judged(drafted, right)
        answer.pair.timed(
            job.rows, job.began_s - job.queued_s, now - job.began_s, (now - answer.settled_s) / gained
        )

    def _go_on(self, now: float, job: Job) -> None:
        """Choose the next window, and let it be drafted and sent; or let the target go on alone."""
        answer = job.answer
        pair = answer.pair
        drafted = 0 if self._alone else pair.next_window(answer.request, answer.length)
        if not drafted:
            self.write_alone(now, answer)
            return
        context = answer.request.prompt_tokens + answer.length - 1  # the newest token is in no cache yet
        job.before = context
        job.drafted = drafted
        job.rows = drafted + 1
        job.kind = Kind.ROUND
        if not self._distributed:
            self.targets[answer.target].enqueue(now, job)
            return
        device = self._devices[answer.drafter]
        draft_s = drafted * (device.step_s + device.kv_s * context)
        if pair.plain:
            heard_s = now + pair.one_way_s
            heard_s = max(heard_s, answer.ready_s)
            arrives_s = heard_s + draft_s + pair.one_way_s
        else:
            size = ROUND_BYTES[0] + ROUND_BYTES[1] * drafted
            heard_s = answer.first_s if answer.length == 1 else pair.down_s(now, size)
            arrives_s = pair.up_s(max(heard_s, answer.ready_s) + draft_s, size)
            answer.wait_network_s += pair.take_waited_s()
        self.schedule(arrives_s, self.targets[answer.target].enqueue, job)

    def write_alone(self, now: float, answer: Answer) -> None:
        """Let the target compute one token alone."""
        job = answer.job
        job.before = answer.request.prompt_tokens + answer.length - 1
        job.drafted = 0
        job.rows = 1
        job.kind = Kind.TOKEN
        self.targets[answer.target].enqueue(now, job)

    # The end of an answer

    def settle(self, now: float, answer: Answer) -> None:
        """The target has the whole answer: free its cache, and send the last verdict."""
        answer.settled_s = now
        target = answer.target
        self._load[target] -= 1
        arrives_s = answer.first_s if answer.output == 1 else answer.pair.down_s(now, ROUND_BYTES[0])
        self.schedule(arrives_s, self._complete, answer)
        self.targets[target].release(now)

    def _complete(self, now: float, answer: Answer) -> None:
        answer.done_s = now
        self.finished.append(answer)
        device = self._devices[answer.drafter]
        device.busy = False
        if device.waiting:
            self._take_up(now, device.waiting.popleft())
        if self._scenario.arrivals.kind == "closed_loop":
            think_s = self._scenario.arrivals.think_ms / 1e3
            self.schedule(now + think_s, self._next_in_loop, answer.drafter)

    # For `ParallelDrafting`

    def draft_s(self, answer: Answer, drafted: int) -> float:
        """Return how long the answer's device drafts so many tokens."""
        device = self._devices[answer.drafter]
        context = answer.request.prompt_tokens + answer.length
        return drafted * (device.step_s + device.kv_s * context)

    def server(self, answer: Answer) -> TargetServer:
        """Return the answer's target."""
        return self.targets[answer.target]
