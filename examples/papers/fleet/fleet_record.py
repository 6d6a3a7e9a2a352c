"""`python -m papers.fleet record`: a trace of where a draft model agrees with a target."""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest, available_cores, write_drafts
from papers.fleet.agreement import Choice, agreement, write_answer
from papers.local_model import LocalModel
from papers.terminal import Screen, check_output

__all__ = ["run_record"]


def run_record(screen: Screen, arguments: argparse.Namespace) -> int:
    """Record, and write the trace; return the exit status."""
    check_output(arguments, "out")
    texts = _texts(arguments.texts, arguments.prompts)
    if arguments.temperature < 0 or arguments.tokens < 1 or arguments.drafters < 1 or arguments.rate <= 0:
        raise ConfigurationError(
            "--temperature must be from 0 on, --tokens and --drafters from 1, --rate above 0"
        )
    choice = Choice(arguments.temperature, arguments.seed)
    threads = arguments.threads or max(1, available_cores() - 1)
    vocabulary, prompts, answers = _written(screen, arguments, texts, choice, threads)
    with screen.step(f"Loading {arguments.draft}"):
        draft = LocalModel(arguments.draft, threads=threads)
    try:
        if draft.vocabulary != vocabulary:
            raise ConfigurationError(
                f"{arguments.draft} and {arguments.target} have different vocabularies; only models with the same "
                "one can draft for each other. Take a smaller model of the same family."
            )
        rng, requests, now_s = Random(f"{arguments.seed} arrivals"), [], 0.0
        with screen.bar("Comparing") as tell:
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                found = agreement(draft, prompt, answer, choice)
                now_s += rng.expovariate(arguments.rate)
                requests.append(
                    DraftedRequest(
                        prompt_tokens=len(prompt),
                        output_tokens=len(answer),
                        accepts=found.accepts,
                        arrival_s=now_s,
                        drafter=number % arguments.drafters,
                        confidence=found.confidence,
                    )
                )
                tell(number + 1, len(prompts))
    finally:
        draft.close()
    write_drafts(arguments.out, requests)
    tokens, agreed = sum(one.output_tokens for one in requests), sum(sum(one.accepts) for one in requests)
    screen.line(
        f"{len(requests)} answers, {tokens:,} tokens; the draft model agrees at {agreed / tokens:.1%}."
    )
    screen.line(f"Trace: {arguments.out}")
    return 0


def _written(
    screen: Screen, arguments: argparse.Namespace, texts: list[str], choice: Choice, threads: int
) -> tuple[tuple[bytes, ...], list[list[int]], list[list[int]]]:
    """Return the target's vocabulary, and the tokens of prompts and of its answers."""
    with screen.step(f"Loading {arguments.target}"):
        target = LocalModel(arguments.target, threads=threads)
    try:
        prompts, answers = [], []
        with screen.bar("Answering") as tell:
            for number, text in enumerate(texts):
                prompt = target.prompt([{"role": "user", "content": text}])
                prompts.append(prompt)
                answers.append(write_answer(target, prompt, arguments.tokens, choice))
                tell(number + 1, len(texts))
        return target.vocabulary, prompts, answers
    finally:
        target.close()


def _texts(path: str, most: int | None) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--texts {path} cannot be read: {error}") from error
    texts = [line for line in lines if line.strip()][:most]
    if not texts:
        raise ConfigurationError(f"--texts {path} has no prompt; write one in each line")
    return texts
