"""Frames and their replies: what is sent again, and what is not, on a link that breaks when it is told to."""

import numpy as np
import pytest

from disco.endpoints.split.exchange import Exchange, Sent
from disco.endpoints.split.layer_link import LinkLost
from disco.endpoints.split.wire import Code, Frame, Kind
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError

HIDDEN = 4


class Link:
    """Mutable: `sent`, (number, slot, at, rows, wanted) of all frames; `breaks`, at which of them; `replies`."""

    def __init__(self, breaks=()):
        self.is_open, self.sent, self.breaks, self.replies = True, [], set(breaks), []
        self.waits = []  # for how many rows each reply is given time

    def open(self):
        self.is_open = True

    def send(self, slot, at, states, wanted):
        number = len(self.sent)
        self.sent.append((number, slot, at, len(states), wanted))
        if number in self.breaks:
            self.is_open = False
            raise LinkLost("told to")
        return number

    def receive(self, stop, until):
        del stop
        self.waits.append(until)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            self.is_open = False
            raise reply
        return reply

    def until(self, rows):
        return float(rows)

    def frame_bytes(self, rows):
        return rows

    def unreachable(self, lost):
        return EndpointFailure(FailureKind.CONNECTION, IncompleteAnswerError(str(lost)))


def made(link, clock=lambda: 0.0):
    return Exchange(
        link,
        lambda _slot, at, end: np.zeros((end - at, HIDDEN)),
        name="x",
        most_rows=8,
        clock=clock,
    )


def rows(slot, at, count, wanted=0):
    return Sent(slot, at, wanted, np.zeros((count, HIDDEN)))


def states(number, wanted=0):
    return Frame(Kind.STATES, 0, 0, number, np.zeros((wanted, HIDDEN), np.float32))


def lost(number, have):
    return Frame(Kind.ERROR, 0, have, number, code=Code.LOST)


def test_what_newer_rows_replace_is_not_sent_again():
    link = Link(breaks={3})
    exchange = made(link)
    for frame in (rows(0, 0, 8), rows(0, 8, 8), rows(1, 0, 8)):
        exchange.send(frame)
    # Whoever wanted the first ones has left: another prompt is in their place.
    exchange.send(rows(0, 4, 2, 1))
    again = [(slot, at) for _, slot, at, *_ in link.sent[4:]]
    assert again == [(1, 0), (0, 4)]
    link.replies = [states(4), states(5, 1)]
    exchange.collect()
    assert not link.replies


def test_what_the_server_has_lost_is_sent_from_there_on_and_answered_once():
    link = Link()
    exchange = made(link)
    exchange.send(rows(0, 20, 2, 1))
    # Replies to earlier sendings are passed over.
    link.replies = [lost(0, 3), lost(0, 3), states(0, 1), states(4, 1)]
    exchange.collect()
    assert [(at, count, wanted) for _, _, at, count, wanted in link.sent] == [
        (20, 2, 1),
        (3, 8, 0),
        (11, 8, 0),
        (19, 1, 0),
        (20, 2, 1),
    ]


def test_a_reply_has_time_for_all_rows_that_are_sent_again_before_it():
    link = Link()
    exchange = made(link)
    exchange.send(rows(0, 2000, 2, 1))
    exchange.send(rows(1, 500, 3, 1))
    # Frames 2 to 252 catch up with the first slot, 253 to 316 with the second.
    link.replies = [lost(0, 0), lost(1, 0), states(252, 1), states(316, 1)]
    exchange.collect()
    assert [number for number, *_, wanted in link.sent if wanted] == [0, 1, 252, 316]
    assert link.waits == [5, 5 + 2000, 5 + 2000 + 500, 3 + 500]


def test_what_was_on_a_broken_way_is_not_waited_for():
    link = Link()
    exchange = made(link)
    exchange.send(rows(0, 16, 2, 1))
    link.replies = [lost(0, 0), LinkLost("broken"), states(4, 1)]
    exchange.collect()
    assert link.waits == [2, 18, 2]


def test_a_failure_leaves_nothing_that_a_later_answer_would_wait_for():
    link = Link()
    exchange = made(link)
    exchange.send(rows(0, 0, 8))
    exchange.send(rows(1, 0, 8))
    link.replies = [Frame(Kind.ERROR, 0, 0, 0, code=Code.BUSY, text="full")]
    with pytest.raises(EndpointFailure) as failed:
        exchange.collect()
    assert failed.value.kind is FailureKind.RATE_LIMIT
    exchange.send(rows(0, 0, 1, 1))
    link.replies = [states(1), states(2, 1)]
    exchange.collect()
    assert not link.replies


def test_a_reply_of_another_length_is_refused():
    link = Link()
    exchange = made(link)
    exchange.send(rows(0, 0, 8, 2))
    link.replies = [states(0, 1)]
    with pytest.raises(EndpointFailure, match="server"):
        exchange.collect()


def test_a_link_that_breaks_each_time_is_given_up():
    link = Link(breaks=range(99))
    with pytest.raises(EndpointFailure) as failed:
        made(link).send(rows(0, 0, 8))
    assert failed.value.kind is FailureKind.CONNECTION
    assert len(link.sent) == 3
