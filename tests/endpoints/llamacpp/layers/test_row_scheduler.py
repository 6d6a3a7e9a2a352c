"""Which rows are computed when, and that no row is ever in another's sequence: in virtual time."""

from __future__ import annotations

import numpy as np
import pytest
from counting_model import FLAT, STEEP, CountingModel, Device, behind, chunk, run, scheduler

from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed, Released
from disco.speculate.layer_facts import Code


@pytest.fixture
def model():
    return CountingModel()


@pytest.fixture
def served(model):
    return scheduler(model)


@pytest.mark.parametrize("wanted", [0, 1, 3, 20])
def test_a_long_chunk_is_computed_in_even_passes_and_its_wanted_rows_come_back(model, served, wanted):
    device = Device(served)
    values = range(1, 21)
    device.ask(0, *values, wanted=wanted)
    run(served, model)
    done = device.only()
    assert [part for one in model.passes for part in one] == [(0, 0, 7), (0, 7, 7), (0, 14, 6)]
    expected = [behind(values[: end + 1]) for end in range(20)][20 - wanted :]
    assert done.chunk.out.tolist() == [list(one) for one in expected]
    assert (done.chunk.compute_s, done.queue_s, done.chunk.batch_rows) == (3.0, 0.0, 7)


def test_rows_from_a_position_on_replace_those_behind_it(model, served):
    device = Device(served)
    device.ask(0, 1, 2, 3, 4)
    device.ask(2, 9)
    device.ask(3, 5, 6, wanted=2)
    run(served, model)
    outs = [one.chunk.out[-1].tolist() for one in device.box.take()]
    assert outs == [list(behind(one)) for one in ([1, 2, 3, 4], [1, 2, 9], [1, 2, 9, 5, 6])]


def test_nobody_waits_for_more_than_one_pass_of_anothers_chunk(model):
    served = scheduler(model, STEEP)
    long, short = Device(served, "long"), Device(served, "short")
    long.ask(0, *range(1, 33), wanted=1)
    assert served.step(0.0)
    short.ask(0, 5)
    assert served.step(1.0)
    done = short.only()
    assert isinstance(done, Computed)
    assert done.queue_s == 1.0
    run(served, model)
    assert isinstance(long.only(), Computed)


def test_short_chunks_of_several_devices_share_a_pass_where_that_is_faster():
    for curve, passes in ((FLAT, 1), (STEEP, 3)):
        model = CountingModel(most_rows=16)
        served = scheduler(model, curve)
        devices = [Device(served, key) for key in "abc"]
        for number, device in enumerate(devices):
            device.ask(0, *range(1, number + 1), 7)
        run(served, model)
        for number, device in enumerate(devices):
            assert device.only().chunk.out.tolist() == [list(behind([*range(1, number + 1), 7]))]
        assert len(model.passes) == passes
        assert [len(one) for one in model.caches] == [1, 2, 3, 0]  # what filled a pass up is gone
        assert served.passes.rows == 6


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (chunk(1, 1), Code.LOST),
        (chunk(40, 1), Code.TOO_LONG),
        (chunk(0, *[1] * 41), Code.TOO_LONG),
        (chunk(0, 1, finite=False), Code.NOT_FINITE),
        (Chunk(0, 0, np.ones((1, 3), np.float32), 1), Code.BAD_FRAME),
        (Chunk(0, 0, np.ones((0, 2), np.float32), 0), Code.BAD_FRAME),
    ],
)
def test_what_cannot_be_computed_is_refused_and_computes_nothing(model, served, asked, code):
    device = Device(served)
    served.ask("a", device.box, asked, 0.0)
    run(served, model)
    refused = device.only()
    assert (refused.code, refused.have, refused.chunk) == (code, 0, asked)
    assert model.passes == []


def test_a_refused_chunk_takes_back_what_it_would_have_replaced(model, served):
    """Otherwise rows sent behind it, in the belief that it was taken, would follow rows of an older text."""
    device = Device(served)
    device.ask(0, 1, 2, 3, 4, 5)
    device.ask(2, 1, finite=False)
    device.ask(3, 9)
    run(served, model)
    outcomes = device.box.take()
    assert isinstance(outcomes[0], Computed)
    assert [(one.code, one.have) for one in outcomes[1:]] == [(Code.NOT_FINITE, 2), (Code.LOST, 2)]


