"""What a server refuses until a person does something: its key, its account, a model. Told once, and mended at once.

Other endpoints answer in its place, which hides the fault, as does an answer to a prompt that was cut. So each is told
once, with the remedy, by `disco.notices`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from disco.dispatch.breakers.circuit_breaker import REFUSED
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.contract import Endpoint
from disco.errors import FailureKind, nearest, shown
from disco.notices import warn

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.catalog import CatalogEntry
    from disco.dispatch.breakers.endpoint_health import Health, HealthWatch
    from disco.session.machine import Session

__all__ = ["Refusals"]

_LIST_WITHIN_S: Final = 5.0  # time for a server to list its models
_LISTED: Final = 8  # a longer list is not told whole
_MOST_TOLD: Final = 256
_INSTEAD: Final = (
    "Other endpoints, if any, answer in its place; it is asked again in 5 minutes, then ever more rarely."
)


class Refusals:
    """Those that a client and its copies have met.

    Mutable: `_told`, those that were told; `_asking`, the accounts whose keys are asked for now.
    """

    def __init__(self, health: Callable[[], Health], host: BackgroundTasks) -> None:
        self._health = health
        self._host = host
        self._told: dict[Hashable, None] = {}
        self._asking: set[Hashable] = set()

    def after(
        self, session: Session, watch: HealthWatch, endpoints: Mapping[str, Endpoint], model: str
    ) -> None:
        """Tell what an answer met that nobody would see otherwise. Call it from a background task.

        Args:
            session: the closed session.
            watch: the request's.
            endpoints: by name.
            model: the model that the request named.
        """
        for state in session.attempts:
            if state.failure not in REFUSED and state.cut_prompt is None:
                continue
            endpoint, keys = endpoints[state.candidate.name], watch.keys[state.candidate.name]
            if state.cut_prompt is not None:
                self.after_cut(endpoint, keys.model, *state.cut_prompt)
            elif state.failure is FailureKind.ACCOUNT:
                self._tell(keys.account, partial(_account_text, endpoint))
            elif self._host.is_open and self._is_news(keys.model):
                asked = str(keys.model.model or model)
                self._host.start_soon(self._tell_of_model, endpoint, asked)

    def after_cut(self, endpoint: Endpoint, model: Hashable, read: int, sent: int) -> None:
        """Tell that a server has read so many tokens of a prompt that has at least so many; see `cut_prompt`."""
        self._tell(("cut", model), partial(_cut_text, endpoint, read, sent))

    def after_warm_up(self, members: Iterable[CatalogEntry], model: str | None) -> None:
        """Tell what the servers' lists of models have shown, where they were asked for them.

        Args:
            members: those that were warmed up.
            model: the server's model that will be asked for; None: it is not known.
        """
        for member in members:
            server: Any = _server(member.endpoint)
            asked = member.as_asked(model or "")
            if getattr(server, "refuses_key", False):
                self._tell((asked.identity, asked.account), partial(_account_text, member.endpoint))
            names = getattr(server, "listed", ())
            if names and asked.model and not _is_listed(asked.model, names):
                text = partial(_model_text, member.endpoint, asked.model, names)
                self._tell((asked.identity, asked.account, asked.model), text)

    def look_again(self, members: Iterable[CatalogEntry], watch: HealthWatch, now: float) -> None:
        """End the cool-down of accounts whose key has changed, where a function makes keys: it is asked beside answers.

        A key that the application sets itself needs none of this: it is another account.
        """
        for member in members:
            key = watch.keys[member.name].account
            breaker = self._health().find(key)
            present = getattr(member.endpoint, "present_account", None)
            if breaker is None or present is None or key in self._asking or breaker.state(now) == "closed":
                continue
            self._asking.add(key)
            self._host.start_soon(self._look, key, breaker.account, present)

    async def _look(self, key: Hashable, refused: Hashable, present: Callable[[], Any]) -> None:
        try:
            account = await present()
            if account is not None and refused is not None and account != refused:
                self._health().forget(key)
        except Exception:  # noqa: BLE001, S110 - the application's function: a request will raise what is wrong
            pass
        finally:
            self._asking.discard(key)

    async def _tell_of_model(self, endpoint: Endpoint, model: str) -> None:
        names: tuple[str, ...] = ()
        try:
            list_models = getattr(_server(endpoint), "list_models", None)
            with anyio.move_on_after(_LIST_WITHIN_S):
                names = () if list_models is None else await list_models()
        finally:  # also where the client is closed meanwhile
            warn(_model_text(endpoint, model, names))

    def _is_news(self, key: Hashable) -> bool:
        if key in self._told:
            return False
        while len(self._told) >= _MOST_TOLD:
            del self._told[next(iter(self._told))]
        self._told[key] = None
        return True

    def _tell(self, key: Hashable, text: Callable[[], str]) -> None:
        if self._is_news(key):
            warn(text())


def _server(endpoint: Endpoint) -> Any:
    return getattr(endpoint, "server", endpoint)  # of a pair, its server


def _is_listed(model: str, names: tuple[str, ...]) -> bool:
    from disco.endpoints.local_server.server_info import the_model  # noqa: PLC0415 - only where there are servers

    # OpenRouter's variants, such as ":nitro", are in no list.
    return the_model(model, names) is not None or the_model(model.partition(":")[0], names) is not None


def _account_text(endpoint: Endpoint) -> str:
    return (
        f"{_shown(endpoint)} refuses its key, or its account has no credit. {_INSTEAD} Check api_key, base_url and the "
        "account; `disco doctor` looks closer."
    )


def _cut_text(endpoint: Endpoint, read: int, sent: int) -> str:
    return (
        f"{_shown(endpoint)} cuts prompts without saying so: it has read {read:,} tokens of at least {sent:,}. Raise "
        "its context (of Ollama: OLLAMA_CONTEXT_LENGTH), shorten the prompt, or add an endpoint with a longer one."
    )


def _model_text(endpoint: Endpoint, model: str, names: tuple[str, ...]) -> str:
    hint = nearest(model, names) if names else ""
    if hint.startswith("Known") and len(names) > _LISTED:
        hint = ""
    said = f"{_shown(endpoint)} has no model {shown(model)}, or not for this key."
    return " ".join(part for part in (said, hint, _INSTEAD, "Correct model=...") if part)


def _shown(endpoint: Endpoint) -> str:
    address = getattr(endpoint, "address", None)
    host = f" ({address[0]})" if isinstance(address, tuple) else ""
    return f"Endpoint {endpoint.name!r}{host}"
