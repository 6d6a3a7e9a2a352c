"""The models that a server offers: by which name callers ask for each, and which client answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disco.client import AsyncDisco
from disco.endpoints.host import HostEndpoint
from disco.errors import ConfigurationError, nearest, shown
from disco.server.api_errors import Refusal

__all__ = ["NamedModel", "NamedModels", "no_such_model"]

_LONGEST_NAME = 200  # characters
_LONGEST_ASKED = 1000  # of a caller's; it is kept in records, statistics and the state file


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One model.

    Attributes:
        name: what callers write as `model`.
        client: answers.
        model: the model that the client is asked for, which is what its server calls it.
    """

    name: str
    client: AsyncDisco
    model: str


class NamedModels:
    """The models of one server: a few with names, or all that one client's server has.

    Args:
        models: those with names; each name once.
        default: the name that a request means which names none; None: such a request is refused.
        client: answers in place of `models`, whatever name a request has; None: there is none.

    Attributes:
        clients: every client, each once, in the order of the models.

    Raises:
        ConfigurationError: a name is given twice, is too long or is not one line of text, or `default` is no name.
    """

    def __init__(
        self,
        models: Sequence[NamedModel] = (),
        *,
        default: str | None = None,
        client: AsyncDisco | None = None,
    ) -> None:
        self._by_name = {model.name: model for model in models}
        self.default = default
        self._client = client
        clients = [model.client for model in models] if client is None else [client]
        self.clients: tuple[AsyncDisco, ...] = tuple(dict.fromkeys(clients))
        if len(self._by_name) != len(models):
            raise ConfigurationError("Two models have the same name. Give one of them another name.")
        for name in self._by_name:
            if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
                raise ConfigurationError(
                    f"{shown(name)} is no name of a model: it must be one line of 1 to {_LONGEST_NAME} characters."
                )
        if default is not None and default not in self._by_name:
            raise ConfigurationError(
                f"default names the model {default!r}, and there is none. {nearest(default, self._by_name)}"
            )

    @classmethod
    def of(cls, given: AsyncDisco | NamedModels | None) -> NamedModels:
        """Return the models of what `make_app` is given."""
        return given if isinstance(given, NamedModels) else cls(client=given)

    @property
    def named(self) -> tuple[NamedModel, ...]:
        """The models with names; empty where one client answers whatever name a request has."""
        return tuple(self._by_name.values())

    @property
    def only_client(self) -> AsyncDisco | None:
        """The client that answers whatever name a request has; None where models have names, or none answers."""
        return self._client

    @property
    def attachable(self) -> HostEndpoint | None:
        """The local model that other programs may attach to: the first for which this process starts a host."""
        local = (client.router.local for client in self.clients)
        return next((endpoint for endpoint in local if isinstance(endpoint, HostEndpoint)), None)

    def budgets_left(self, now: float) -> dict[tuple[str, ...], float]:
        """Return what can be spent now, by the limit's name, in its own unit; where models have names, by these, too.

        Args:
            now: Unix time, s.
        """
        if self._client is not None:
            return {(limit,): left for limit, left in self._client.router.limiter.left(now).items()}
        left: dict[tuple[str, ...], float] = {}
        for model in self.named:
            router = model.client.router
            for limit in router.preset.limits.budgets:
                counter = router.limiter.counter(limit)
                left[model.name, limit.name] = counter.amount(counter.left(now))
        return left

    def find(self, name: object) -> NamedModel:
        """Return the model that a request asks for.

        Args:
            name: the field `model` of the request; None: it has none.

        Raises:
            Refusal: there is no such model here.
        """
        if self._client is not None:
            asked = "" if name is None else str(name)  # a stored prompt names its own
            if len(asked) > _LONGEST_ASKED:
                raise no_such_model(asked)
            return NamedModel(asked[:_LONGEST_NAME], self._client, asked)
        if name is None:
            name = self.default
        if name is None:
            raise Refusal(400, "you must provide a model parameter", param="model")
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            raise no_such_model(str(name), self._by_name)
        return found


def no_such_model(name: str, known: Sequence[str] | dict[str, NamedModel] = ()) -> Refusal:
    """Return the API's refusal of a model that does not exist, with the names that are near."""
    message = f"The model {shown(name)} does not exist here."
    if known:
        message = f"{message} {nearest(name, known)}"
    return Refusal(404, message, param="model", code="model_not_found")