def test_a_session_has_its_quotas(model):
    served = scheduler(model, sequences=2, positions=30, idle_s=5.0)
    device = Device(served)
    device.ask(0, *[1] * 10, sequence=1)
    device.ask(0, *[1] * 10, sequence=2)
    device.ask(0, 1, sequence=3)
    device.ask(10, *[1] * 11, sequence=2)
    run(served, model, 0.0)
    assert sorted(map(str, device.codes())) == ["3", "3", "None", "None"]
    device.release(1)
    device.ask(0, 1, sequence=3)
    run(served, model, 0.0)
    released, done = device.box.take()
    assert released == Released(1)
    assert isinstance(done, Computed)
    device.ask(0, 1, sequence=4, now=100.0)  # those idle for long make room
    run(served, model, 100.0)
    assert device.codes() == [None]


def test_without_a_free_slot_the_sequence_idle_longest_is_lost_and_sent_again():
    model = CountingModel(slots=2)
    served = scheduler(model, idle_s=5.0, wait_s=10.0)
    first, second, third = (Device(served, key) for key in "abc")
    first.ask(0, 1, 2, now=0.0)
    run(served, model, 0.0)
    second.ask(0, 3, now=2.0)
    run(served, model, 2.0)
    first.box.take(), second.box.take()
    third.ask(0, 4, now=3.0)
    assert not served.step(3.0)  # both are in use
    assert served.wake_at == 6.0  # the first pass ended at 1
    assert served.step(6.0)
    assert isinstance(third.only(), Computed)
    first.ask(2, 5, now=12.0)
    run(served, model, 12.0)
    assert first.only().code is Code.LOST
    first.ask(0, 1, 2, 5, now=12.0)
    run(served, model, 12.0)
    assert first.only().chunk.out.tolist() == [list(behind([1, 2, 5]))]
    second.ask(1, 6, now=12.0)
    run(served, model, 12.0)
    assert second.only().code is Code.LOST


def test_who_waits_too_long_for_a_slot_is_told():
    model = CountingModel(slots=1, pass_s=0.0)
    served = scheduler(model, idle_s=5.0, wait_s=10.0)
    first, second = Device(served), Device(served, "b")
    first.ask(0, 1)
    served.step(0.0)
    second.ask(0, 2, now=1.0)
    for now in range(1, 12):  # the first is never idle for long
        first.ask(now, 1, now=float(now))
        served.step(float(now))
    served.step(11.0)
    assert second.codes() == [Code.BUSY]


def test_a_session_finds_its_sequences_again_and_not_for_ever(model):
    served = scheduler(model, hold_s=30.0)
    device, other = Device(served), Device(served, "b")
    device.ask(0, 1, 2, 3)
    run(served, model, 0.0)
    device.ask(2, 9)
    device.leave(1.0)  # that chunk is for nobody, and positions from 2 on are not sure any more
    assert not served.step(1.0)
    device.again()
    device.ask(3, 4, now=20.0)
    run(served, model, 20.0)
    assert [(one.code, one.have) for one in device.box.take()] == [(Code.LOST, 2)]
    device.ask(2, 4, now=20.0)
    device.ask(3, 5, now=20.0)
    run(served, model, 20.0)
    assert device.box.take()[-1].chunk.out.tolist() == [list(behind([1, 2, 4, 5]))]
    device.leave(21.0)
    assert served.wake_at == 51.0
    served.step(51.0)
    assert served.slots.busy == 0
    device.again()
    device.ask(4, 5, now=52.0)
    run(served, model, 52.0)
    assert device.only().code is Code.LOST
    assert not other.box.take()


def test_a_newer_connection_of_a_session_ends_the_older(model, served):
    device = Device(served)
    old = device.box
    device.ask(0, 1)
    device.again()
    assert old.closed
    assert [(one.chunk, one.code) for one in old.take()] == [(None, Code.BUSY)]
    served.ask("a", old, chunk(0, 1), 0.0)
    served.leave("a", old, 0.0)  # noticed late
    device.ask(0, 2)
    run(served, model)
    assert isinstance(device.only(), Computed)


def test_there_are_so_many_sessions_and_those_without_a_connection_make_room(model):
    served = scheduler(model, sessions=2)
    first, second = Device(served), Device(served, "b")
    for device in (first, second):
        device.ask(0, 1)
    run(served, model, 0.0)
    third = Device(served, "c")
    assert third.box.closed
    assert third.codes() == [Code.BUSY]
    second.leave(1.0)
    first.leave(2.0)
    third = Device(served, "c")
    assert not third.box.closed  # in the place of the second, which left first
    third.ask(0, 1)
    first.again()
    first.ask(1, 2)
    run(served, model, 2.0)
    assert isinstance(first.box.take()[-1], Computed)
    assert Device(served, "b").box.closed


