"""Lets the user's model write answers, many at once, and reads the states of its layers while it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.adapter.answers import TOP, Answer
from disco.adapter.model_facts import ModelFacts
from disco.endpoints.llamacpp.layers.graph_reader import GraphReader
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.errors import LocalModelError

__all__ = ["Teacher", "Wish"]

_BATCH: Final = 128  # rows of a prompt computed at once
_UNLIKELY: Final = 14.0  # logits this far below the best are never drawn: e^-14 is less than one in a million


@dataclass(frozen=True, slots=True)
class Wish:
    """An answer to be written: to which prompt, and at which temperature (0: always the most probable token)."""

    prompt: str = field(repr=False)
    temperature: float = 0.0


@dataclass(slots=True)
class _Writing:
    """An answer that a sequence of the context is writing. Mutable."""

    ids: list[int]
    prompt_tokens: int
    temperature: float
    shallow: list[npt.NDArray[np.float16]] = field(default_factory=list)
    final: list[npt.NDArray[np.float16]] = field(default_factory=list)
    tops: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=list)

    def answer(self) -> Answer:
        return Answer(
            ids=np.array(self.ids, np.int32),
            prompt_tokens=self.prompt_tokens,
            temperature=self.temperature,
            shallow=np.concatenate(self.shallow),
            final=np.stack(self.final),
            top_ids=np.stack([ids for ids, _ in self.tops]).astype(np.int32),
            top_shares=np.stack([shares for _, shares in self.tops]).astype(np.float16),
        )


class Teacher(SequenceModel):
    """A whole model whose states are read behind the device's layers and behind the last one. For one thread.

    Args:
        facts: of the model.
        layers: how many layers the device keeps.
        seed: of what is drawn.
        options: as for `SequenceModel`.

    Raises:
        LocalModelError, ConfigurationError: as from `SequenceModel`.
    """

    _grows = False  # all its sequences are in use

    def __init__(
        self,
        facts: ModelFacts,
        *,
        layers: int,
        seed: int,
        **options: Any,
    ) -> None:
        self._facts, self._read = facts, (layers - 1, facts.total_layers - 1)
        self._rng = np.random.default_rng(seed)
        super().__init__(
            facts.path, **{"batch_tokens": _BATCH, "gpu_layers": 0, "keep_loading": lambda: True, **options}
        )
        self._render = Renderer(self, None)

    def _settle(self, params: Any) -> None:
        lib, most = self._lib, self.most_rows
        self._shallow, self._final = (
            GraphReader(lib, layer, most, self._facts.hidden) for layer in self._read
        )
        one, other = self._shallow.callback, self._final.callback

        def on_tensor(tensor: int, ask: bool, data: object) -> bool:  # noqa: FBT001 - llama.cpp calls it
            first, second = one(tensor, ask, data), other(tensor, ask, data)
            return bool((first or second) if ask else (first and second))

        self._callback = lib.ggml_backend_sched_eval_callback(on_tensor)  # must outlive the context
        params.cb_eval = self._callback

    def write(
        self, wishes: Iterable[Wish], *, most_tokens: int, keep_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Answer]:
        """Write answers in all sequences at once, and yield each when it is complete.

        Args:
            wishes: a new one is taken whenever a sequence is free.
            most_tokens: an answer's length; a longer one ends there.
            keep_on: called before each pass; once it returns False, what is complete was yielded, and the rest is lost.

        Raises:
            LocalModelError: llama.cpp failed, or a state is no finite number of 16 bits.
        """
        waiting = iter(wishes)
        writing: list[_Writing | None] = [None] * self.slots
        while keep_on():
            for slot in range(self.slots):
                while writing[slot] is None and (wish := next(waiting, None)) is not None:
                    writing[slot] = self._begin(slot, wish, most_tokens)
            under_way = [(slot, one) for slot, one in enumerate(writing) if one is not None]
            if not under_way:
                return
            for run in _consecutive(under_way):
                self._step(run)
            for slot, one in under_way:
                if len(one.ids) - one.prompt_tokens >= most_tokens or self.ends_answer(one.ids[-1]):
                    writing[slot] = None
                    yield one.answer()

    def _begin(self, slot: int, wish: Wish, most_tokens: int) -> _Writing | None:
        """Read a prompt and draw the first token; None where the prompt is too long for the context."""
        text = self._render([{"role": "user", "content": wish.prompt}]).text
        ids = self.tokenize(text, special=True)
        if self.wants_bos and ids[:1] != [self.bos_token]:
            ids.insert(0, self.bos_token)
        if len(ids) + most_tokens > self.context_tokens:
            return None
        one = _Writing(ids, len(ids), wish.temperature)
        self.cut(slot, 0)
        for at in range(0, len(ids), _BATCH):
            part = ids[at : at + _BATCH]
            self._compute([Rows(slot, at, part, len(part) - 1)])
            one.shallow.append(_checked(self._shallow.rows))
        self._draw(one, len(part) - 1, 0)
        return one

    def _step(self, run: list[tuple[int, _Writing]]) -> None:
        self._compute([Rows(slot, len(one.ids) - 1, one.ids[-1:]) for slot, one in run])
        states = _checked(self._shallow.rows)
        for place, (_, one) in enumerate(run):
            one.shallow.append(states[place : place + 1])
            self._draw(one, place, place)

    def _compute(self, parts: list[Rows]) -> None:
        self._shallow.begin()
        self._final.begin()
        self.compute(parts)

    def _draw(self, one: _Writing, place: int, row: int) -> None:
        """Choose the next token from the logits of a place in the batch; `row`: its place among those with logits."""
        logits = self.logits(place)
        best = logits.max()
        likely = np.flatnonzero(logits > best - _UNLIKELY * max(1.0, one.temperature))
        if len(likely) < TOP:
            likely = np.argpartition(logits, -TOP)[-TOP:]
        heights = logits[likely] - best
        shares = np.exp(heights)
        order = np.argsort(-shares, kind="stable")[:TOP]
        one.tops.append((likely[order], shares[order] / shares.sum()))
        state = self._final.rows[row]
        scale = 1.0 / np.sqrt(np.mean(np.square(state, dtype=np.float64)) + self._facts.epsilon)
        one.final.append(_checked(state * np.float32(scale) * self._facts.output_norm))
        if one.temperature == 0:
            chosen = int(likely[order[0]])
        else:
            chances = np.exp(heights / one.temperature, dtype=np.float64)
            chosen = int(self._rng.choice(likely, p=chances / chances.sum()))
        one.ids.append(chosen)


def _consecutive(under_way: list[tuple[int, _Writing]]) -> Iterator[list[tuple[int, _Writing]]]:
    """Yield runs of sequences that follow each other: llama.cpp makes one pass of each."""
    run: list[tuple[int, _Writing]] = []
    for slot, one in under_way:
        if run and slot != run[-1][0] + 1:
            yield run
            run = []
        run.append((slot, one))
    if run:
        yield run


def _checked(states: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        small = states.astype(np.float16)
    if not np.isfinite(small).all():
        raise LocalModelError(
            "A state of this model does not fit numbers of 16 bits, so no adapter can be trained."
        )
    return small
