"""Who is called with route records: one or several, in order, and none of them can harm an answer."""

from __future__ import annotations

import pytest
from watched import CANARY, answer, endpoint, preset

from disco import AsyncDisco, RouteLog
from disco.errors import ConfigurationError


def fails(route):
    raise RuntimeError(f"cannot store {CANARY}")


def test_all_are_called_with_the_record_and_what_one_raises_reaches_nobody(tmp_path, caplog):
    first, last = [], []
    with RouteLog(tmp_path / "routes.jsonl") as log:
        on_route = [first.append, log, fails, last.append]
        live = answer(endpoint("device"), None, preset("device_only"), on_route=on_route)
    assert first == last == [live.record]
    assert len(log.path.read_text(encoding="utf-8").splitlines()) == 1
    assert (live.error, live.done, live.record.finish_reason) == (None, True, "stop")
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert said.startswith("on_route callback fails raised RuntimeError at ")
    assert "test_on_route.py:" in said, "where to look"
    assert CANARY not in caplog.text


async def later(route):
    """Nobody would await it."""


class Later:
    __call__ = later


@pytest.mark.parametrize("on_route", [later, [print, later], Later(), 3, "routes.jsonl", [print, None]])
def test_what_cannot_be_called_or_would_have_to_be_awaited_is_refused_at_once(on_route):
    says = "Later.* is a coroutine function" if "ater" in str(on_route) else "a callable, or a sequence of"
    with pytest.raises(ConfigurationError, match=f"(?i){says}"):
        AsyncDisco(local=endpoint("device"), on_route=on_route)
