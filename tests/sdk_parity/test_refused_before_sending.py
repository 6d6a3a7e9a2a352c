"""S14: what cannot be sent is the SDK's error at once: no connection error, and no retry."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sdk_parity.side_by_side import CHAT, behind, both, taken

pytestmark = pytest.mark.anyio


def after_close(client):
    async def asking():
        await taken(client.close())
        return await taken(client.chat.completions.create(**CHAT))

    return asking()


CALLS = {
    "not a number": lambda c: c.chat.completions.create(**CHAT, temperature=float("nan")),
    "an object": lambda c: c.chat.completions.create(**CHAT, metadata={"a": object()}),
    "not a number, streamed": lambda c: c.chat.completions.create(**CHAT, top_p=float("nan"), stream=True),
    "bytes": lambda c: c.chat.completions.create(**CHAT, extra_body={"a": b"b"}),
    "after close": after_close,
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_the_error_is_the_sdks_and_nothing_is_sent(kinds, alone):
    expected, seen = {}, {}
    for name, call in CALLS.items():
        for outcome, into in zip(
            await both(kinds, call, ours={} if alone else behind()), (expected, seen), strict=True
        ):
            into[name] = [type(outcome.error), str(outcome.error) if alone else "", outcome.requests]
    assert seen == expected
    assert {kind for kind, _, _ in expected.values()} == {ValueError, TypeError, RuntimeError}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_date_is_sent_as_text(kinds, alone):
    def call(client):
        return client.chat.completions.create(**CHAT, metadata={"at": datetime(2027, 1, 2, tzinfo=UTC)})

    plain, ours = await both(kinds, call, ours={} if alone else behind())
    assert (plain.error, ours.error) == (None, None)
    assert all(b"2027-01-02T00:00:00+00:00" in o.requests[0].content for o in (plain, ours))
