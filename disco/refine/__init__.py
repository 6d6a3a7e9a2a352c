"""Shortens a prompt: whole sentences of long prose are left out. Pure functions; no I/O, no model."""

from disco.refine.content import LEAST_TOKENS, Passage, Turn, turns_of
from disco.refine.lexical import lexical_scores
from disco.refine.mask import decode_mask, encode_mask
from disco.refine.refining import Refined, apply_mask, keep_units, refine
from disco.refine.selectors import SELECTORS, choose, scores_of
from disco.refine.units import UNIT_TOKENS, Unit, split_units

__all__ = [
    "LEAST_TOKENS",
    "SELECTORS",
    "UNIT_TOKENS",
    "Passage",
    "Refined",
    "Turn",
    "Unit",
    "apply_mask",
    "choose",
    "decode_mask",
    "encode_mask",
    "keep_units",
    "lexical_scores",
    "refine",
    "scores_of",
    "split_units",
    "turns_of",
]
