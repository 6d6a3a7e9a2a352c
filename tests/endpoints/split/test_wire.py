"""Frames of a split model: what is packed comes out again, and any other bytes are refused, never believed."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from disco.endpoints.split import wire
from disco.endpoints.split.wire import BadFrameError, Code, Dtype, Kind
from disco.speculate.layer_facts import LayerFacts
from disco.speculate.messages import BadMessageError

HIDDEN = 5
U32 = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from(Dtype)


def states(dtype=np.float32, *, least=1, **elements):
    elements = {
        "allow_nan": False,
        "allow_infinity": False,
        "width": 8 * np.dtype(dtype).itemsize,
        **elements,
    }
    rows = st.integers(least, 6)
    return rows.flatmap(lambda n: hnp.arrays(dtype, (n, HIDDEN), elements=st.floats(**elements)))


@given(U32, U32, U32, DTYPES, st.data())
def test_rows_come_out_as_they_went_in(sequence, at, number, dtype, data):
    given_states = data.draw(states(dtype.numpy))
    wanted = data.draw(st.integers(0, len(given_states)))
    packed = wire.pack_rows(sequence, at, given_states, wanted=wanted, number=number, dtype=dtype)
    assert len(packed) == wire.frame_bytes(len(given_states), HIDDEN, dtype)
    frame = wire.unpack(memoryview(packed), HIDDEN)
    assert (frame.kind, frame.sequence, frame.at) == (Kind.ROWS, sequence, at)
    assert (frame.number, frame.wanted, frame.dtype) == (number, wanted, dtype)
    assert frame.states.dtype == dtype.numpy
    assert frame.states.tobytes() == given_states.tobytes()
    assert np.shares_memory(frame.states, np.frombuffer(packed, np.uint8))


@given(
    U32,
    U32,
    U32,
    st.integers(0, 2**20),
    st.floats(0, 1e5),
    st.floats(0, 100),
    states(least=0, min_value=-60000, max_value=60000),
)
def test_states_come_out_as_they_went_in(sequence, at, number, batch, queue_s, compute_s, given_states):
    packed = wire.pack_states(
        sequence,
        at,
        given_states,
        number=number,
        dtype=Dtype.F32,
        batch_rows=batch,
        queue_s=queue_s,
        compute_s=compute_s,
    )
    frame = wire.unpack(bytes(packed), HIDDEN)
    assert (frame.kind, frame.sequence, frame.at, frame.number) == (Kind.STATES, sequence, at, number)
    assert frame.wanted == min(batch, 2**16 - 1)
    assert frame.queue_s == pytest.approx(min(queue_s, (2**32 - 1) / 1e6), abs=1e-6)
    assert frame.compute_s == pytest.approx(compute_s, abs=1e-6)
    assert np.array_equal(frame.states, given_states)


@given(U32, st.sampled_from(Code), U32, U32, st.text())
def test_errors_and_releases_come_out_as_they_went_in(sequence, code, number, have, text):
    frame = wire.unpack(wire.pack_error(sequence, code, number=number, have=have, text=text), HIDDEN)
    assert (frame.kind, frame.sequence, frame.code, frame.number, frame.at) == (
        Kind.ERROR,
        sequence,
        code,
        number,
        have,
    )
    assert frame.text == text.encode("ascii", "replace")[:400].decode()
    assert frame.states is None
    assert frame.rows == 0
    assert wire.unpack(wire.pack_release(sequence, number=number), HIDDEN).kind is Kind.RELEASE


@given(st.binary(max_size=120), st.integers(1, 8))
def test_any_bytes_are_a_frame_or_refused(data, hidden):
    try:
        frame = wire.unpack(data, hidden)
    except BadFrameError:
        pass
    else:
        assert frame.rows * hidden <= len(data)


@given(states(), DTYPES, st.data())
def test_a_changed_or_cut_frame_is_refused_or_has_another_header(given_states, dtype, data):
    """The payload is under the checksum; the header is not, so what is changed there is another frame or none."""
    packed = wire.pack_rows(7, 3, np.clip(given_states, -6e4, 6e4), wanted=1, number=9, dtype=dtype)
    before = bytes(packed)
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    try:
        frame = wire.unpack(packed, HIDDEN)
    except BadFrameError:
        pass
    else:
        assert place < wire.HEADER_BYTES
        assert not 24 > place >= 20  # the checksum
        assert frame.states is None or frame.states.tobytes() == before[wire.HEADER_BYTES :]
    with pytest.raises(BadFrameError):
        wire.unpack(before[: data.draw(st.integers(0, len(before) - 1))], HIDDEN)


@given(states(min_value=-(2.0**127), max_value=2.0**127))
def test_a_row_that_float16_cannot_hold_comes_down_in_the_same_direction(given_states):
    """Only by a power of two, which the head's norm takes away, and only the rows that need it."""
    frame = wire.unpack(wire.pack_states(0, 0, given_states, number=0), HIDDEN)
    assert wire.all_finite(frame.states)
    for before, after in zip(given_states.astype(np.float64), frame.states.astype(np.float64), strict=True):
        largest = np.abs(before).max()
        if largest <= 65504:
            assert np.array_equal(after, before.astype(np.float16))
            continue
        power = 2.0 ** np.ceil(np.log2(largest / 65504))
        assert np.abs(after).max() > 65504 / 2 * 0.999
        assert np.allclose(after * power, before, rtol=2**-10, atol=power * 2.0**-24)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_found_and_not_sent_up(dtype, bad):
    given_states = np.ones((3, HIDDEN), dtype.numpy)
    assert wire.all_finite(given_states)
    given_states[1, 2] = bad
    assert not wire.all_finite(given_states)
    with pytest.raises(wire.StatesUnfitError, match="NaN or infinite"):
        wire.pack_rows(0, 0, given_states, wanted=1, number=0, dtype=Dtype.F32)


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_that_do_not_fit_float16_are_refused_by_name_of_the_remedy(sign):
    given_states = np.full((1, HIDDEN), sign * 65504.0, np.float32)
    assert (
        wire.unpack(wire.pack_rows(0, 0, given_states, wanted=0, number=0), HIDDEN).states[0, 0]
        == sign * 65504
    )
    given_states[0, 1] = sign * 70_000
    with pytest.raises(wire.StatesUnfitError, match=r"70,000.*float32"):
        wire.pack_rows(0, 0, given_states, wanted=0, number=0)
    wire.pack_rows(0, 0, given_states, wanted=0, number=0, dtype=Dtype.F32)


