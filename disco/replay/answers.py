"""What device and server would do for each request of a workload, whoever is asked and whenever."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice, repeat

import numpy as np

from disco.endpoints.simulated_script import Fault, Scripted, play, prose
from disco.events import Delta, Ended, Usage
from disco.playback.stretch import Pieces
from disco.replay.flow import KnownPackets
from disco.replay.scenario import DEVICE, SERVER, Scenario, Workload
from disco.request import Prefix
from disco.session.effects import StartAttempt

__all__ = ["AnswerScripts", "Answers"]

_FAULT_STREAM, _AGAIN_STREAM = 13, 11  # apart from those of `scenario.resolve` and of the policies


class Answers:
    """The scripts of all requests of a workload.

    The first attempt at each side meets the workload's times, and the same faults under every policy. What comes
    after that (the server as target of a move, a second try) is drawn anew, from a stream per request.
    """

    # Read only once made.
    __slots__ = (
        "answer_tokens",
        "device_cached_tokens",
        "device_tpot_s",
        "device_ttft_s",
        "faults",
        "faulty",
        "line",
        "max_tokens",
        "pieces",
        "prompt_tokens",
        "prose",
        "seed",
        "server_tpot_s",
        "server_ttft_s",
        "ttft",
        "workload_gaps",
    )

    def __init__(self, workload: Workload, scenario: Scenario, *, seed: int) -> None:
        """Take the columns of a workload that was resolved for the scenario; `seed` is of later draws."""
        # Lists: one of their floats costs a tenth of an array's.
        self.prompt_tokens: list[int] = workload.prompt_tokens.tolist()
        self.answer_tokens: list[int] = workload.answer_tokens.tolist()
        self.server_ttft_s: list[float] = workload.server_ttft_s.tolist()
        self.device_ttft_s: list[float] = workload.device_ttft_s.tolist()
        self.server_tpot_s: list[float] = workload.server_tpot_s.tolist()
        self.device_tpot_s: list[float] = workload.device_tpot_s.tolist()
        cached = workload.device_cached_tokens
        self.device_cached_tokens: list[int] | None = None if cached is None else cached.tolist()
        self.workload_gaps = workload.gaps
        self.max_tokens = workload.max_tokens
        self.line = scenario.device.line
        self.ttft = scenario.ttft
        self.seed = seed
        self.prose = prose(int(workload.answer_tokens.max()))
        self.pieces = _pieces(len(self.prose))
        self.faults: dict[str, Fault | None] = {DEVICE: scenario.device_fault, SERVER: scenario.server_fault}
        drawn = np.random.default_rng([seed, _FAULT_STREAM]).random((2, len(workload)))
        self.faulty: dict[str, list[bool]] = {
            endpoint: [] if fault is None else (luck < fault.probability).tolist()
            for (endpoint, fault), luck in zip(self.faults.items(), drawn, strict=True)
        }

    def of(self, row: int) -> AnswerScripts:
        """The scripts of one request."""
        return AnswerScripts(self, row)

    def swallowed_tokens(self, prefix: Prefix) -> int:
        """How many of the last tokens of the prefix are withheld."""
        chars, tokens = len(prefix.withheld), 0
        while chars > 0:
            tokens += 1
            chars -= len(self.prose[prefix.tokens - tokens][0].text)
        return tokens


@lru_cache(maxsize=8)
def _pieces(tokens: int) -> Pieces | None:
    """What playback makes of `prose(tokens)`."""
    return Pieces.of([delta for packet in prose(tokens) for delta in packet])


class AnswerScripts:
    """What the two endpoints would do for one request. Mutable: what was tried, the stream of later draws."""

    __slots__ = ("_again", "_answers", "_row", "_tried")

    def __init__(self, answers: Answers, row: int) -> None:
        self._answers = answers
        self._row = row
        self._tried: set[str] = set()
        self._again: np.random.Generator | None = None

    def script(self, start: StartAttempt, *, holds_prompt: bool) -> tuple[Iterator[Scripted], int, int]:
        """See `virtual.Scripts`."""
        answers, row, prefix, endpoint = self._answers, self._row, start.prefix, start.endpoint
        again = endpoint in self._tried
        self._tried.add(endpoint)
        prompt_tokens = answers.prompt_tokens[row] + prefix.tokens
        cached_tokens = 0
        gaps: Iterator[float]
        if endpoint == DEVICE:
            gaps = repeat(answers.device_tpot_s[row])
            if not prefix and not holds_prompt:
                ttft_s = answers.device_ttft_s[row]
                if answers.device_cached_tokens is not None:
                    cached_tokens = answers.device_cached_tokens[row]
            else:
                cached_tokens = answers.prompt_tokens[row] if holds_prompt else 0
                ttft_s = answers.line.ttft_s(prompt_tokens - cached_tokens)
        else:
            gaps = repeat(answers.server_tpot_s[row])
            if answers.workload_gaps is not None:
                known_s = answers.workload_gaps.of(row)[prefix.tokens :]
                gaps = chain(known_s.tolist(), gaps)
            fresh = not (again or prefix)
            ttft_s = answers.server_ttft_s[row] if fresh else float(answers.ttft.sample(self._later(), 1)[0])
        fault = answers.faults[endpoint]
        if fault is not None:
            befallen = self._later().random() < fault.probability if again else answers.faulty[endpoint][row]
            fault = fault if befallen else None
        script = self._events(ttft_s, gaps, prefix, fault, endpoint, prompt_tokens, cached_tokens)
        return script, prompt_tokens, cached_tokens

    def _later(self) -> np.random.Generator:
        if self._again is None:
            self._again = np.random.default_rng([self._answers.seed, _AGAIN_STREAM, self._row])
        return self._again

    def _events(
        self,
        at: float,
        gaps: Iterator[float],
        prefix: Prefix,
        fault: Fault | None,
        endpoint: str,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> Iterator[Scripted]:
        answers = self._answers
        total = answers.answer_tokens[self._row]
        packets: tuple[list[Delta], ...] = answers.prose[prefix.tokens : total]
        generated = len(packets)
        if prefix.withheld and packets:
            swallowed = answers.swallowed_tokens(prefix)
            generated += swallowed
            at += sum(islice(gaps, swallowed))
        limit = answers.max_tokens
        reason = "stop" if limit is None or total < limit else "length"
        ended = Ended(reason, Usage(prompt_tokens, generated, cached_tokens))
        if fault is None:
            if answers.pieces is not None:
                return KnownPackets(at, gaps, packets, answers.pieces, prefix.tokens, ended)
            # As `play` has it, in one go.
            times = list(islice(accumulate(chain((at,), gaps)), max(len(packets), 1)))
            return chain(zip(times, packets, strict=False), ((times[-1], ended),))
        return _with_fault(packets, at, gaps, fault, endpoint, ended)


def _with_fault(
    packets: Sequence[list[Delta]],
    at: float,
    gaps: Iterator[float],
    fault: Fault,
    endpoint: str,
    ended: Ended,
) -> Iterator[Scripted]:
    at = yield from play(packets, at, gaps, fault=fault, endpoint=endpoint)
    if not math.isnan(at):  # it did not fail
        yield at, ended
