"""The command `python -m papers.measure quality`: from its arguments to the trace and its tables."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import ConfigurationError
from papers.measure.mixed_answers import check_continues
from papers.measure.quality_measurement import Cast, measure_prompt
from papers.measure.quality_prompts import QualityPrompt, own_prompts, question_prompts
from papers.measure.time_left import TimeLeft
from papers.measure.unfinished import Unfinished, remove_finished
from papers.model_argument import model_name, open_model
from papers.quality.quality_figures import quality_figures
from papers.quality.quality_tables import quality_tables
from papers.quality.quality_trace import MixedRow, QualityTrace, save_quality_trace
from papers.terminal import Screen, check_output, write

__all__ = ["run_quality", "settings_of"]


async def run_quality(screen: Screen, arguments: argparse.Namespace) -> int:
    """Let the models answer, score the answers, write the trace and print the tables; return the exit status."""
    check_output(arguments, "out", "json")
    prompts, up, down = _checked(arguments)
    out = Path(arguments.out)
    part = out.with_name(f"{out.name}.part")
    with Unfinished(part, settings_of(arguments, prompts)) as so_far:
        if len(so_far.rows) < len(prompts):
            await _measure(prompts, so_far, arguments, up, down)
        rows = [MixedRow.of_cells(cells) for found in so_far.rows[: len(prompts)] for cells in found]
    trace = _trace(arguments, rows)
    save_quality_trace(trace, out)
    remove_finished(part, len(prompts))
    figures = quality_figures(trace)
    for table in quality_tables(trace, figures):
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
    screen.line(f"Trace: {out}")
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(figures.to_dict(), indent=2, ensure_ascii=False), "Figures")
    return 0


def _checked(arguments: argparse.Namespace) -> tuple[list[QualityPrompt], list[int], list[int]]:
    """Return the prompts and the cuts both ways. Raises ConfigurationError where an argument is wrong."""
    for option in ("tokens", "questions"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{option} must be at least 1, not {value}")
    cuts, assist = _cuts("cuts", arguments), _cuts("assist", arguments)
    models = [arguments.small, arguments.large, *arguments.also]
    names = [model_name(one) for one in models]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two of the models have one name ({', '.join(names)}): name different ones")
    if arguments.texts is not None:
        prompts = question_prompts(arguments.texts, arguments.answers, arguments.paragraphs)
    else:
        if arguments.judge is None:
            raise ConfigurationError(
                "--prompts have no known answers, so --judge must name the model that judges"
            )
        prompts = own_prompts(arguments.prompts)
    return prompts[: arguments.questions], cuts, sorted({*cuts, *assist})


def _cuts(option: str, arguments: argparse.Namespace) -> list[int]:
    given = getattr(arguments, option)
    try:
        cuts = sorted({int(cell) for cell in given.split(",") if cell.strip()})
    except ValueError:
        raise ConfigurationError(
            f"--{option} must be numbers with commas between them, as in 4,16,64"
        ) from None
    if cuts and not 1 <= cuts[0] <= cuts[-1] < arguments.tokens:
        raise ConfigurationError(f"--{option} must be between 1 and {arguments.tokens - 1} (--tokens less 1)")
    return cuts


async def _measure(
    prompts: Sequence[QualityPrompt],
    so_far: Unfinished,
    arguments: argparse.Namespace,
    up: Sequence[int],
    down: Sequence[int],
) -> None:
    """Measure the prompts that have no rows yet."""
    opened: list[Endpoint] = []

    def model(text: str) -> Endpoint:
        opened.append(open_model(text, threads=arguments.threads))
        return opened[-1]

    try:
        cast = _cast(arguments, model)
        for endpoint in opened:
            await endpoint.warm_up()
        for target, cuts in ((cast.large, up), (cast.small, down)):
            if cuts:
                check_continues(target)
        already = len(so_far.rows)
        left = TimeLeft("quality", len(prompts), already=already)
        for number in range(already, len(prompts)):
            rows = await measure_prompt(
                cast, prompts[number], number, tokens=arguments.tokens, up=up, down=down
            )
            so_far.add([row.cells() for row in rows])
            left.after(number + 1)
    finally:
        for endpoint in opened:
            await endpoint.aclose()


def _cast(arguments: argparse.Namespace, model: Any) -> Cast:
    small, large = model(arguments.small), model(arguments.large)
    also = tuple(model(one) for one in arguments.also)
    judge, told = None, None
    if arguments.judge is not None:
        judge = model(arguments.judge)
        if isinstance(judge, EngineEndpoint) and arguments.texts is not None:
            told = model(arguments.judge)
    # A server gives no log probability of a text that it did not write, so it is asked what it prefers.
    preferences = arguments.preferences or (judge is not None and not isinstance(judge, EngineEndpoint))
    return Cast(small, large, also, judge, told, preferences)


def settings_of(arguments: argparse.Namespace, prompts: Sequence[QualityPrompt]) -> dict[str, object]:
    """Return everything that a row depends on, of texts only a hash: only rows with the same settings are resumed."""
    texts = arguments.texts or arguments.prompts
    return {
        "texts": hashlib.sha256(Path(texts).read_bytes()).hexdigest(),
        # Without the questions themselves: the first one's messages show how prompts are made.
        "prompt": hashlib.sha256(json.dumps(prompts[0].messages).encode()).hexdigest(),
        "models": [arguments.small, arguments.large, *arguments.also],
        "judge": arguments.judge,
        "preferences": arguments.preferences,
        "tokens": arguments.tokens,
        "cuts": [arguments.cuts, arguments.assist],
        "paragraphs": arguments.paragraphs,
    }


def _trace(arguments: argparse.Namespace, rows: Sequence[MixedRow]) -> QualityTrace:
    if arguments.texts is None:
        how = "the user's own prompts"
    elif arguments.answers == "short":
        how = "instruction and 5 invented examples, then text and question; answers on one line"
    else:
        how = "text and question; answers in full sentences"
    texts = arguments.texts or arguments.prompts
    return QualityTrace(
        name=arguments.name or Path(texts).name,
        source=arguments.source,
        licence=arguments.licence,
        small=model_name(arguments.small),
        large=model_name(arguments.large),
        also=tuple(map(model_name, arguments.also)),
        judge="" if arguments.judge is None else model_name(arguments.judge),
        tokens=arguments.tokens,
        rows=tuple(rows),
        notes={
            "prompt": how + ("" if arguments.paragraphs == 1 else f"; {arguments.paragraphs} paragraphs"),
            "sampling": "greedy",
        },
    )
