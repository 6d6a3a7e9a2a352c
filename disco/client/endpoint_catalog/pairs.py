"""The pairs of a client: its drafter with each server that may verify."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from disco.client.request_options import RequestOptions
from disco.dispatch import Preset
from disco.dispatch.sections import SpeculateSection
from disco.endpoints.contract import Endpoint
from disco.errors import ConfigurationError, nearest
from disco.plan import Power

if TYPE_CHECKING:
    from disco.endpoints.drafter import Drafter
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.endpoints.speculative import SpeculativeEndpoint
    from disco.endpoints.speculative.pairing import Pairing

__all__ = ["Pairs", "Speculate", "drafting_of", "questions"]

Speculate = Literal["auto", "always", "off"]
_CHOICES = ("auto", "always", "off")


class Pairs:
    """Makes the endpoint that takes the server's place. Mutable: `_known`, by the server's URL and the drafter.

    Args:
        speculate: the client's choice.
        local: the client's local endpoint.
    """

    def __init__(self, speculate: Speculate, local: Endpoint | None) -> None:
        if speculate not in _CHOICES:
            hint = nearest(str(speculate), _CHOICES)
            raise ConfigurationError(f"speculate has no value {speculate!r}. {hint}")
        self._speculate = speculate
        self._local = local
        self._known: dict[tuple[str, str], Pairing] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything may be drafted."""
        return self._speculate != "off"

    def check(self, section: SpeculateSection, *, has_server: bool) -> None:
        """Refuse a configuration under which nothing could ever be drafted.

        Raises:
            ConfigurationError: there is no server, or no model that drafts.
        """
        if not self.is_on:
            return
        if not has_server:
            raise ConfigurationError(
                f"speculate={self._speculate!r} drafts for a server that verifies (`disco serve --verify`), but no "
                "server is configured: pass api_key=... and base_url=..., or leave speculate out."
            )
        if section.drafter == "local" and (self._local is None or self._local.drafter() is None):
            has = "no local model is configured" if self._local is None else "the local model cannot draft"
            raise ConfigurationError(
                f"speculate={self._speculate!r} needs a model that drafts, but {has}: pass local=... with the name "
                'or the path of a model that runs in this program, or write drafter = "ngram" in the preset\'s '
                "[speculate]."
            )

    def may_draft(self, server: OpenAIEndpoint, section: SpeculateSection | None) -> bool:
        """Return whether an answer of this server may have to go through a pair."""
        if section is None or not self.is_on:
            return False
        known = self._known.get((server.base_url, section.drafter))
        return known is None or not known.is_refuted

    def pair(self, server: OpenAIEndpoint, section: SpeculateSection) -> SpeculativeEndpoint:
        """Return the pair with this server, as it is known now."""
        from disco.endpoints.speculative import SpeculativeEndpoint  # noqa: PLC0415 - only if it is used
        from disco.endpoints.speculative.pairing import Pairing  # noqa: PLC0415 - as above

        key = server.base_url, section.drafter
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Pairing(self._drafter(section))
        return SpeculativeEndpoint(
            server,
            known,
            window=section.window,
            max_window=section.max_window,
            parallel=section.parallel,
            min_gain=section.min_gain,
            always=self._speculate == "always",
        )

    def _drafter(self, section: SpeculateSection) -> Drafter | None:
        if section.drafter == "local":
            return None if self._local is None else self._local.drafter()
        from disco.endpoints.drafter import NgramDrafter  # noqa: PLC0415 - rarely needed

        return NgramDrafter()

    async def aclose(self) -> None:
        """End every answer of every pair. Idempotent."""
        for pairing in self._known.values():
            await pairing.aclose()


def drafting_of(
    options: RequestOptions, preset: Preset, power: Power | None = None
) -> SpeculateSection | None:
    """Return how an answer to a request is drafted that may be; None: its options or the machine's state forbid it."""
    spares = power is not None and power.spares_device
    return None if options.speculate is False or spares else preset.speculate


def questions(endpoints: Iterable[Endpoint]) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return what is due to be asked of servers beside an answer: whether they verify."""
    pairs = [
        one for one in endpoints if (pairing := getattr(one, "pairing", None)) is not None and pairing.is_due
    ]
    return [cast("SpeculativeEndpoint", pair).ask_quietly for pair in pairs]
