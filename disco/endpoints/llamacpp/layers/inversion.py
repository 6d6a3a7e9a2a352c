"""The inversion attack: which tokens a prompt has, from the states behind the device's layers.

The attacker has what the cloud has: the states, and the device's file, since the model is open. A state is decided by
its token and those before it. So the tokens are found one after another: candidates are run through the device's
layers behind the prefix that was found already, and the right one gives the state that was seen, up to rounding.

Candidates come from a table with the state of every token of the vocabulary behind one arbitrary prefix. Another prefix
changes states, mostly in directions that are learned from a few prefixes, and mostly alike for all tokens: what the
prefix at hand changes is known from the tokens that were tried behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.candidate_model import CANDIDATES, CandidateModel

__all__ = ["Inverter", "Recovered", "telling_directions"]

Floats = npt.NDArray[np.float32]

_DIRECTIONS: Final = 128
_SAMPLE: Final = 2048  # tokens that are seen behind several prefixes
_PREFIXES: Final = 3
_PREFIX_TOKENS: Final = 8
_RIDGE: Final = 1e-4
_FIRST: Final = 8  # candidates that are tried at first
_MOST: Final = 1024  # candidates of a token; then the best counts
_SAME: Final = 0.5
"""A candidate whose state is as near is the token. In units of what another prefix changes (root mean square over the
directions): the right token of SmolLM2 comes within 0.2, others come no nearer than 5."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found out about a sequence.

    Attributes:
        ids: the tokens.
        first: the token that came first at each place, before any was tried.
        tried: how many were tried, in all.
    """

    ids: list[int] = field(repr=False)
    first: list[int] = field(repr=False)
    tried: int = 0


def telling_directions(seen: npt.NDArray[np.floating[Any]], count: int) -> Floats:
    """Return directions in which the states of tokens differ much and those of one token behind other prefixes little.

    These are the directions of linear discriminant analysis (Fisher 1936, Rao 1948).

    Args:
        seen: states of the same tokens behind several prefixes, shape (prefixes, tokens, hidden).
        count: how many directions, at most `hidden`.

    Returns:
        Shape (hidden, count). Along each of them a change of prefix changes a state by 1 (root mean square).
    """
    prefixes, tokens, hidden = seen.shape
    seen = seen.astype(np.float64)
    of_token = seen.mean(0)
    by_prefix = (seen - of_token).reshape(-1, hidden)
    by_token = of_token - of_token.mean(0)
    within = by_prefix.T @ by_prefix / (tokens * (prefixes - 1))
    within += _RIDGE * np.trace(within) / hidden * np.eye(hidden)
    between = by_token.T @ by_token / tokens
    values, vectors = np.linalg.eigh(within)
    whitened = vectors / np.sqrt(values)
    _, turned = np.linalg.eigh(whitened.T @ between @ whitened)
    return np.asarray((whitened @ turned[:, ::-1][:, :count]), np.float32)


class Inverter:
    """Finds tokens from states.

    Mutable: the model's cache.

    Args:
        path: the device's part of the model.
        context_tokens: most tokens of a sequence.
        threads: of the computation.
        progress: called with the tokens of the table that are done, and all.

    Raises:
        ModelFileError: the file is not usable, or another part.
        LocalModelError: llama.cpp refused it, or failed.
    """

    def __init__(
        self,
        path: Path,
        *,
        context_tokens: int,
        threads: int,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._model = CandidateModel(
            path, context_tokens=max(context_tokens, _PREFIX_TOKENS + 1), threads=threads
        )
        try:
            self._learn(progress)
        except BaseException:
            self.close()
            raise

    def _learn(self, progress: Callable[[int, int], None]) -> None:
        random = np.random.default_rng(1)
        vocabulary = self._model.vocabulary_tokens
        sample = random.permutation(vocabulary)[:_SAMPLE]
        every = np.arange(vocabulary)
        total, done = _PREFIXES * len(sample) + vocabulary, 0

        def states(ids: npt.NDArray[np.int64], directions: Floats | None) -> Floats:
            nonlocal done
            self._model.restart()
            for token in random.integers(0, vocabulary, _PREFIX_TOKENS):
                self._model.append(int(token))
            found: list[Floats] = []
            for begin in range(0, len(ids), CANDIDATES):
                rows = self._model.states(ids[begin : begin + CANDIDATES])
                found.append(rows.copy() if directions is None else rows @ directions)
                done += len(rows)
                progress(done, total)
            return np.concatenate(found)

        seen = np.stack([states(sample, None) for _ in range(_PREFIXES)])
        self._directions = telling_directions(seen, min(_DIRECTIONS, self._model.hidden))
        self._table = states(every, self._directions)
        self._lengths = (self._table**2).sum(1)

    def recover(
        self,
        states: npt.NDArray[np.floating[Any]],
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Recovered:
        """Find the tokens of a sequence.

        Args:
            states: as the cloud sees them, from the sequence's beginning on, shape (tokens, hidden), without a norm.
            progress: called with the tokens that are done, and all.

        Raises:
            LocalModelError: llama.cpp failed.
        """
        self._model.restart()
        ids: list[int] = []
        first: list[int] = []
        tried = 0
        # What the prefix changes, against the table's; at the beginning of a sequence that is much, and not known.
        shift = np.zeros(self._table.shape[1], np.float32)
        for place, state in enumerate(states.astype(np.float32) @ self._directions):
            token, guess, count, shift = self._next(state, shift)
            self._model.append(token)
            ids.append(token)
            first.append(guess)
            tried += count
            progress(place + 1, len(states))
        return Recovered(ids, first, tried)

    def _next(self, state: Floats, shift: Floats) -> tuple[int, int, int, Floats]:
        """Return the token that gives a state, the first candidate, how many were tried, and the shift."""
        left = np.ones(len(self._table), bool)
        nearest, best, guess, count, known = np.inf, -1, -1, 0, shift
        while count < min(_MOST, len(left)) and nearest > _SAME:
            some = self._candidates(state - shift, left, CANDIDATES if count else _FIRST)
            found = self._model.states(some) @ self._directions
            distances = np.sqrt(((found - state) ** 2).mean(1))
            place = int(distances.argmin())
            guess = int(some[0]) if count == 0 else guess
            left[some] = False
            count += len(some)
            # Tokens like the one that is sought are changed by the prefix as it is.
            alike = distances.argsort()[:4]
            shift = (found[alike] - self._table[some[alike]]).mean(0)
            if distances[place] < nearest:
                nearest, best = float(distances[place]), int(some[place])
                known = found[place] - self._table[best]
        return best, guess, count, known

    def _candidates(self, state: Floats, left: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
        """Return the tokens that are left and whose states in the table are nearest, the nearest first."""
        distances = self._lengths - 2 * (self._table @ state)
        distances[~left] = np.inf
        count = min(count, int(left.sum()))
        some = np.argpartition(distances, count - 1)[:count]
        return np.asarray(some[distances[some].argsort()], np.int64)

    def close(self) -> None:
        """Free the model. Idempotent."""
        self._model.close()
