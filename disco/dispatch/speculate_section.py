"""The preset's section [speculate]."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from disco.dispatch.preset_section import Section
from disco.errors import nearest

__all__ = ["LONGEST_WINDOW", "Rule", "SpeculateSection"]

Rule = Literal["optimal", "adaptive", "dynamic", "confidence"]
LONGEST_WINDOW = 64
"""Most drafted tokens of a round (`speculate.messages.LONGEST_DRAFT`)."""


class SpeculateSection(Section):
    """[speculate]: how a model on this machine drafts for a verify server, where the client's `speculate` allows it.

    Attributes:
        window: how many tokens are drafted for a round: a number, or the rule that chooses it. "optimal": by the times
            that were measured. "adaptive": by the trained network of DSD. "dynamic": one more or one less, by how many
            were right. "confidence": until the drafter is unsure.
        max_window: most tokens of a window that a rule may choose, 1 to 64.
        parallel: windows in flight at the same time, 1 to 8. 1: the drafter waits for each verdict. More hide the round
            trip, and cost drafts in vain.
        min_gain: the share of the time per token that drafting has to save under speculate="auto", 0 to below 1.
        drafter: "local": the client's local model; "ngram": copies from the prompt and the answer, without a model.
    """

    window: int | Rule = "optimal"
    max_window: int = Field(default=8, ge=1, le=LONGEST_WINDOW)
    parallel: int = Field(default=2, ge=1, le=8)
    min_gain: float = Field(default=0.1, ge=0.0, lt=1.0)
    drafter: Literal["local", "ngram"] = "local"

    @field_validator("window", mode="before")
    @classmethod
    def _is_a_window(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in get_args(Rule):
                raise ValueError(f"no rule is called {value!r}. {nearest(value, get_args(Rule))}")
        elif not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LONGEST_WINDOW:
            raise ValueError(f"must be 1 to {LONGEST_WINDOW} tokens, or the name of a rule, not {value!r}")
        return value
