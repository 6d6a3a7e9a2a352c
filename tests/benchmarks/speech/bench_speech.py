"""When a voice can begin, and how long it then has nothing to say: a real model, three ways of feeding the engine.

    PYTHONPATH=tests python tests/benchmarks/speech/bench_speech.py [--questions N] [--tps R ...]

Every answer is written once by SmolLM2-135M, and its tokens with their times are played through the buffer of each way,
as a session plays them:

- "whole": the engine gets the whole answer at its end.
- "words": the preset `balanced`; the application collects words until a sentence ends, and hands it over.
- "speech": the preset `speech`.

`--tps` also plays the same tokens as if they came at a steady rate, for writers of other speeds. Silences are those of
a voice of 3.5 tokens/s that speaks each sentence as a whole (`reader_metrics.silences_s`).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import mean, median

from disco import AsyncDisco
from disco.dispatch import load_preset
from disco.events import Delta
from disco.playback import Pace, playback_for
from disco.playback.reader_metrics import silences_s
from disco.playback.spoken_pieces import piece_ends

QUESTIONS = (
    "Why is the sea salty?",
    "What should I pack for a week in the mountains?",
    "How does a bicycle stay upright?",
    "Tell me about the life of a honey bee.",
    "Why do we have leap years?",
    "How is bread made?",
    "What is the difference between weather and climate?",
    "Explain what a bank does to a ten-year-old.",
    "How do birds find their way?",
    "Give me advice for a first job interview.",
)
VOICE = load_preset("speech").playback
Timed = list[tuple[float, str]]


async def written(questions: int) -> list[Timed]:
    """Return the tokens of real answers, each with its time since the request, s."""
    answers = []
    async with AsyncDisco(local="smollm2-135m", preset="private") as client:
        await client.warm_up()
        for question in QUESTIONS[:questions]:
            asked_at, answer = time.monotonic(), Timed()
            stream = await client.chat.completions.create(
                model="local",
                messages=[{"role": "user", "content": question}],
                max_tokens=160,
                temperature=0,
                stream=True,
            )
            async for chunk in stream:
                if chunk.choices and (text := chunk.choices[0].delta.content):
                    answer.append((time.monotonic() - asked_at, text))
            answers.append(answer)
    return answers


def played(answer: Timed, pace: Pace | None) -> list[tuple[float, Delta]]:
    """Return what leaves a buffer, and when."""
    buffer, out = playback_for(pace), list[tuple[float, Delta]]()
    for now, text in answer:
        while buffer.next_at is not None and buffer.next_at < now:
            at = buffer.next_at
            out += ((at, delta) for delta in buffer.release(at))
        buffer.push(now, Delta(text))
        out += ((now, delta) for delta in buffer.release(now))
    end = answer[-1][0]
    buffer.end(end)
    return [*out, *((end, delta) for delta in buffer.release(end))]


def collected(words: list[tuple[float, Delta]]) -> list[tuple[float, int]]:
    """Return the sentences that an application collects from words: when each is complete, and its tokens."""
    out, text, tokens = list[tuple[float, int]](), "", 0
    for at, delta in words:
        ends = piece_ends(text + delta.text)
        if ends:
            out.append((at, tokens))
            text, tokens = (text + delta.text)[ends[-1] :], 0
        else:
            text += delta.text
        tokens += delta.tokens
    return [*out, (words[-1][0], tokens)]


def ways(answer: Timed) -> dict[str, list[tuple[float, int]]]:
    """Return what the engine gets under each way: (time, tokens) of each piece."""
    balanced = load_preset("balanced").playback
    words = played(answer, Pace(float(balanced.pace_tps), balanced.max_hold_s))
    spoken = played(answer, Pace(float(VOICE.pace_tps), VOICE.max_hold_s, "sentence"))
    return {
        "whole": [(answer[-1][0], len(answer))],
        "words": collected(words),
        "speech": [(at, delta.tokens) for at, delta in spoken],
    }


def report(title: str, answers: list[Timed]) -> None:
    """Print one line for each way."""
    print(f"\n{title}: {len(answers)} answers, {mean(map(len, answers)):.0f} tokens on average")
    for way in ("whole", "words", "speech"):
        given = [ways(answer)[way] for answer in answers]
        first_s = [pieces[0][0] for pieces in given]
        silent = [silences_s(pieces, float(VOICE.pace_tps)) for pieces in given]
        waits = [s for answer in silent for s in answer if s]
        print(
            f"  {way:7} first piece after {median(first_s):5.2f} s (worst {max(first_s):5.2f}), "
            f"{mean(map(len, given)):4.1f} pieces, {len(waits)} silences, longest {max(waits, default=0):.2f} s, "
            f"{sum(waits) / len(given):.2f} s in an answer"
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--tps", type=float, nargs="*", default=[30.0, 10.0, 5.0, 3.0])
    arguments = parser.parse_args()
    answers = await written(arguments.questions)
    rates = [(len(a) - 1) / (a[-1][0] - a[0][0]) for a in answers if len(a) > 1]
    report(f"as written, at {median(rates):.0f} tokens/s", answers)
    for tps in arguments.tps:
        steady = [[(0.5 + i / tps, text) for i, (_, text) in enumerate(answer)] for answer in answers]
        report(f"at a steady {tps:g} tokens/s, first token after 0.5 s", steady)


if __name__ == "__main__":
    asyncio.run(main())
