"""Scripts: what each station would do for each request of a workload, whenever it is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from random import Random

import numpy as np

from disco.endpoints.simulation.simulated_script import Fault, Scripted, play, prose, reading
from disco.events import Delta, Ended, Usage
from disco.judging import best_label
from disco.profiles import LinearFit
from disco.replay.pairs.pair_rounds import Asked, PairRounds
from disco.replay.stations.station import Station
from disco.replay.stations.station_workload import StationWorkload
from disco.request import Prefix
from disco.session.effects import StartAttempt
from disco.speculate.estimates import Estimates
from disco.speculate.trying import Trying

__all__ = ["AnswerScripts", "Answers"]

# An answer that is to be judged is written by the server alone, as live: rounds give neither.
_NOT_IN_ROUNDS = frozenset(("logp", "label_scores"))


class Answers:
    """The scripts of all requests of a workload.

    The first attempt at each station has the workload's times, and the same faults under every plan. Later attempts
    (a station as target of a migration, a second try) are drawn separately, from the streams that `again` names.
    """

    # Read only after the constructor.
    __slots__ = ("classes", "columns", "limit_of", "prompt_tokens", "prose", "reads_as_live")

    def __init__(
        self,
        workload: StationWorkload,
        stations: Sequence[Station],
        *,
        reads_as_live: bool = False,
    ) -> None:
        """Take the columns of a workload.

        Args:
            workload: resolved for these stations.
            stations: in the workload's order.
            reads_as_live: a station with a line reports its reading where that is asked for, is charged only for what
                it has read, and reads the last token of what it kept again.
        """
        self.reads_as_live = reads_as_live
        # Lists: reading a float from a list costs a tenth of reading it from an array.
        self.prompt_tokens: list[int] = workload.prompt_tokens.tolist()
        self.limit_of = workload.limit_of
        self.classes = workload.classes
        self.prose = prose(int(workload.answer_tokens.max()))
        self.columns = {
            station.name: _Columns(workload, station, column) for column, station in enumerate(stations)
        }

    def of(self, row: int) -> AnswerScripts:
        """Return the scripts of one request."""
        return AnswerScripts(self, row)

    def swallowed_tokens(self, prefix: Prefix) -> int:
        """Return how many of the last tokens of the prefix are withheld."""
        chars, tokens = len(prefix.withheld), 0
        while chars > 0:
            tokens += 1
            chars -= len(self.prose[prefix.tokens - tokens][0].text)
        return tokens


class _Columns:
    """One station's columns. Read only after the constructor, but for what is learnt of a pair."""

    __slots__ = (
        "again",
        "answer_tokens",
        "cached_tokens",
        "drawn",
        "estimates",
        "fault",
        "faulty",
        "gaps",
        "label_scores",
        "line",
        "logp",
        "pair",
        "prompt_tokens",
        "split",
        "told_tokens",
        "tpot_s",
        "trying",
        "ttft_s",
    )

    def __init__(self, workload: StationWorkload, station: Station, column: int) -> None:
        cached, counted, told = workload.cached_tokens, workload.counted_tokens, workload.told_tokens
        lengths = workload.prompt_tokens if counted is None else counted[:, column]
        self.prompt_tokens: list[int] = lengths.tolist()
        self.told_tokens: list[int] | None = None if told is None else told[:, column].tolist()
        self.answer_tokens: list[int] = workload.answers_of(column).tolist()
        self.ttft_s: list[float] = workload.ttft_s[:, column].tolist()
        self.tpot_s: list[float] = workload.tpot_s[:, column].tolist()
        self.faulty: list[bool] = workload.faulty[:, column].tolist()
        self.cached_tokens: list[int] | None = None if cached is None else cached[:, column].tolist()
        self.gaps = workload.gaps.get(station.name)
        self.logp = workload.logp.get(station.name)
        self.label_scores = workload.label_scores.get(station.name)
        self.again = workload.again[column]
        self.fault = station.fault
        self.pair = pair = station.pair
        self.split = station.split
        self.estimates = None if pair is None else Estimates(pair.verify)  # shared by all answers, as live
        self.trying = Trying()
        ttft = station.ttft
        self.line = ttft if isinstance(ttft, LinearFit) else None
        self.drawn = None if isinstance(ttft, LinearFit) else ttft


