"""Faster must not mean different: what sessions did in drawn situations, as checksums that were taken once."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
from collections import Counter

import numpy as np
import pytest
from playing import Run, run_session

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind
from disco.plan import Candidate, Migration, Plan, Start
from disco.playback import Pace, Playback
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.switching.migration_rule import AnswerLengths

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")
NAMES = ("device", "server", "edge")
NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
TEXTS = (
    None,
    None,
    "你好,世界。今天天气很好 👩‍👩‍👧 we stay here.\n\nNew line  and `code_like-this`, " * 4,
    "x" * 300,
)


def profile(draw: random.Random) -> SimulatedProfile:
    fault = None
    if draw.random() < 0.4:
        fault = Fault(
            after_tokens=draw.randint(0, 40),
            silence_s=draw.choice([0.0, 0.3, 20.0, math.inf]),
            kind=draw.choice([None, FailureKind.CONNECTION, FailureKind.SERVER, FailureKind.INCOMPLETE]),
        )
    return SimulatedProfile(
        ttft_s=draw.uniform(0.01, 3.0),
        decode_tps=draw.uniform(2.0, 300.0),
        packet_tokens=draw.choice([1, 1, 1, draw.randint(1, 7)]),
        answer_tokens=draw.randint(0, 200),
        answer=draw.choice(TEXTS),
        continues=draw.random() < 0.8,
        role_at_s=draw.choice([None, 0.0]),
        seam=draw.choice(["exact", "exact", "echoes", "restarts"]),
        fault=fault,
    )


def situation(seed: int) -> Run:
    """One session that depends on `seed` alone."""
    draw = random.Random(seed)
    names = NAMES[: draw.randint(1, 3)]
    starters = draw.sample(names, draw.randint(1, len(names)))
    starts = tuple(Start(n, draw.choice([0.0, 0.1, 1.0])) for n in starters)
    rest = tuple(n for n in names if n not in starters)
    moves = {
        a: Migration(b, draw.random() < 0.5) for a in names for b in names if a != b and draw.random() < 0.7
    }
    order = draw.choice(["make_before_break", "make_before_break", "break_before_make"])
    pace = draw.choice(
        [
            None,
            Pace(tps=draw.uniform(3.0, 60.0)),
            Pace(tps=4.8),
            Pace(tps=draw.uniform(3.0, 60.0), max_hold_s=0.1),
        ]
    )
    profiles = {n: profile(draw) for n in names}
    costs = {n: draw.choice([1e-9, 1e-6, 1e-4]) for n in names}
    if draw.random() < 0.5:
        # Left to chance, few answers move: one that is dear and fast, others that are cheap, all of them healthy.
        profiles = {
            n: dataclasses.replace(
                p,
                ttft_s=draw.uniform(0.05, 1.0),
                decode_tps=draw.uniform(15.0, 90.0),
                answer_tokens=draw.randint(60, 300),
                continues=True,
                seam="exact",
                fault=p.fault if draw.random() < 0.2 else None,
            )
            for n, p in profiles.items()
        }
        costs = {n: 1e-4 if n == starters[0] else 1e-9 for n in names}
        starts = (Start(starters[0]), *(Start(n, draw.choice([0.0, 0.5])) for n in starters[1:]))
        others = [n for n in names if n != starters[0]]
        moves = {starters[0]: Migration(others[-1])} if others else {}
    candidates = {
        n: Candidate(
            n,
            "device" if n == "device" else "server",
            rates=Rates(costs[n] / 10, costs[n]),
            overhead_s=draw.choice([0.1, p.ttft_s]),
            decode_tps=p.decode_tps,
            continues=p.continues,
        )
        for n, p in profiles.items()
    }
    ends_by_itself = all(p.fault is None or p.fault.silence_s < math.inf for p in profiles.values())
    config = SessionConfig(
        prompt_tokens=20,
        max_tokens=draw.choice([None, 60]),
        streams=draw.random() < 0.85,
        pace_tps=pace.tps if pace else None,
        timeouts=NO_CLOCKS if ends_by_itself and draw.random() < 0.5 else Timeouts(),
    )
    session = Session(
        Plan(starts, rest, moves, order), candidates, config, Playback(pace), AnswerLengths.geometric(150.0)
    )
    return run_session(
        session,
        profiles,
        REQUEST,
        np.random.default_rng(seed),
        cancel_at=draw.choice([math.inf, math.inf, math.inf, draw.uniform(0.0, 5.0)]),
        cancel_takes_s=draw.choice([0.0, 0.05]),
    )


def told(run: Run, number: str) -> str:
    """All that happened, as text; times written with the format `number`."""
    session = run.session
    record = make_record(session, settle_accounts(session), preset="test")

    def times(pairs) -> str:
        return " ".join(f"{number % at}:{tokens}" for at, tokens in pairs)

    parts = [
        times(session.transcript.generated),
        times(session.transcript.released),
        times((at, len(deltas)) for at, deltas in run.out),
        run.text,
        str(run.finished),
        type(run.error).__name__,
        number % run.now,
        *(
            f"{t.endpoint} {t.role} {t.outcome} {t.failure} {t.tokens} {t.kept_tokens} {t.prefix_chars} "
            f"{t.prompt_tokens} {t.completion_tokens} {t.cached_tokens}"
            for t in record.attempts
        ),
        *(
            f"{t.source} {t.outcome} {number % t.decided_s} {t.cut_char} {t.cut_tokens}"
            for t in record.migrations
        ),
        *(
            f"{p.attempt} {p.start_char} {p.end_char} {p.written_crc32} {p.delivered_crc32}"
            for p in record.segments
        ),
    ]
    return "\n".join(parts)


def checksum(seeds: range, number: str = "%.9f") -> str:
    digest = hashlib.sha256()
    for seed in seeds:
        digest.update(told(situation(seed), number).encode())
    return digest.hexdigest()[:16]


# Taken anew when sessions became a composition. Of these six hundred, 23 go otherwise than before: a move of an unpaced
# reader is not given up as late at once, and silence is noticed after a takeover, too.
# 56 have another pace now, as a slowest rate and a drain are no settings any more. The others go as they went before.
GOLDEN = {
    0: "516d5030788976cb",
    100: "8761d551fd5bbc41",
    200: "0e5417475fb544a0",
    300: "eda76416ae3ae7c8",
    400: "24d378223445de83",
    500: "125e94e0cfddb021",
}


@pytest.mark.parametrize("first", GOLDEN)
def test_a_hundred_drawn_sessions_go_as_they_went(first):
    assert checksum(range(first, first + 100)) == GOLDEN[first], (
        "sessions do something else than they did; where that is meant, take the checksums anew and say why"
    )


def test_what_is_drawn_is_worth_comparing():
    """A checksum of sessions to which nothing happens would hold anything."""
    seen = Counter()
    for seed in range(200):
        session = situation(seed).session
        seen.update(handover.outcome for handover in session.migrations_run)
        seen.update(attempt.role.value for attempt in session.attempts)
        seen[str(session.finish_reason)] += 1
        seen["without clocks"] += session.config.timeouts == NO_CLOCKS
    for what in ("switched", "late", "takeover", "stop", "cancelled", "None", "without clocks"):
        assert seen[what] >= 5, seen
