"""A pair of a drafter and a verify server, in the place of that server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from disco.candidate import PromptSize, Reach
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.drafter import Drafter
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.refused.account import Account
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.rounds_run import Verifier
from disco.endpoints.speculative.speculative_attempt import SpeculativeAttempt, VerifierOf
from disco.endpoints.speculative.verifier_client import VerifierClient
from disco.request import Prefix, Request
from disco.speculate.messages import Opening, VerifierFacts
from disco.speculate.windows.answer_windows import window_for

__all__ = ["SpeculativeEndpoint"]

# What the rounds of a verify server serve besides plain text; no more, where the server has no chat either.
_FEATURES: Final = frozenset({"tools", "json_schema", "logprobs", "reasoning", "logit_bias"})
_TEXTS: Final = frozenset({"text", "refusal"})
_UNSERVED_WANTS: Final = frozenset({"logp", "label_scores"})


class SpeculativeEndpoint(Endpoint):
    """A server that verifies, with a drafter for it; under the server's name.

    An object is made for each request and stands for what is known then: whether the server verifies, and whether the
    drafter's tokens mean the same to it. Where not, or where rounds do not serve the request, the server's own attempt
    answers. What lasts is in the `Pairing`.

    Unless `always`, drafting has to pay by what was measured. The first answers find out, at little cost: while the
    server writes alone, drafts are made and not sent. An answer for which they promise too much takes at most as long
    as three rounds more than by the server alone, and the next ones no longer. tests/endpoints/speculative/test_auto.py
    checks that. Where it does not pay, most answers are not even read by the drafter (`Pairing.tries`).

    Args:
        server: the server.
        pairing: what is known about it.
        window: name of the rule for the number of drafted tokens (`speculate.WINDOWS`), or a fixed number of them.
        max_window: most drafted tokens of a round.
        parallel: windows in flight at the same time; 1 drafts and verifies in turn.
        min_gain: the share of the time per token that drafting has to save.
        always: draft whatever is predicted.
        verifier: makes the connection to the verify server; None: over the server's HTTP client.
    """

    place: Literal["server"] = "server"

    def __init__(
        self,
        server: OpenAIEndpoint,
        pairing: Pairing,
        *,
        window: str | int = "optimal",
        max_window: int = 8,
        parallel: int = 2,
        min_gain: float = 0.1,
        always: bool = False,
        verifier: VerifierOf | None = None,
    ) -> None:
        self.name = server.name
        self.server = server
        self.pairing = pairing
        self._drafter = pairing.drafts()
        self._parallel = parallel
        self._always = always
        self._window = window_for(
            window, most=max_window, parallel=parallel, min_gain=None if always else min_gain
        )
        self._verifier_of = verifier or self._client_of
        self._attempts: set[SpeculativeAttempt] = set()

    @property
    def drafts_with(self) -> Drafter | None:
        """The drafter, if an answer may be drafted now."""
        return self._drafter

    @property
    def probed(self) -> Endpoint:
        """What may be probed for how it continues an answer: a verify server is known to."""
        return self if self.pairing.facts is not None else self.server

    async def ask(self) -> VerifierFacts | None:
        """Ask the server what it is, unless that is known; see `Pairing.ask`."""
        return await self.pairing.ask(self.server.client)

    @property
    def reach(self) -> Reach:
        return self.server.reach

    @property
    def has_route(self) -> bool:
        return self.server.has_route

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the server."""
        return self.server.address

    def account(self, extra_headers: Mapping[str, Any] | None = None) -> Account:
        """Return whose account the server's requests are sent for now."""
        return self.server.account(extra_headers)

    async def present_account(self) -> Account | None:
        """As `OpenAIEndpoint.present_account`."""
        return await self.server.present_account()

    async def ask_quietly(self) -> None:
        """Do the same in the background."""
        await self.ask()

    def capabilities(self, model: str | None = None) -> Capabilities:
        able, facts = self.server.capabilities(model), self.pairing.facts
        if facts is None:
            return able
        able = replace(
            able,
            continues=True,
            continues_if_proved=False,
            context_tokens=facts.context_tokens,
            vocabulary=facts.vocabulary,
            limits=True,
        )
        if self.pairing.has_chat is False:
            able = replace(able, features=_FEATURES, logp=False, label_scores=False)
        return able

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> SpeculativeAttempt:
        def plain() -> Any:
            return self.server.open(request, prefix, wants=wants)

        attempt = SpeculativeAttempt(
            name=self.name,
            request=request,
            prefix=prefix,
            pairing=self.pairing,
            ask=self.ask,
            drafter=self._drafter,
            window=self._window,
            always=self._always,
            parallel=self._parallel,
            verifier=self._verifier_of,
            plain=plain,
            may_ask_rounds=wants.isdisjoint(_UNSERVED_WANTS) and _is_served(request),
            on_close=self._attempts.discard,
        )
        self._attempts.add(attempt)
        return attempt

    def _client_of(self, request: Request, opening: Callable[[], Opening]) -> Verifier:
        return VerifierClient(self.server.client, name=self.name, request=request, opening=opening)

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        return await self.server.prompt_size(request, within_s)

    async def warm_up(self) -> None:
        """Find out what the server is, and load the drafter for one that verifies."""
        await self.ask()
        drafter = self.pairing.drafts()
        if drafter is not None and not drafter.ready:
            await drafter.warm_up()
        if self.pairing.facts is None:
            await self.server.warm_up()

    async def aclose(self) -> None:
        """Close every open attempt; the server and what belongs to the pairing are closed by those that made them."""
        for attempt in list(self._attempts):
            await attempt.aclose()


def _is_served(request: Request) -> bool:
    """Return whether rounds serve the request: one answer, in text, to a prompt of texts."""
    params = request.params
    several = params.get("n") not in (None, 1)
    spoken = params.get("audio") is not None or "audio" in (params.get("modalities") or ())
    return not several and not spoken and all(_is_text(message) for message in request.messages)


def _is_text(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return True
    return all(isinstance(part, Mapping) and part.get("type") in _TEXTS for part in content)
