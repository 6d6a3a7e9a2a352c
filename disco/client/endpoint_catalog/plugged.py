"""Endpoints that installed packages add: named by a text such as "command:llm -m qwen", and made by their factory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, get_args

from disco._plugins import ENDPOINTS, find, installed
from disco.candidate import Place, place_of
from disco.errors import ConfigurationError, DiscoError, nearest

if TYPE_CHECKING:
    from disco.endpoints.contract import Endpoint
    from disco.rates import PriceChoice

__all__ = ["EndpointFactory", "Plugin", "as_plugin", "can_be_kind"]

# Two letters at least: one letter is a drive. What stands behind the colon is the package's own matter.
_SPEC = re.compile(r"([A-Za-z][A-Za-z0-9_-]+):(.*)", re.DOTALL)
_OWN: Final = ("hf", "http", "https")


class EndpointFactory(Protocol):
    """A callable that makes an endpoint; an entry point of the group `disco.endpoints` names one."""

    def __call__(self, argument: str, *, name: str) -> Endpoint:
        """Make an endpoint. It opens nothing and asks nobody: `Endpoint.warm_up` is for that.

        Args:
            argument: what the user wrote behind the colon. It may hold a secret: it belongs in no message.
            name: the endpoint's name in plans and records.

        Raises:
            ValueError: the argument is wrong; the message says what to write instead.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """An endpoint that an installed package adds, with a price or a name of its own.

    Where neither is needed, its text alone does: `local="command:llm -m qwen"`, `tiers=["command:llm -m qwen"]`.

    Attributes:
        endpoint: "KIND:ARGUMENT": a kind that a package declares in the entry point group `disco.endpoints`, and what
            that package wants to know. Not in repr, because the argument may hold a secret.
        price: USD per million (input, output) tokens; (0, 0): it costs nothing. None: for an endpoint on the user's own
            machines the energy of its work, for any other the price table's for `model`.
        model: the name of its model for prices and statistics; None: the kind.
        name: its name in route records; None: as for any other endpoint in that place.

    Raises:
        ConfigurationError: the text has another form, or a price is no price.
    """

    endpoint: str = field(repr=False)
    price: PriceChoice | None = None
    model: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.endpoint, str) or _SPEC.fullmatch(self.endpoint) is None:
            raise ConfigurationError(
                'disco.Plugin(endpoint=...) must be "KIND:ARGUMENT" with a kind that an installed package adds, such '
                'as "command:llm -m qwen".'
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ConfigurationError("A plug-in's name is empty or no text. Leave name out, or give it one.")
        from disco.client.endpoint_catalog.tiers import PRICE_FORM, is_price  # noqa: PLC0415 - it imports what imports this

        if self.price is not None and not is_price(self.price):
            raise ConfigurationError(f"{self.kind}: price must be {PRICE_FORM}; not {self.price!r}.")

    @property
    def kind(self) -> str:
        """The part before the colon."""
        return self.endpoint.partition(":")[0]

    def make(self, usual_name: str) -> Endpoint:
        """Make the endpoint.

        Args:
            usual_name: its name where the user gave none.

        Raises:
            ConfigurationError: no package adds such a kind, several do, or the package is at fault. The message names
                the package, and never the argument.
        """
        kind, _, argument = self.endpoint.partition(":")
        found = find(ENDPOINTS, kind)
        if found is None:
            known = [one.name for one in installed(ENDPOINTS)]
            raise ConfigurationError(
                f"No installed package adds a kind of endpoint called {kind!r}. {nearest(kind, known)} `disco plugins` "
                "lists those of the installed packages. A model of Ollama is named by its address: "
                'local="http://localhost:11434/v1#MODEL".'
            )
        from disco.endpoints.contract import Endpoint  # noqa: PLC0415 - only if it is used

        name = self.name or usual_name
        factory: EndpointFactory = found.load()
        try:
            made = factory(argument, name=name)
        except DiscoError as error:
            raise ConfigurationError(f"{found.label}: {error}") from error
        except ValueError as error:
            raise ConfigurationError(
                f"{found.label} refuses what stands behind the colon: {error}"
            ) from error
        except Exception as error:
            # Its text may quote anything, so only its type is told; the traceback has the rest.
            raise ConfigurationError(
                f"{found.label} failed ({type(error).__name__}) before it had made an endpoint. Update that package."
            ) from error
        if not isinstance(made, Endpoint):
            raise ConfigurationError(
                f"{found.label} makes a {type(made).__name__}, which is no disco.endpoints.contract.Endpoint."
            )
        is_called, place = getattr(made, "name", None), getattr(made, "place", None)
        if is_called != name:
            raise ConfigurationError(
                f"{found.label} calls its endpoint {is_called!r}, and was told to call it {name!r}."
            )
        if place not in get_args(Place) or place_of(made.reach) != place:
            raise ConfigurationError(
                f'{found.label}: place must be "device" or "server" and fit reach, not {place!r} with {made.reach!r}.'
            )
        return made


def can_be_kind(name: str) -> bool:
    """Whether users can name a kind of endpoint by this: as a word of two letters or more that is not disco's own."""
    return name not in _OWN and _SPEC.fullmatch(f"{name}:") is not None


def as_plugin(given: object) -> Plugin | None:
    """Return the plug-in that a text or a `Plugin` means; None where it is something else.

    A text is a plug-in's if an installed package adds that kind, or if it cannot be anything else that disco knows: no
    address, no model file, no "hf:".
    """
    if isinstance(given, Plugin):
        return given
    if not isinstance(given, str) or "://" in given:
        return None
    match = _SPEC.fullmatch(given)
    if match is None or not can_be_kind(match[1]):
        return None
    known = any(one.name == match[1] for one in installed(ENDPOINTS))
    is_port = match[2].partition("#")[0].partition("/")[0].isdigit()
    if not known and (is_port or given.lower().endswith(".gguf") or Path(given).exists()):
        return None
    return Plugin(endpoint=given)
