"""Server-sent events survive every way of arriving."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.openai_api import sse
from disco.endpoints.openai_api.sse import ErrorData, EventSplitter, EventTooLargeError


def events(*reads: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [event for read in reads for event in splitter.feed(read)]
    last = splitter.end()
    return [*found, last] if last is not None else found


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b": ping\ndata: a\n\n", [b"a"]),
        (b"id: 1\nevent: message\nretry: 5\ndata: a\n\n", [b"a"]),
        (b'data: {"a":\ndata: 1}\n\n', [b'{"a":\n1}']),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\n\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"event: only\n\n", []),
        (b"", []),
    ],
)
def test_every_form_of_an_event_is_read(stream, expected):
    assert events(stream) == expected
    assert events(*(stream[n : n + 1] for n in range(len(stream)))) == expected


def test_an_error_event_is_marked_and_events_of_one_read_come_together():
    (event,) = events(b'event: error\ndata: {"message": "x"}\n\n')
    assert isinstance(event, ErrorData)
    splitter = EventSplitter()
    assert len(splitter.feed(b"data: a\n\n" * 50 + b"data: b")) == 50
    assert splitter.feed(b"\n\n") == [b"b"]


def test_endless_event_is_refused(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    for _ in range(10):
        splitter.feed(b"data: aaaa")
    with pytest.raises(EventTooLargeError):
        splitter.feed(b"data: aaaa")


@given(
    texts=st.lists(st.text(alphabet="aé€😀 \u2028\x85", max_size=8), min_size=1, max_size=6),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 300), max_size=20),
)
def test_any_chunking_gives_the_same_events(texts, newline, cuts):
    """Characters and line ends may be split over reads anywhere."""
    payloads = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b"data: " + payload + newline * 2 for payload in payloads)
    at = sorted({min(c, len(stream)) for c in cuts} | {0, len(stream)})
    reads = [stream[a:b] for a, b in itertools.pairwise(at)]
    assert events(*reads) == payloads
