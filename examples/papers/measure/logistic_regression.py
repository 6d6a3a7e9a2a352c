"""Logistic regression on words: the small tiers of a ladder, in a few lines on scipy."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError

__all__ = ["LogisticRegression"]

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?]")


def _words(text: str, pairs: bool) -> set[str]:  # noqa: FBT001 - private
    words = _WORD.findall(text.lower())
    return {*words, *(map(" ".join, pairwise(words)) if pairs else ())}


class LogisticRegression:
    """A linear model of which words (and pairs of neighbours) a text has, with an L2 penalty.

    A text's features are divided by the square root of their number, so that long texts do not count for more.

    Args:
        texts, labels: of the training; labels are numbers from 0.
        label_count: how many labels there are.
        pairs: pairs of neighbouring words are features, too.
        least: a feature must occur in so many training texts.
        penalty: weight of half the squared weights, against the summed loss of the training texts.

    Raises:
        ConfigurationError: scipy is not installed.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        *,
        label_count: int,
        pairs: bool = False,
        least: int = 1,
        penalty: float = 0.3,
    ) -> None:
        if find_spec("scipy") is None:
            raise ConfigurationError('Training needs the package scipy: pip install "disco-llm[replay]"')
        self._pairs = pairs
        counts = Counter(word for text in texts for word in _words(text, pairs))
        kept = sorted(word for word, count in counts.items() if count >= least)
        self._columns = {word: column for column, word in enumerate(kept)}
        self._weights = np.zeros((len(kept) + 1, label_count))  # the last row is the bias
        self._fit(self._table(texts), np.asarray(labels), penalty)

    def _row(self, text: str) -> NDArray[np.intp]:
        known = [self._columns[word] for word in _words(text, self._pairs) if word in self._columns]
        return np.array(sorted(known), dtype=np.intp)

    def _table(self, texts: Sequence[str]) -> Any:
        sparse = importlib.import_module("scipy.sparse")
        rows = [self._row(text) for text in texts]
        starts = np.cumsum([0, *map(len, rows)])
        values = np.concatenate([np.full(len(row), _scale(row)) for row in rows])
        table = (values, np.concatenate(rows), starts)
        return sparse.csr_matrix(table, shape=(len(rows), len(self._columns)))

    def _fit(self, table: Any, labels: NDArray[np.int64], penalty: float) -> None:
        optimize = importlib.import_module("scipy.optimize")
        shape = self._weights.shape
        right = np.eye(shape[1])[labels]

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            weights = flat.reshape(shape)
            logp = _log_softmax(table @ weights[:-1] + weights[-1])
            error = np.exp(logp) - right
            slope = np.vstack([table.T @ error + penalty * weights[:-1], error.sum(axis=0)])
            return float(-(right * logp).sum() + 0.5 * penalty * (weights[:-1] ** 2).sum()), slope.ravel()

        found = optimize.minimize(
            loss, self._weights.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 300}
        )
        self._weights = found.x.reshape(shape)

    def scores(self, text: str) -> NDArray[np.float64]:
        """Return the log probability of each label, shape (labels,), nats."""
        row = self._row(text)
        return _log_softmax(self._weights[row].sum(axis=0) * _scale(row) + self._weights[-1])

    def flops(self, text: str) -> float:
        """Return the multiplications and additions for one text."""
        return 2.0 * len(self._row(text)) * self._weights.shape[1]

    def __len__(self) -> int:
        return len(self._columns)


def _scale(row: NDArray[np.intp]) -> float:
    return float(1.0 / np.sqrt(max(len(row), 1)))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    highest = logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - highest - np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)))
