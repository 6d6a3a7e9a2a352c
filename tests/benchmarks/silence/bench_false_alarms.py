"""False alarms: healthy answers with the gaps of real servers, through the real session, in virtual time.

Each answer is made of blocks of gaps that `record_gaps.py` recorded, in their order (gaps come in bursts), from one
server and load; all gaps of an answer are multiplied by one random factor (log-normal, `--jitter`), so that an answer
may be silent for longer than any recorded one. The server's statistics are learnt from these answers as a client does,
from nothing. Every heir and every hedge that is started is a false alarm, whoever writes first: no answer is broken.

`--then`: the load changes after a third of the answers, and back after another; the table has a row for each tenth.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

import helpers.tests_path  # noqa: F401
import numpy as np
from helpers.measuring import Columns, options
from session.plays import REQUEST, ProfileScripts

from disco.candidate import Candidate
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics
from disco.endpoints.contract import Capabilities
from disco.endpoints.simulation.simulated_script import Scripted, SimulatedProfile
from disco.endpoints.simulation.simulated_text import tokenise
from disco.events import Delta, Ended, Usage
from disco.plan import Plan, Start
from disco.playback import Pace, Playback
from disco.profiles import Rolling
from disco.rates import Rates
from disco.replay.simulator.virtual_driver import Player
from disco.session.attempt.attempt_state import Role
from disco.session.effects import StartAttempt
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.switching.answer_lengths import AnswerLengths

BLOCK = 16  # gaps
PROMPT_TOKENS = 120
RATES = Rates(1.5e-7, 6e-7)
HEIR = SimulatedProfile(prefill_tps=500.0, overhead_s=0.05, decode_tps=60.0)
TEXT = "".join(f" word{i % 7}" for i in range(400))
PLAN = Plan((Start("server"),), ("device",), heirs=("device",))

Answers = list[list[float]]


@dataclass
class Count:
    """What was started in vain, and what it cost."""

    answers: int = 0
    heirs: int = 0
    hedges: int = 0
    lost: int = 0  # heirs that wrote before the server did
    hedge_usd: float = 0.0
    usd: float = 0.0
    limits: list[float] = field(default_factory=list)


class Recorded(ProfileScripts):
    """The server writes at the given times, s; the device is simulated."""

    times: list[float]

    def script(self, start: StartAttempt, *, kept: int | None) -> tuple[Iterator[Scripted], int, int]:
        if start.endpoint != "server":
            return super().script(start, kept=kept)
        pieces = tokenise(TEXT)[: len(self.times)]

        def events() -> Iterator[Scripted]:
            for at, piece in zip(self.times, pieces, strict=True):
                yield at, [Delta(piece)]
            yield self.times[-1], Ended("stop", Usage(PROMPT_TOKENS, len(pieces)))

        return events(), PROMPT_TOKENS, 0


def drawn(answers: Answers, rng: np.random.Generator, jitter: float) -> list[float]:
    """The times of one answer, s since the request: recorded blocks behind a recorded time to first chunk."""
    length = len(answers[rng.integers(len(answers))]) - 1
    gaps: list[float] = []
    while len(gaps) < length:
        of = answers[rng.integers(len(answers))][1:]
        begin = int(rng.integers(max(1, len(of) - BLOCK + 1)))
        gaps += of[begin : begin + BLOCK]
    first = answers[rng.integers(len(answers))][0]
    scale = 1e-3 * float(np.exp(rng.normal(0.0, jitter)))
    return np.cumsum([scale * gap for gap in (first, *gaps[:length])]).tolist()


def answer(server: Candidate, times: list[float], pace: Pace | None, count: Count) -> Session:
    """One answer, played to its end and counted."""
    text = "".join(tokenise(TEXT)[: len(times)])
    device = Candidate(
        "device",
        "device",
        rates=Rates(1e-8, 1e-7),
        prefill_tps=500.0,
        overhead_s=0.05,
        decode_tps=60.0,
        continues=True,
    )
    pace_tps = None if pace is None else pace.tps
    config = SessionConfig(PROMPT_TOKENS, pace_tps=pace_tps, is_hedged=True)  # as the client has it
    candidates = {"server": server, "device": device}
    session = Session(PLAN, candidates, config, Playback(pace), AnswerLengths.geometric(60.0))
    scripts = Recorded(
        {"device": replace(HEIR, answer=text)}, REQUEST, np.random.default_rng(0), PROMPT_TOKENS
    )
    object.__setattr__(scripts, "times", times)
    player = Player(session, scripts)
    player.run(0.0)
    assert session.transcript.text == text, "the reader got another text"
    ledger = settle_accounts(session)
    roles = [a.role for a in session.attempts]
    count.answers += 1
    count.heirs += roles.count(Role.HEIR)
    count.hedges += roles.count(Role.HEDGE)
    count.lost += sum(m.outcome == "switched" for m in session.migrations)
    count.usd += ledger.totals().policy_cost
    in_doubt = {a.number for a in session.attempts if a.role in (Role.HEIR, Role.HEDGE)}
    count.hedge_usd += sum(c.policy_cost for c in ledger.charges if c.attempt in in_doubt)
    return session


def run(
    loads: list[Answers], pace: Pace | None, number: int, rng: np.random.Generator, jitter: float
) -> list[Count]:
    """So many answers, from nothing learnt; a count for each tenth."""
    known = EndpointStatistics(ttft=Rolling(), decode_tps=60.0)
    known.ttft.observe(0.5)  # type: ignore[union-attr]
    counts = []
    for number_ in range(number):
        if number_ % (number // 10) == 0:
            counts.append(Count())
        load = loads[min(number_ * len(loads) // number, len(loads) - 1)]
        server = known.candidate("server", "any", RATES, Capabilities(continues=True))
        if server.silence_s is not None:
            counts[-1].limits.append(server.silence_s)
        session = answer(server, drawn(load, rng, jitter), pace, counts[-1])
        known.learn(session.attempts[0])
    return counts


def recordings(path: str) -> dict[tuple[str, str], Answers]:
    """By server and load."""
    found: dict[tuple[str, str], Answers] = {}
    for line in Path(path).read_text().strip().split("\n"):
        entry = json.loads(line)
        found.setdefault((entry["server"], entry["load"]), []).extend(entry["answers"])
    return found


def main() -> None:
    given: Any = options(
        __doc__,
        gaps=("gaps.jsonl", "what record_gaps.py recorded"),
        answers=(10_000, "of each row"),
        jitter=(0.25, "standard deviation of the logarithm of the random factor"),
        pace=(12.0, "of the reader, tokens/s; 0: unpaced"),
        then=(False, "a calm server that becomes busy, and calm again"),
        seed=1,
    )
    recorded = recordings(given.gaps)
    pace = Pace(tps=given.pace) if given.pace else None
    table = Columns(
        "server <17 | load <16 | answers >8 | heirs >6 | % >7.3f | heir first >10 | hedges >7 | % >7.3f | "
        "limit s, P50 >14.2f | cost % >8.3f"
    )
    rows: dict[tuple[str, str], list[Answers]] = {key: [answers] for key, answers in recorded.items()}
    if given.then:
        servers = dict.fromkeys(server for server, _ in recorded)
        rows = {
            (s, "calm-busy-calm"): [recorded[s, load] for load in ("calm", "busy", "calm")] for s in servers
        }
    for (server, load), loads in rows.items():
        rng = np.random.default_rng(given.seed)
        counts = run(loads, pace, given.answers, rng, given.jitter)
        parts = counts if given.then else []
        for name, some in [(load, counts), *((f"  part {n}", [c]) for n, c in enumerate(parts, 1))]:
            answers, heirs, hedges = (
                sum(getattr(c, what) for c in some) for what in ("answers", "heirs", "hedges")
            )
            limits = [limit for c in some for limit in c.limits]
            table.row(
                server, name, answers, heirs, 100 * heirs / answers, sum(c.lost for c in some), hedges,
                100 * hedges / answers, float(np.median(limits)) if limits else float("nan"),
                100 * sum(c.hedge_usd for c in some) / sum(c.usd for c in some),
            )  # fmt: skip


if __name__ == "__main__":
    main()
