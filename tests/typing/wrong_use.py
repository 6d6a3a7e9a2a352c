"""Mistakes that a type checker must find, each on a line that ends in `# wrong`. Never run."""

from __future__ import annotations

from disco import AsyncDisco, Timeouts
from disco.endpoints.continuation import Continuation
from disco.session.records.route_record import RouteRecord


def rename(route: RouteRecord) -> None:
    route.preset = "x"  # wrong
    Timeouts().gap_s = 3.0  # wrong


Timeouts(gap="3")  # wrong
Continuation(method="flag")  # wrong
AsyncDisco(price=0.5)  # wrong
AsyncDisco(timeouts=3.0)  # wrong
AsyncDisco("smollm2-135m")  # wrong
