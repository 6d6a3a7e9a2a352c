"""`python -m papers.measure answers`: a local model answers questions; kept is how good and how sure it was."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import ConfigurationError, EndpointFailure
from disco.events import Ended, Usage
from disco.request import Request
from papers.ladder.answer_trace import AnswerRow, AnswerTrace, save_answer_trace
from papers.measure.squad_prompt import EXAMPLES, question_messages
from papers.measure.squad_questions import (
    Question,
    exact_match,
    read_questions,
    token_f1,
    token_recall,
)
from papers.measure.time_left import TimeLeft
from papers.measure.unfinished import Unfinished, remove_finished
from papers.terminal import Screen, check_output

__all__ = ["run_answers", "settings_of"]

_PARAMS: Mapping[str, Any] = {"temperature": 0, "stop": ["\n"]}


async def run_answers(screen: Screen, arguments: argparse.Namespace) -> int:
    """Let the model answer the questions and write the trace; return the exit status."""
    check_output(arguments, "out")
    if arguments.tokens < 1:
        raise ConfigurationError(f"--tokens must be at least 1, not {arguments.tokens}")
    if arguments.questions is not None and arguments.questions < 1:
        raise ConfigurationError(f"--questions must be at least 1, not {arguments.questions}")
    questions = read_questions(arguments.texts)[: arguments.questions]
    out = Path(arguments.out)
    part = out.with_name(f"{out.name}.part")
    with Unfinished(part, settings_of(arguments.texts, arguments.model, arguments.tokens)) as so_far:
        if len(so_far.rows) < len(questions):
            await _answer(questions, so_far, arguments)
        trace = AnswerTrace(
            name=arguments.name or Path(arguments.texts).name,
            source=arguments.source,
            licence=arguments.licence,
            model=arguments.model,
            rows=tuple(AnswerRow.of_cells(cells) for cells in so_far.rows[: len(questions)]),
            notes={
                "prompt": f"instruction, {len(EXAMPLES)} invented examples, then paragraph and question",
                "sampling": f"greedy, at most {arguments.tokens} tokens, one line",
            },
        )
        save_answer_trace(trace, out)
    remove_finished(part, len(questions))
    judged = [row for row in trace.rows if row.logp]
    screen.line(
        f"{len(trace)} answers, {len(trace) - len(judged)} of them empty; F1 {trace.f1.mean():.3f}, "
        f"exact match {trace.exact.mean():.3f}, F1 > 0.3 in {(trace.f1 > 0.3).mean():.3f}, "
        f"{trace.tokens.mean():.1f} tokens on average."
    )
    screen.line(f"Trace: {out}")
    return 0


async def _answer(questions: Sequence[Question], so_far: Unfinished, arguments: argparse.Namespace) -> None:
    """Answer the questions that have no row yet."""
    endpoint = EngineEndpoint(model=arguments.model, threads=arguments.threads)
    try:
        await endpoint.warm_up()
        already = len(so_far.rows)
        left = TimeLeft("answers", len(questions), already=already)
        for number in range(already, len(questions)):
            row = await _row(endpoint, questions[number], arguments.tokens)
            so_far.add(row.cells())
            left.after(number + 1)
    finally:
        await endpoint.aclose()


async def _row(endpoint: EngineEndpoint, question: Question, tokens: int) -> AnswerRow:
    """Return the row of one question. Raises OpenAIError: the model failed, or the prompt does not fit its context."""
    asked = f"Text: {question.paragraph}\n\nQuestion: {question.question}"
    request = Request(question_messages(asked), "local", {**_PARAMS, "max_tokens": tokens})
    answer, logp, finish, usage = "", list[float](), "", Usage()
    try:
        async with endpoint.open(request, wants=frozenset({"logp"})) as attempt:
            async for event in attempt:
                if isinstance(event, list):
                    for delta in event:
                        answer += delta.text
                        logp += delta.logp or ()
                elif isinstance(event, Ended):
                    finish, usage = event.finish_reason, event.usage or attempt.usage
    except EndpointFailure as failure:
        raise failure.error from failure
    return AnswerRow(
        paragraph=question.paragraph_number,
        text_bytes=len(asked.encode()),
        prompt_tokens=usage.prompt_tokens,
        gold_bytes=len(question.answers[0].encode()),
        answer_bytes=len(answer.encode()),
        f1=token_f1(answer, question.answers),
        recall=token_recall(answer, question.answers),
        exact=exact_match(answer, question.answers),
        finish=finish,
        logp=tuple(logp),
    )


def settings_of(texts: str | Path, model: str, tokens: int) -> dict[str, object]:
    """Return everything that an answer depends on: only rows with the same settings are resumed."""
    return {
        "texts": hashlib.sha256(Path(texts).read_bytes()).hexdigest(),
        "model": model,
        "tokens": tokens,
        "prompt": question_messages(""),
        "params": dict(_PARAMS),
    }
