"""What refining costs and saves: its own time, the seconds of prefill saved, and the cache reused over several turns.

    python tests/benchmarks/refine/bench_refine.py --texts xquad.en.json [--model FILE] [--paragraphs 6,12,30]

The texts are in SQuAD's format. Prompts are made of some of their paragraphs, one of which holds the answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from papers.measure.squad_questions import Question, read_questions

from disco.dispatch import estimate_tokens
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.refine import choose, keep_units, lexical_scores, refine, turns_of

KEEP = 0.4
CONVERSATIONS = 60


def content(paragraphs: Sequence[str], question: str) -> dict[str, str]:
    return {"role": "user", "content": "\n\n".join(("Answer from this text.", *paragraphs, question))}


def prompts(questions: Sequence[Question], count: int, draws: int, seed: int) -> list[list[dict[str, str]]]:
    """Return conversations of one message, with `count` paragraphs in random order."""
    rng = np.random.default_rng(seed)
    texts = list(dict.fromkeys(one.paragraph for one in questions))
    made = []
    for number in rng.choice(len(questions), draws, replace=False):
        one = questions[int(number)]
        others = [
            texts[int(place)] for place in rng.permutation(len(texts)) if texts[int(place)] != one.paragraph
        ]
        chosen = others[: count - 1]
        chosen.insert(int(rng.integers(0, count)), one.paragraph)
        made.append([content(chosen, one.question)])
    return made


def own_time(questions: Sequence[Question]) -> None:
    print("\nrefine() itself")
    for count in (6, 30):
        made = prompts(questions, count, 20, seed=1)
        tokens = sum(estimate_tokens(one[0]["content"]) for one in made)
        began_s = time.process_time()
        for one in made:
            refine(one, keep=KEEP)
        spent_s = time.process_time() - began_s
        print(f"  {count:2} paragraphs: {1e9 * spent_s / tokens:,.0f} µs for 1,000 tokens by estimate")


def seconds_saved(questions: Sequence[Question], counts: Sequence[int], model: SequenceModel) -> None:
    print(f"\nprefill, processor seconds on {model.threads} thread(s)")
    render = Renderer(model, None)
    for count in counts:
        (messages,) = prompts(questions, count, 1, seed=count)
        row = []
        for one in (messages, refine(messages, keep=KEEP).messages):
            ids = model.tokenize(render(one).text, special=True)
            model.forget()
            began_s = time.process_time()
            for start in range(0, len(ids), model.batch_tokens):
                piece = ids[start : start + model.batch_tokens]
                model.compute([Rows(0, start, piece, len(piece) - 1)])
            row += [len(ids), time.process_time() - began_s]
        tokens, whole_s, kept, short_s = row
        print(
            f"  {count:2} paragraphs: {tokens:5} tokens {whole_s:5.2f} s, refined {kept:5} tokens {short_s:5.2f} s, "
            f"saved {whole_s - short_s:5.2f} s ({1 - short_s / whole_s:.0%})"
        )


def cache_reused(questions: Sequence[Question], model: SequenceModel) -> None:
    """Conversations of three questions on 12 paragraphs; the reused share is of the prompts of turns 2 and 3."""
    render = Renderer(model, None)
    own = [list(group) for _, group in groupby(questions, key=lambda one: one.paragraph_number)]
    rng = np.random.default_rng(3)
    ways = ("whole", "refined by turn (disco)", "refined anew by the newest question")
    reused = dict.fromkeys(ways, 0)
    read = dict.fromkeys(ways, 0)
    kept = {way: [0, 0, 0] for way in ways}
    several = [group for group in own if len(group) >= 3][:CONVERSATIONS]
    for group in several:
        others = [own[int(place)][0].paragraph for place in rng.permutation(len(own))[:11]]
        texts = [*others[:5], group[0].paragraph, *others[5:]]
        before: dict[str, list[int]] = {way: [] for way in ways}
        messages = [content(texts, group[0].question)]
        for turn in range(3):
            if turn:
                messages.append({"role": "assistant", "content": group[turn - 1].answers[0]})
                messages.append({"role": "user", "content": group[turn].question})
            made = (messages, refine(messages, keep=KEEP).messages, anew(messages, group[turn].question))
            for way, one in zip(ways, made, strict=True):
                ids = model.tokenize(render(one).text, special=True)
                if turn:
                    read[way] += len(ids)
                    reused[way] += shared(before[way], ids)
                before[way] = ids
                kept[way][turn] += group[turn].answers[0] in str(one[0]["content"])
    print(f"\n{len(several)} conversations of three questions on 12 paragraphs")
    for way in ways:
        holds = ", ".join(f"{count / len(several):.2f}" for count in kept[way])
        print(
            f"  {way}: {reused[way] / read[way]:.3f} of the tokens of turns 2 and 3 are in the cache; "
            f"the answer is in the text at turns 1, 2, 3: {holds}; {read[way] / 2 / len(several):,.0f} tokens a prompt"
        )


def anew(messages: list[dict[str, str]], question: str) -> list[dict[str, str]]:
    """Refine the text of the first turn by the newest question: what disco does not do."""
    turns = turns_of(messages)
    units = turns[0].optional()
    scores = lexical_scores([unit.text for unit in units], [(question, 1.0)])
    return list(keep_units(messages, turns, choose([unit.tokens for unit in units], scores, KEEP)).messages)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", required=True, help="questions in SQuAD's JSON format")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--paragraphs", default="6,12,30")
    arguments = parser.parse_args()
    questions = read_questions(arguments.texts)
    own_time(questions)
    model = SequenceModel(
        resolve_model(arguments.model),
        context_tokens=8192,
        threads=1,
        batch_tokens=512,
        gpu_layers=0,
        keep_loading=lambda: True,
    )
    try:
        cache_reused(questions, model)
        seconds_saved(questions, [int(count) for count in arguments.paragraphs.split(",")], model)
    finally:
        model.close()


if __name__ == "__main__":
    main()
