"""Reports answers to logs, OpenTelemetry and callbacks. An error in one of them does not affect the answer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from disco.errors import ConfigurationError
from disco.session.records.route_record import RouteRecord
from disco.telemetry.log_lines import is_logged, log_answer, log_callback
from disco.telemetry.record_facts import RequestFacts, facts

if TYPE_CHECKING:
    from disco.telemetry.otel_setup import Traced

__all__ = ["AnswerReport", "OnRoute", "Reporter"]

OnRoute = Callable[[RouteRecord], object] | Sequence[Callable[[RouteRecord], object]]
"""A callable that gets every route record, or several, called in this order."""

T = TypeVar("T")


class Reporter:
    """Reports the answers of one client and its copies.

    Args:
        on_route: called with the route record of every finished answer.

    Raises:
        ConfigurationError: a callback cannot be called, or is a coroutine function.
    """

    def __init__(self, on_route: OnRoute | None = None) -> None:
        self.callbacks = _callbacks(on_route)

    @property
    def is_heard(self) -> bool:
        """Whether anything may listen to an answer that begins now."""
        return bool(self.callbacks) or "opentelemetry" in sys.modules or is_logged()

    def begin(self, asked: RequestFacts) -> AnswerReport:
        """Begin the report of an answer. Starts its span if the application has set up OpenTelemetry.

        Args:
            asked: what is known of the request.
        """
        traced = None
        # An application that has set up OpenTelemetry has imported it. Otherwise nothing is imported.
        if "opentelemetry" in sys.modules:
            traced = _guarded("OpenTelemetry", _start, asked)
        return AnswerReport(asked, self.callbacks, traced)


class AnswerReport:
    """The report of one answer. Its span is a child of the span that is current at the request.

    Args:
        asked: what is known of the request.
        callbacks: each is called with the route record.
        traced: the answer's span; None: OpenTelemetry is not set up.
    """

    __slots__ = ("_asked", "_callbacks", "_traced")

    def __init__(
        self, asked: RequestFacts, callbacks: Sequence[Callable[[RouteRecord], object]], traced: Traced | None
    ) -> None:
        self._asked = asked
        self._callbacks = callbacks
        self._traced = traced

    def current(self) -> AbstractContextManager[object]:
        """Make the answer's span the current one, for tasks that are started within."""
        return _NOTHING if self._traced is None else self._traced.current()

    @property
    def listens(self) -> bool:
        """Whether the end of the answer is reported at all."""
        return self._traced is not None or bool(self._callbacks) or is_logged()

    def finish(self, route: RouteRecord, error: Exception | None) -> None:
        """Report that the answer is complete and charged, or has failed with `error`. Never raises.

        Args:
            route: the answer's record.
            error: what the caller gets in place of the answer; None: nothing went wrong.
        """
        if self._traced is not None or is_logged():
            row = facts(route, self._asked, error)
            _guarded("Logging", log_answer, route, row)
            if self._traced is not None:
                _guarded("OpenTelemetry", self._traced.finish, route, row)
        for callback in self._callbacks:
            _guarded(f"on_route callback {_name(callback)}", callback, route)


_NOTHING: AbstractContextManager[object] = nullcontext()


def _start(asked: RequestFacts) -> Traced | None:
    from disco.telemetry.otel_setup import start  # noqa: PLC0415 - only with OpenTelemetry

    return start(asked)


def _guarded(name: str, function: Callable[..., T], *arguments: object) -> T | None:
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - no error here may affect the answer
        log_callback(name, error)
        return None


def _callbacks(given: OnRoute | None) -> tuple[Callable[[RouteRecord], object], ...]:
    if given is None:
        return ()
    callbacks = tuple(given) if isinstance(given, Sequence) else (given,)
    for callback in callbacks:
        if not callable(callback):
            raise ConfigurationError(
                "on_route takes a callable, or a sequence of callables, each called with a route record; "
                f"got {type(callback).__name__}."
            )
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            getattr(callback, "__call__", None)  # noqa: B004 - reads the method, no test for callability
        ):
            raise ConfigurationError(
                f"on_route callback {_name(callback)} is a coroutine function, which is never awaited. Make it an "
                "ordinary function that passes the record to a queue or a task of yours."
            )
    return callbacks


def _name(callback: object) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))
