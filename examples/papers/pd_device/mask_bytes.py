"""How many bytes a mask takes: one bit for each token or for each sentence, compressed with gzip.

Which sentences are kept is drawn at random. A selector's choice has no more information than that, so its mask is
rarely longer.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MASK_LENGTHS", "MASK_SHARES", "MaskRow", "mask_rows", "token_bits"]

MASK_SHARES: Final = (0.1, 0.25, 0.5, 0.75)
MASK_LENGTHS: Final = (4_096, 8_192, 32_768)
CHARACTERS_PER_TOKEN: Final = 4.0
POOLED: Final = 7
"""Tokens that stand or fall together where the selector pools over neighbours (SnapKV's kernel)."""

# Deciles of the characters of a sentence in XQuAD-en (1,239 sentences; CC BY-SA 4.0), 0 to 100 %.
_SENTENCE_CHARACTERS: Final = (1, 64, 87, 103, 119, 137, 156, 179, 210, 257, 628)

Bits = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MaskRow:
    """Bytes of the masks of one prompt.

    Attributes:
        prompt_tokens, kept: l and r.
        raw: one bit for each token, not compressed.
        by_sentence: the same, gzip, whole sentences kept.
        pooled: the same, groups of `POOLED` tokens kept.
        single: the same, single tokens kept.
        sentence_bits: one bit for each sentence, gzip.
        kept_text: the kept text itself, gzip not applied, at 4 bytes a token.
    """

    prompt_tokens: int
    kept: float
    raw: int
    by_sentence: int
    pooled: int
    single: int
    sentence_bits: int
    kept_text: int


def mask_rows(seed: int = 0) -> tuple[MaskRow, ...]:
    """Return one row for each prompt length and kept share."""
    return tuple(_row(tokens, kept, seed) for tokens in MASK_LENGTHS for kept in MASK_SHARES)


def _row(prompt_tokens: int, kept: float, seed: int) -> MaskRow:
    rng = np.random.default_rng([seed, prompt_tokens, round(1000 * kept)])
    sentences = _sentences(prompt_tokens, rng)
    chosen = _chosen(sentences, kept, rng)
    groups = np.full(-(-prompt_tokens // POOLED), POOLED)
    return MaskRow(
        prompt_tokens=prompt_tokens,
        kept=kept,
        raw=-(-prompt_tokens // 8),
        by_sentence=_gzipped(token_bits(sentences, chosen)),
        pooled=_gzipped(token_bits(groups, _chosen(groups, kept, rng))[:prompt_tokens]),
        single=_gzipped(rng.random(prompt_tokens) < kept),
        sentence_bits=_gzipped(chosen),
        kept_text=round(CHARACTERS_PER_TOKEN * kept * prompt_tokens),
    )


def token_bits(lengths: NDArray[np.int64], chosen: Bits) -> Bits:
    """Return one bit for each token of units with those lengths: whether its unit is kept."""
    return np.repeat(chosen, lengths)


def _sentences(prompt_tokens: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw sentence lengths, tokens, until the prompt is full; the last one is cut."""
    level = rng.random(prompt_tokens)
    deciles = np.linspace(0, 1, len(_SENTENCE_CHARACTERS))
    characters = np.interp(level, deciles, _SENTENCE_CHARACTERS)
    tokens = np.maximum(np.rint(characters / CHARACTERS_PER_TOKEN), 1).astype(np.int64)
    last = int(np.searchsorted(np.cumsum(tokens), prompt_tokens))
    tokens = tokens[: last + 1]
    tokens[-1] -= int(tokens.sum()) - prompt_tokens
    return tokens


def _chosen(lengths: NDArray[np.int64], kept: float, rng: np.random.Generator) -> Bits:
    """Draw units at random until a share `kept` of the tokens is kept."""
    order = rng.permutation(lengths.size)
    before = np.cumsum(lengths[order]) - lengths[order]
    chosen = np.zeros(lengths.size, dtype=bool)
    chosen[order[before < kept * lengths.sum()]] = True
    return chosen


def _gzipped(bits: Bits) -> int:
    return len(gzip.compress(np.packbits(bits).tobytes(), 9, mtime=0))