class AnswerScripts:
    """The scripts of the stations for one request. Mutable: the stations tried, the streams of later draws."""

    __slots__ = ("_again", "_answers", "_row", "_tried")

    def __init__(self, answers: Answers, row: int) -> None:
        self._answers = answers
        self._row = row
        self._tried: set[str] = set()
        self._again: dict[tuple[int, ...], np.random.Generator] = {}

    def reads_s(self, endpoint: str, tokens: int) -> float:
        """See `virtual_driver.Scripts`."""
        line = self._answers.columns[endpoint].line
        return 0.0 if line is None else line.k_s_per_token * tokens

    def logp(self, endpoint: str, begin: int, end: int) -> tuple[float, ...] | None:
        """See `virtual_driver.Scripts`."""
        known = self._answers.columns[endpoint].logp
        return None if known is None else tuple(known[self._row][begin:end])

    def charged(self, endpoint: str, tokens: int, cached_tokens: int, worked_s: float) -> tuple[int, int]:
        """See `virtual_driver.Scripts`."""
        station, row = self._answers.columns[endpoint], self._row
        line = station.line
        if line is None:
            if station.told_tokens is None:
                return tokens, cached_tokens
            return tokens - station.prompt_tokens[row] + station.told_tokens[row], 0
        if not self._answers.reads_as_live or line.k_s_per_token <= 0.0 or worked_s == math.inf:
            return tokens, cached_tokens
        done = (worked_s - line.c_s) / line.k_s_per_token
        return min(tokens, cached_tokens + int(min(max(done, 0.0), tokens))), cached_tokens

    def script(self, start: StartAttempt, *, kept: int | None) -> tuple[Iterator[Scripted], int, int]:
        """See `virtual_driver.Scripts`."""
        answers, row, prefix, name = self._answers, self._row, start.prefix, start.endpoint
        station = answers.columns[name]
        again = name in self._tried
        self._tried.add(name)
        prompt_tokens = station.prompt_tokens[row] + prefix.tokens
        cached_tokens = 0
        if prefix or (kept is not None if station.line is not None else again):
            # The workload's time does not apply: compute it from the tokens left to read, or draw it.
            if station.line is not None:
                if kept is not None:
                    cached_tokens = station.prompt_tokens[row] + min(kept, prefix.tokens)
                    if answers.reads_as_live:
                        cached_tokens = min(cached_tokens, prompt_tokens - 1)
                reads = station.line if station.split is None else station.split
                ttft_s = reads.ttft_s(prompt_tokens - cached_tokens)
            else:
                assert station.drawn is not None
                ttft_s = float(station.drawn.sample(self._later(station), 1)[0])
        else:
            ttft_s = station.ttft_s[row]
            if station.cached_tokens is not None:
                cached_tokens = station.cached_tokens[row]
        tpot_s = station.tpot_s[row]
        fault = station.fault
        if fault is not None:
            is_faulty = self._later(station).random() < fault.probability if again else station.faulty[row]
            fault = fault if is_faulty else None
        if station.pair is not None and not start.wants & _NOT_IN_ROUNDS:
            rounds = self._rounds(station, start, ttft_s, fault, prompt_tokens, cached_tokens)
            return rounds, prompt_tokens, cached_tokens
        gaps: Iterator[float] = repeat(tpot_s)
        if station.gaps is not None:
            gaps = chain(station.gaps.of(row)[prefix.tokens :].tolist(), gaps)
        script = self._events(station, start, ttft_s, gaps, fault, prompt_tokens, cached_tokens)
        line = station.line
        if (
            answers.reads_as_live
            and "progress" in start.wants
            and line is not None
            and line.k_s_per_token > 0
        ):
            tps = 1.0 / line.k_s_per_token
            script = chain(reading(ttft_s, cached_tokens, prompt_tokens, tps), script)
        return script, prompt_tokens, cached_tokens

    def _later(self, station: _Columns) -> np.random.Generator:
        rng = self._again.get(station.again)
        if rng is None:
            rng = self._again[station.again] = np.random.default_rng([*station.again, self._row])
        return rng

    def _length(self, station: _Columns, start: StartAttempt) -> tuple[int, int | None]:
        """Return how long the station's answer is, and the limit that it is told."""
        limit = self._answers.limit_of(self._row) if start.max_tokens is None else start.max_tokens
        if start.cap is not None:
            limit = start.cap if limit is None else min(limit, start.cap)
        total = station.answer_tokens[self._row]
        return total if limit is None else min(limit, total), limit

    def _rounds(
        self,
        station: _Columns,
        start: StartAttempt,
        at: float,
        fault: Fault | None,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> Iterator[Scripted]:
        """Return the events of an attempt that a drafter and a verify server make."""
        pair, estimates, prefix, row = station.pair, station.estimates, start.prefix, self._row
        assert pair is not None
        assert estimates is not None
        total, limit = self._length(station, start)
        hidden = 0
        if prefix.withheld and prefix.tokens < total:
            hidden = self._answers.swallowed_tokens(prefix)
        begin = prefix.tokens - hidden
        asked = Asked(
            endpoint=start.endpoint,
            text=self._answers.prose[begin:total],
            hidden=hidden,
            drafts=pair.sequences(row, station.answer_tokens[row], station.again).behind(begin),
            first_s=at,
            alone_s=station.tpot_s[row],
            reason="stop" if limit is None or total < limit else "length",
            limit=None if limit is None or hidden else max(1, limit - prefix.tokens),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            fault=fault,
        )
        rng = Random(f"{station.again} {row} {begin}")
        drafts = pair.min_gain is None or station.trying.tries(estimates, pair.windows()())
        drafts = drafts and start.drafts != 0 and (station.split is None or station.split.draft_s is not None)
        return PairRounds(pair, asked, estimates, rng, drafts=drafts)

    def _chosen(self, station: _Columns, start: StartAttempt, tokens: int) -> list[list[Delta]]:
        """Return the packet of an answer that is one of the classes; with the scores of all of them if asked for."""
        assert station.label_scores is not None
        scores = tuple(station.label_scores[self._row])
        text = self._answers.classes[best_label(scores)]
        return [[Delta(text, tokens, label_scores=scores if "label_scores" in start.wants else None)]]

    def _events(
        self,
        station: _Columns,
        start: StartAttempt,
        at: float,
        gaps: Iterator[float],
        fault: Fault | None,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> Iterator[Scripted]:
        answers, prefix = self._answers, start.prefix
        total, limit = self._length(station, start)
        packets: Sequence[list[Delta]] = answers.prose[prefix.tokens : total]
        generated = len(packets)
        if answers.classes and not prefix:
            packets = self._chosen(station, start, total)
        elif "logp" in start.wants and station.logp is not None:
            packets = _with_logp(packets, station.logp[self._row][prefix.tokens :])
        if prefix.withheld and packets:
            swallowed = answers.swallowed_tokens(prefix)
            generated += swallowed
            at += sum(islice(gaps, swallowed))
        at = yield from play(packets, at, gaps, fault=fault, endpoint=start.endpoint)
        if not math.isnan(at):  # the attempt did not fail
            reason = "stop" if limit is None or total < limit else "length"
            yield at, Ended(reason, Usage(prompt_tokens, generated, cached_tokens))


def _with_logp(packets: Sequence[list[Delta]], logp: Sequence[float]) -> list[list[Delta]]:
    """Return packets of one token each with the log probabilities that are known of their tokens."""
    known = [(value,) for value in logp[: len(packets)]]
    return [
        *([replace(packet[0], logp=one)] for packet, one in zip(packets, known, strict=False)),
        *packets[len(known) :],
    ]