def test_nobody_is_locked_out_by_connections_that_ask_for_nothing(model):
    """One holder of a key opens as many as there may be and is silent: newcomers take their places, oldest first."""
    served = scheduler(model, sessions=4, idle_s=5.0)
    working, *silent = (Device(served, key, now) for now, key in enumerate("abcd"))
    working.ask(0, 1, now=4.0)
    newcomers = [Device(served, key, 10.0) for key in "efg"]
    assert [one.box.closed for one in silent] == [True, True, True]
    assert [one.codes() for one in silent] == [[Code.BUSY]] * 3
    assert [one.box.closed for one in [working, *newcomers]] == [False] * 4
    run(served, model, 10.0)
    assert isinstance(working.only(), Computed)
    for newcomer in newcomers:
        newcomer.ask(0, 2, now=12.0)
    assert Device(served, "h", 12.0).box.closed  # all four were heard of within the last five seconds
    run(served, model, 12.0)
    assert not Device(served, "h", 16.0).box.closed
    assert working.box.closed  # it had been silent longest
    working.again(17.0)  # it may come again, in the place of the one that asked for nothing yet
    assert not working.box.closed


def test_who_waits_for_an_answer_is_not_sent_away(model):
    served = scheduler(model, sessions=1, idle_s=5.0)
    device = Device(served)
    device.ask(0, *range(1, 21))
    assert Device(served, "b", 100.0).box.closed
    run(served, model, 100.0)
    assert isinstance(device.only(), Computed)


def test_a_session_without_sequences_is_not_kept(model):
    served = scheduler(model)
    Device(served).leave(0.0)
    assert served.wake_at == float("inf")


def test_a_cache_that_holds_nan_is_for_nobody_until_all_are_overwritten():
    model = CountingModel(slots=2)
    served = scheduler(model)
    bad, good, late = (Device(served, key) for key in "abc")
    good.ask(0, 1)
    bad.ask(0, 2, -1, 3)
    bad.ask(3, 4)
    run(served, model)
    assert bad.codes() == [Code.NOT_FINITE, Code.LOST]
    assert isinstance(good.only(), Computed)
    late.ask(0, 5)
    run(served, model, model.now)
    assert late.only().chunk.out.tolist() == [list(behind([5]))]
    good.ask(1, 2)
    run(served, model)
    assert good.only().code is Code.LOST  # all were overwritten
    good.ask(0, 1, 2)
    run(served, model)
    assert isinstance(good.only(), Computed)


def test_a_chunk_whose_cache_is_overwritten_between_its_passes_is_lost():
    model = CountingModel(slots=2)
    served = scheduler(model, STEEP)
    long, bad, late = (Device(served, key) for key in "abc")
    long.ask(0, *[1] * 30)
    bad.ask(0, -1)
    assert served.step(0.0)
    assert served.step(0.0)
    late.ask(0, 5)
    run(served, model, 0.0)
    assert [(one.code, one.have) for one in long.box.take()] == [(Code.LOST, 0)]
    assert isinstance(late.only(), Computed)


def test_all_are_told_when_the_model_is_lost(model, served):
    device, other = Device(served), Device(served, "b")
    device.ask(0, 1)
    served.close("gone")
    assert [(one.code, one.chunk is None) for one in device.box.take()] == [
        (Code.FAILED, False),
        (Code.FAILED, True),
    ]
    assert device.box.closed
    assert other.codes() == [Code.FAILED]


def test_the_load_is_the_papers_average_and_without_ones_own_rows_that_of_others(model):
    served = scheduler(model, STEEP)
    one, other = Device(served), Device(served, "b")
    assert served.load() == served.load("a") == 0.0
    for at, count in ((0, 4), (4, 2)):
        one.ask(at, *[1] * count)
        run(served, model, 0.0)
    other.ask(0, *[1] * 7)
    run(served, model, 0.0)
    assert served.load() == pytest.approx(0.8 * (0.8 * 4 + 0.2 * 2) + 0.2 * 7)
    assert served.load("a") == pytest.approx(0.2 * 7)
    assert served.load("b") == pytest.approx(0.8 * (0.8 * 4 + 0.2 * 2))
    assert served.passes.seen == ((4, 1.0),)  # told now and then
    served.ask("a", one.box, chunk(6, 1), 10.0)
    served.step(10.0)
    assert dict(served.passes.seen).keys() == {1, 2, 4, 7}
