"""`disco split audit`: what the cloud can read of prompts and answers, measured by reading it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from disco._resources import resource_text
from disco.cli.console import Screen
from disco.cli.model_argument import model_file
from disco.cli.split.audited_split import ANSWER_TOKENS, MOST_TOKENS, AuditedSplit
from disco.cli.split.split_cut import USUAL_LAYERS
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.cut_check import check_cut
from disco.endpoints.llamacpp.layers.inversion import Inverter
from disco.endpoints.llamacpp.layers.layer_files import LayerFile, Part, read_layer_file
from disco.endpoints.llamacpp.model.gguf_files import require_gguf
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp
from disco.errors import ConfigurationError, ModelFileError
from disco.record.text_files import text_of

__all__ = ["TextAudit", "run_audit", "shares"]

_WARM = 0.8
_DEVICE = ".device.gguf"


@dataclass(frozen=True, slots=True)
class TextAudit:
    """What the cloud read of one text.

    Attributes:
        tokens: of the prompt.
        recovered: of these, found from the states that went up.
        first: of these, found without trying any candidate.
        tried: candidates that were run.
        s: how long it took, in seconds.
        answer, answer_read: tokens of a greedy answer; of these, read from the states that the cloud sends.
        drawn, drawn_recovered: tokens of an answer at temperature 0.8 that went up; of these, found like the prompt's.
        text: what was recovered of the prompt.
    """

    tokens: int
    recovered: int
    first: int
    tried: int
    s: float
    answer: int
    answer_read: int
    drawn: int
    drawn_recovered: int
    text: str = field(repr=False)


def run_audit(screen: Screen, arguments: argparse.Namespace) -> int:
    """Attack a split; return the exit status.

    Raises:
        ConfigurationError: an option is not usable, or a package is missing.
        ModelFileError: the model cannot be cut, or a file is not usable.
    """
    require_llama_cpp()
    texts = _texts(arguments.text)
    if arguments.threads is not None and arguments.threads < 1:
        raise ConfigurationError(f"--threads must be at least 1, not {arguments.threads}")
    threads = arguments.threads or max(1, (os.cpu_count() or 2) - 1)
    if arguments.json:
        screen = Screen(sys.stderr)
    with ExitStack() as stack:
        files = _files(screen, stack, arguments)
        known = read_layer_file(files["device"], "device")
        split = stack.enter_context(closing(AuditedSplit(files, threads)))
        all_ids = [split.tokenize(text) for text in texts]
        if not all(all_ids):
            raise ConfigurationError(f"--text {arguments.text} holds no text.")
        if max(map(len, all_ids)) > MOST_TOKENS:
            screen.line(f"Of {max(map(len, all_ids)):,} tokens the first {MOST_TOKENS} are audited.")
        with screen.bar("The attacker looks at every token of the vocabulary once") as so_far:
            context_tokens = min(MOST_TOKENS + ANSWER_TOKENS, known.context_tokens)
            inverter = Inverter(
                files["device"], context_tokens=context_tokens, threads=threads, progress=so_far
            )
            stack.enter_context(closing(inverter))
        audits = list(_audits(screen, split, inverter, [ids[:MOST_TOKENS] for ids in all_ids]))
    _show(screen, known, audits, show=arguments.show)
    if arguments.json:
        print(json.dumps(_to_json(known, audits, show=arguments.show), indent=2))
    return 0


def _texts(file: str | None) -> list[str]:
    if file is None:
        return [text.strip() for text in resource_text("disco.cli.split", "audit_texts.txt").split("\n---\n")]
    text = text_of(file).strip()
    if not text:
        raise ConfigurationError(f"--text {file} holds no text.")
    return [text]


def _files(screen: Screen, stack: ExitStack, arguments: argparse.Namespace) -> dict[Part, Path]:
    """Return the parts that the user named by the device's file, or those of the model, cut into a temporary folder."""
    path = Path(arguments.model).expanduser()
    if path.name.endswith(_DEVICE):
        known = read_layer_file(path, "device")
        if arguments.layers not in (None, known.layers):
            raise ConfigurationError(
                f"{path} has {known.layers} layers, not {arguments.layers}. Leave --layers out, or name the "
                "whole model."
            )
        return {"device": path, **_beside(screen, known)}
    require_gguf()
    with screen.step(f"Finding {arguments.model}"):
        source = model_file(arguments.model)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="disco-audit-")))
    layers = USUAL_LAYERS if arguments.layers is None else arguments.layers
    with screen.bar(f"Cutting {source.name} for this, in bytes") as so_far:
        # In a process of its own first: llama.cpp may abort on a file that it should refuse.
        return cut_model(
            source, layers, folder, progress=so_far, check=lambda files: _checked(screen, source, files)
        )


def _checked(screen: Screen, source: Path, files: Mapping[Part, Path]) -> None:
    with screen.step("Running both sides beside the whole model"):
        check_cut(source, files)