@pytest.mark.parametrize(
    ("rows", "wanted", "at"), [(0, 0, 0), (2, 3, 0), (2, -1, 0), (1, 0, 2**32), (1, 0, -1)]
)
def test_numbers_out_of_range_are_not_packed(rows, wanted, at):
    with pytest.raises(ValueError, match=r"at least one row|below 2\^32"):
        wire.pack_rows(0, at, np.ones((rows, HIDDEN), np.float32), wanted=wanted, number=0)


FACTS = LayerFacts(
    "a model",
    "f" * 32,
    2,
    30,
    576,
    4096,
    8,
    512,
    4,
    30.0,
    2**20,
    ((1, 0.01), (17, 0.1)),
    ((5, 0.02),),
    3.5,
    2,
    1,
)


def test_facts_come_out_as_they_went_in():
    assert LayerFacts.from_json(json.loads(json.dumps(FACTS.to_json()))) == FACTS


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": 0},
        {"hidden": "576"},
        {"slots": True},
        {"fingerprint": None},
        {"load": -1},
        {"load": float("nan")},
        {"compute_s": [[0, 1]]},
        {"seen_s": 3},
        {"compute_s": [[1, float("inf")]]},
        {"busy": 2.5},
    ],
)
def test_facts_that_no_server_can_have_are_refused(changed):
    with pytest.raises(BadMessageError, match=next(iter(changed))):
        LayerFacts.from_json({**FACTS.to_json(), **changed})
