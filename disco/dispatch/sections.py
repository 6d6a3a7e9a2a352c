"""The preset's sections [limits] and [speculate]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from disco.cost.budget_limiter import Limit
from disco.cost.windows import Period, Window
from disco.dispatch.preset_section import Section
from disco.errors import nearest, shown

__all__ = ["LONGEST_WINDOW", "LimitsSection", "Rule", "SpeculateSection"]

# What each absolute budget counts: its scope and its unit.
_AMOUNTS: Mapping[str, tuple[str, Literal["usd", "tokens"]]] = {
    "usd": ("server", "usd"),
    "server_tokens": ("server", "tokens"),
    "device_tokens": ("device", "tokens"),
}


class LimitsSection(Section):
    """[limits]: hard limits on where a request may run and on what answers may cost.

    Attributes:
        local_only: no prompt and no answer leaves this machine, even when the device fails.
        usd: what all servers together may charge within the time that `per` or `window_s` says, USD, above 0.
        server_tokens: what all servers together may process in that time, tokens of prompts and answers, above 0.
        device_tokens: the same limit for the device.
        per: the calendar period, in UTC, that these three limits hold for: "hour", "day", "week" (from Monday) or
            "month".
        window_s: instead of `per`, a number of seconds: they hold in every span of that length.
        unreported: how to count a server's attempt that ended without usage (mostly a cancelled one): "estimated",
            with the ledger's estimate, or "reserved", with its whole reservation, for a provider that bills cancelled
            answers in full.
        account: what these limits count: the spending of all clients with the same account, in every program that
            has the same state file.
    """

    local_only: bool = False
    usd: float | None = Field(default=None, gt=0.0, le=1e9)
    server_tokens: int | None = Field(default=None, gt=0, le=10**15)
    device_tokens: int | None = Field(default=None, gt=0, le=10**15)
    per: Period | None = None
    window_s: float | None = Field(default=None, ge=0.001, le=1e9)
    unreported: Literal["estimated", "reserved"] = "estimated"
    account: str = Field(default="", max_length=200)

    @field_validator(*_AMOUNTS, "window_s", mode="before")
    @classmethod
    def _is_number(cls, value: object) -> object:
        # What an environment variable gives is a text until the application converts it.
        if isinstance(value, bool | str):
            raise ValueError(f"must be a number, not {shown(value)}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        amounts = [name for name in _AMOUNTS if getattr(self, name) is not None]
        if self.per is not None and self.window_s is not None:
            raise ValueError(
                "per is a calendar period and window_s a span that slides; remove one of the two"
            )
        if amounts and self.window is None:
            raise ValueError(
                f'{amounts[0]} needs the time that it is for: per = "month" (or "hour", "day", "week"), or window_s, '
                "in seconds, for every span of that length"
            )
        if not amounts and self.window is not None:
            given = "window_s" if self.per is None else "per"
            raise ValueError(f"{given} needs an amount as well: one of {', '.join(_AMOUNTS)}")
        if self.account and not amounts:
            raise ValueError(f"account needs an amount as well: one of {', '.join(_AMOUNTS)}")
        if self.local_only and (self.usd or self.server_tokens):
            raise ValueError("local_only forbids every server; remove usd and server_tokens, or local_only")
        return self

    @property
    def window(self) -> Window | None:
        """The time that the absolute budgets are for; None where there is none."""
        return self.window_s if self.per is None else self.per

    @property
    def budgets(self) -> tuple[Limit, ...]:
        """The absolute budgets among the limits."""
        return tuple(
            Limit(name, scope, unit, amount, self.window, self.account)
            for name, (scope, unit) in _AMOUNTS.items()
            if (amount := getattr(self, name)) is not None and self.window is not None
        )


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