def _beside(screen: Screen, known: LayerFile) -> dict[Part, Path]:
    """Return the other parts where they lie beside the device's and belong to it."""
    found: dict[Part, Path] = {}
    parts: tuple[Part, ...] = ("cloud", "head")
    for part in parts:
        path = known.path.with_name(known.path.name.removesuffix(_DEVICE) + f".{part}.gguf")
        try:
            other = read_layer_file(path, part)
        except ModelFileError:
            other = None
        if other is None or (other.fingerprint, other.layers) != (known.fingerprint, known.layers):
            screen.line(f"There is no {path.name} of the same cut here, so answers are not audited.")
            return {}
        found[part] = path
    return found


def _audits(
    screen: Screen, split: AuditedSplit, inverter: Inverter, prompts: Sequence[Sequence[int]]
) -> Iterator[TextAudit]:
    random = np.random.default_rng(1)
    all_tokens = sum(map(len, prompts))
    with screen.bar("Prompts and answers, in tokens of the prompts") as so_far:
        done = 0
        for ids in prompts:
            began_at = time.perf_counter()
            drawn: list[int] = []
            answer: list[int] = []
            read: list[int] = []
            states = split.prompt_states(ids)
            if split.answers:
                answer, read, _ = split.write(ids, temperature=0.0, random=random)
                drawn, _, states = split.write(ids, temperature=_WARM, random=random)
                drawn = drawn[:-1]  # the state of the last token does not go up
                began_at = time.perf_counter()
            found = inverter.recover(states, partial(_told, so_far, done, all_tokens))
            done += len(ids)
            yield TextAudit(
                tokens=len(ids),
                recovered=_equal(found.ids, ids),
                first=_equal(found.first, ids),
                tried=found.tried,
                s=time.perf_counter() - began_at,
                answer=len(answer),
                answer_read=_equal(read, answer),
                drawn=len(drawn),
                drawn_recovered=_equal(found.ids[len(ids) :], drawn),
                text=split.spell(found.ids[: len(ids)]),
            )


def _told(so_far: Callable[[int, int], None], before: int, whole: int, done: int, _of: int) -> None:
    so_far(min(before + done, whole), whole)


def _equal(found: Sequence[int], wanted: Sequence[int]) -> int:
    return sum(one == other for one, other in zip(found, wanted, strict=False))


def shares(audits: Sequence[TextAudit]) -> dict[str, float | None]:
    """Return the shares of all texts: of prompts, at first guess, of greedy answers, of drawn answers."""

    def share(part: str, whole: str) -> float | None:
        count = sum(getattr(one, whole) for one in audits)
        return sum(getattr(one, part) for one in audits) / count if count else None

    return {
        "recovered": share("recovered", "tokens"),
        "first": share("first", "tokens"),
        "answer_read": share("answer_read", "answer"),
        "drawn_recovered": share("drawn_recovered", "drawn"),
    }


def _show(screen: Screen, known: LayerFile, audits: Sequence[TextAudit], *, show: bool) -> None:
    screen.table(
        "",
        ("text", "tokens", "recovered", "at first guess", "candidates a token", "s"),
        [
            (
                number,
                one.tokens,
                f"{one.recovered / one.tokens:.1%}",
                f"{one.first / one.tokens:.1%}",
                f"{one.tried / (one.tokens + one.drawn):.1f}",
                f"{one.s:.1f}",
            )
            for number, one in enumerate(audits, 1)
        ],
    )
    if show:
        for number, one in enumerate(audits, 1):
            screen.line(f"Recovered of text {number}: {one.text}")
    found = shares(audits)
    tokens, recovered = sum(one.tokens for one in audits), sum(one.recovered for one in audits)
    screen.line(
        f"From the states behind {known.layers} of {known.total_layers} layers the cloud recovers "
        f"{found['recovered']:.1%} of the prompts' tokens ({recovered:,} of {tokens:,}).",
        style="bold",
    )
    if found["answer_read"] is not None:
        screen.line(
            f"With the open model's head it reads {found['answer_read']:.1%} of the tokens of "
            "greedy answers from the states that it computed."
        )
    if found["drawn_recovered"] is not None:
        screen.line(
            f"Of answers at temperature {_WARM} it recovers {found['drawn_recovered']:.1%} of the tokens from what "
            "goes up for them."
        )
    screen.line(
        "So whoever runs the cloud's part can read what you write and what the model answers. Use a server that you "
        "trust."
    )


def _to_json(known: LayerFile, audits: Sequence[TextAudit], *, show: bool) -> dict[str, Any]:
    texts = [{k: v for k, v in asdict(one).items() if show or k != "text"} for one in audits]
    return {"layers": known.layers, "total_layers": known.total_layers, **shares(audits), "texts": texts}
