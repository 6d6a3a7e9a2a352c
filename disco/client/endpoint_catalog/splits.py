"""Models cut in two, among the tiers of a client."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from disco.client.endpoint_catalog.tiers import PRICE_FORM, is_price
from disco.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from disco.endpoints.host.host_split import HostSplit
    from disco.rates import PriceChoice

__all__ = ["Split"]

_WIRES = ("float16", "float32")
_CHUNKS = ("makespan", "equation3", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A model cut in two with `disco split cut`: first layers and head here, the others on `disco serve --layers`.

    It answers as any other tier. Its prompt's tokens stay on this machine, but the hidden states that leave it tell
    nearly all of them (docs/concepts/split.md), so a request that must stay here is never sent to it.

    Attributes:
        device: the device's part, `NAME.device.gguf`; `NAME.head.gguf` is beside it.
        base_url: of the layer server, such as `http://box:8000/v1`. Not in repr, because it may contain a password.
        api_key: its key; None: it checks none. Not in repr.
        reach: "own": the layer server is a machine of the user's own; "any": another's.
        price: USD per million (input, output) tokens; None: the energy of its weights.
        wire: "float16" halves what is sent and rounds it; with "float32" the answer is the whole model's.
        chunks: how a prompt is cut: "makespan" (the least time by what was measured), "equation3" (the paper's), "all"
            (in one), or a number of tokens.
        window: the rule for the number of drafted tokens, or a fixed number; 0 drafts nothing. Without a trained
            adapter in `device`, nothing is drafted.
        max_window: most drafted tokens of a round.
        branches: tokens behind which is drafted ahead while a draft is verified; 0: none.
        context_tokens: prompt and answer together; None: what the model was trained with, as far as the free
            memory allows.
        threads: of the device's part.
        slots: answers whose caches are kept at the same time.
        name: its name in route records; by default "tier-1", "tier-2", ... in their order.

    Raises:
        ConfigurationError: a value is missing or invalid.
    """

    device: str | os.PathLike[str]
    base_url: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    reach: Literal["own", "any"] = "own"
    price: PriceChoice | None = None
    wire: Literal["float16", "float32"] = "float16"
    chunks: Literal["makespan", "equation3", "all"] | int = "makespan"
    window: str | int = "optimal"
    max_window: int = 8
    branches: int = 2
    context_tokens: int | None = None
    threads: int = 1
    slots: int = 2
    name: str | None = None

    def __post_init__(self) -> None:
        what = "A split" if self.name is None else f"The split {self.name!r}"
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ConfigurationError(
                "A split's name is empty or no text. Leave name out, or give the split a name."
            )
        if not (self.api_key is None or (isinstance(self.api_key, str) and self.api_key)):
            raise ConfigurationError(
                f"{what}: api_key is empty or no text. Leave it out where the server checks none."
            )
        if self.price is not None and not is_price(self.price):
            raise ConfigurationError(f"{what}: price must be {PRICE_FORM}; not {self.price!r}.")
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{what}: base_url must begin with http:// or https://, such as http://box:8000/v1."
            )
        if self.reach not in ("own", "any"):
            raise ConfigurationError(
                f'{what}: reach must be "own" or "any", not {self.reach!r}. Nothing that leaves this machine has the '
                'reach "device".'
            )
        if self.wire not in _WIRES:
            raise ConfigurationError(
                f"{what}: wire has no value {self.wire!r}. {nearest(str(self.wire), _WIRES)}"
            )
        if isinstance(self.chunks, str) and self.chunks not in _CHUNKS:
            hint = nearest(self.chunks, _CHUNKS)
            raise ConfigurationError(f"{what}: chunks has no value {self.chunks!r}. {hint}")
        is_number = type(self.window) is int and self.window >= 0
        if not (is_number or isinstance(self.window, str)):
            raise ConfigurationError(
                f"{what}: window must be the name of a rule or a whole number from 0 on, not {self.window!r}."
            )
        if isinstance(self.window, str) and self.window not in (rules := _rules()):
            raise ConfigurationError(
                f"{what}: window has no value {self.window!r}. {nearest(self.window, rules)}"
            )
        if type(self.branches) is not int or self.branches < 0:
            raise ConfigurationError(
                f"{what}: branches must be a whole number from 0 on, not {self.branches!r}."
            )
        numbers = {"max_window": self.max_window, "threads": self.threads, "slots": self.slots}
        numbers |= {"chunks": self.chunks} if isinstance(self.chunks, int) else {}
        numbers |= {} if self.context_tokens is None else {"context_tokens": self.context_tokens}
        for option, value in numbers.items():
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{what}: {option} must be a whole number from 1 on, not {value!r}.")

    def endpoint(self, name: str) -> HostSplit:
        """Make the endpoint.

        Args:
            name: the endpoint's name in records.

        Raises:
            ConfigurationError: a package is missing, or there is no such window.
            ModelFileError: a file is missing or not usable, or the two are not of one cut.
        """
        from disco.endpoints.host.host_split import HostSplit  # noqa: PLC0415 - only if it is used
        from disco.endpoints.split.layer_link import LayerServer  # noqa: PLC0415 - as above
        from disco.endpoints.split.split_options import SplitOptions  # noqa: PLC0415 - as above
        from disco.endpoints.split.wire import Dtype  # noqa: PLC0415 - as above

        dtype = Dtype.F32 if self.wire == "float32" else Dtype.F16
        return HostSplit(
            Path(self.device).expanduser(),
            LayerServer(base_url=self.base_url, api_key=self.api_key, dtype=dtype),
            SplitOptions(
                chunks=self.chunks,
                window=self.window,
                max_window=self.max_window,
                branches=self.branches,
            ),
            name=name,
            reach=self.reach,
            slots=self.slots,
            context_tokens=self.context_tokens,
            threads=self.threads,
        )


def _rules() -> tuple[str, ...]:
    from disco.dispatch.sections import Rule  # noqa: PLC0415 - numpy comes with it

    return get_args(Rule)
