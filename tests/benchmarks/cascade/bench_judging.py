"""What judging costs: microseconds a token where a local model writes, and microseconds a verdict.

A token: its log probability, computed from a real model's logits, and the judge of a whole answer that reads it. Not
the difference of two whole answers: on a busy machine that varies by a millisecond a token. A verdict: `judge` on a
full history.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.measuring import Columns, met, options

from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.model.sampler import LogProbabilities
from disco.events import Delta
from disco.judging import RULES, ExitHistory, HistoryKey, ScoreHistory, SequenceJudge, Standard, judge
from disco.request import Request

PER_TOKEN_US, PER_VERDICT_US = 100.0, 20.0


def full(scores: int) -> ScoreHistory:
    draw = random.Random(7)
    return ScoreHistory(scores, (draw.random() for _ in range(scores)))


async def per_token_us(rounds: int, tokens: int = 500) -> tuple[float, float]:
    """Medians over rounds: of the log probability of a token from real logits, and of the judge that reads it."""
    endpoint = EngineEndpoint(model="smollm2-135m", threads=1)
    asked = Request([{"role": "user", "content": "Tell me of the sea."}], model="m", params={"max_tokens": 8})
    try:
        async for _ in endpoint.open(asked):
            pass
        model = endpoint.engine.model
        assert model is not None
        probabilities = LogProbabilities(model)
        probability, reading = [], []
        for _ in range(rounds):
            begin = time.perf_counter()
            values = [probabilities.of(token) for token in range(tokens)]
            probability.append((time.perf_counter() - begin) / tokens * 1e6)
            # A threshold that no token falls below: the judge reads to the end.
            history = ExitHistory("sum", scores=ScoreHistory(1_000, [1e-9] * 1_000))
            judged = SequenceJudge(Standard(HistoryKey("bench", "m", "sum"), 0.3), history)
            batches = [[Delta("word", logp=(value,))] for value in values]
            begin = time.perf_counter()
            for batch in batches:
                judged.read(batch)
                judged.check()
            reading.append((time.perf_counter() - begin) / tokens * 1e6)
    finally:
        await endpoint.aclose()
    return statistics.median(probability), statistics.median(reading)


def per_verdict_us(rule: str, scores: int, calls: int = 5_000) -> float:
    """Median over rounds of the mean time of one verdict."""
    history, draw = full(scores), random.Random(8)
    spans = []
    for _ in range(7):
        given = [draw.random() for _ in range(calls)]
        begin = time.perf_counter()
        for score in given:
            judge(score, history, 0.3, rule=rule)  # type: ignore[arg-type]
        spans.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(spans)


def main() -> None:
    """Print both tables."""
    given = options(__doc__, rounds=15)
    columns = Columns("a verdict <22 | scores >8 | µs >8.1f | <= 20 µs >12")
    for rule in RULES:
        for scores in (100, 1_000, 10_000):
            took = per_verdict_us(rule, scores)
            columns.row(f"rule {rule}", scores, took, met(took, PER_VERDICT_US))
    probability, reading = asyncio.run(per_token_us(given.rounds))
    total = probability + reading
    print(
        f"\na token: {probability:.0f} µs for its log probability, {reading:.1f} µs for the judge: {total:.0f} µs; "
        f"target {PER_TOKEN_US:.0f} µs: {met(total, PER_TOKEN_US)}"
    )


if __name__ == "__main__":
    main()
