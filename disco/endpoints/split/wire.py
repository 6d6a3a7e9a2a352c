"""Binary frames between a device and a layer server: hidden states, and nothing else.

A frame is a header of 32 bytes, little-endian, and a payload:

    kind u8, dtype u8, wanted u16, sequence u32, at u32, rows u32, number u32, crc u32, queue_us u32, compute_us u32

Up go ROWS (states of consecutive positions of one sequence) and RELEASE (the sequence is over). Down come STATES (what
came out for the last `wanted` of the rows) and ERROR. A reply has the number of its frame. `crc` is zlib.crc32 of the
payload.

States are as they are behind a layer, before any norm. In float16 they are half as long; their rounding changes about
as much as another chunk size does. Coming down, a row whose largest value does not fit is scaled by a power of two: the
head's norm takes the scale away again. Going up, rows that do not fit are refused, because the next layer adds to them.

Pure functions; frames share the memory of the bytes that they were read from.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.speculate.layer_facts import Code

__all__ = [
    "HEADER_BYTES",
    "LAYERS",
    "LONGEST_TEXT",
    "MOST_WANTED",
    "STREAM",
    "BadFrameError",
    "Code",
    "Dtype",
    "Frame",
    "Kind",
    "StatesUnfitError",
    "all_finite",
    "frame_bytes",
    "pack_error",
    "pack_release",
    "pack_rows",
    "pack_states",
    "unpack",
]

LAYERS: Final = "/v1/disco/layers"
STREAM: Final = "/v1/disco/layers/stream"
_HEADER: Final = Struct("<BBHIIIIIII")
HEADER_BYTES: Final = _HEADER.size
MOST_WANTED: Final = 2**16 - 1
LONGEST_TEXT: Final = 400
"""Bytes of an error's text."""
_U32: Final = 2**32 - 1
_LARGEST_F16: Final = 65504.0

States = npt.NDArray[np.floating[Any]]


class Kind(IntEnum):
    """What a frame is."""

    ROWS = 1
    RELEASE = 2
    STATES = 3
    ERROR = 4


class Dtype(IntEnum):
    """The format of states on the wire."""

    F16 = 0
    F32 = 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The type in numpy."""
        return _NUMPY[self]


_NUMPY: Final[dict[int, np.dtype[Any]]] = {Dtype.F16: np.dtype("<f2"), Dtype.F32: np.dtype("<f4")}


_CODES: Final = frozenset(Code)


class BadFrameError(ValueError):
    """Bytes are no frame; the text says what is wrong, and quotes none of the content."""


class StatesUnfitError(ValueError):
    """States cannot be sent up: too large for float16, NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        kind: of the frame.
        sequence: which of the session's.
        at: position of the first row; of an ERROR: how many positions of the sequence the server has.
        number: of the frame; a reply has that of what it replies to.
        states: shape (rows, hidden), float16 or float32, not to be written to; None in frames without.
        dtype: the format of the states. A server replies in that of the request.
        wanted: of ROWS: how many of the last rows come back, 0 to all. Of STATES: rows of the batch in which they were
            computed, those of other devices included; of several batches the largest.
        queue_s, compute_s: of a reply: how long its rows waited for the model, and computed, s.
        code, text: of an ERROR.
    """

    kind: Kind
    sequence: int
    at: int = 0
    number: int = 0
    states: States | None = field(default=None, repr=False)
    dtype: Dtype = Dtype.F16
    wanted: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    code: Code | None = None
    text: str = ""

    @property
    def rows(self) -> int:
        """How many states there are."""
        return 0 if self.states is None else len(self.states)


def frame_bytes(rows: int, hidden: int, dtype: Dtype = Dtype.F16) -> int:
    """Return the length of a frame with so many states."""
    return HEADER_BYTES + rows * hidden * dtype.numpy.itemsize


def pack_rows(
    sequence: int, at: int, states: States, *, wanted: int, number: int, dtype: Dtype = Dtype.F16
) -> bytearray:
    """Return a ROWS frame.

    Args:
        sequence: which of the session's, 0 to 2^32 - 1, as all numbers.
        at: position of the first row; what the server has from there on is forgotten.
        states: shape (rows, hidden), at least one row.
        wanted: how many of the last rows come back; with 0 the reply has no states.
        number: the reply will have it.
        dtype: of the wire.

    Raises:
        StatesUnfitError: a state is NaN, infinite or too large for float16.
        ValueError: a number is out of range.
    """
    if not len(states) or not 0 <= wanted <= min(len(states), MOST_WANTED):
        raise ValueError(
            f"a frame has at least one row, and wants none to all, not {wanted} of {len(states)}"
        )
    largest = _largest(states)
    if not largest < np.inf:
        if (
            dtype is Dtype.F16 and largest == np.inf and states.dtype.itemsize == 2
        ):  # it was finite before it was rounded
            raise StatesUnfitError(
                "A hidden state does not fit float16. Send the states of this model as float32."
            )
        raise StatesUnfitError("A hidden state of this device is NaN or infinite, so it cannot be sent.")
    if dtype is Dtype.F16 and largest > _LARGEST_F16:
        raise StatesUnfitError(
            f"A hidden state's largest value, {largest:,.0f}, does not fit float16. Send the states of this model "
            "as float32."
        )
    return _packed(Kind.ROWS, sequence, at, number, states, dtype, wanted)


def pack_release(sequence: int, *, number: int = 0) -> bytearray:
    """Return a RELEASE frame: nobody asks for the sequence any more. It has no reply."""
    return _packed(Kind.RELEASE, sequence, 0, number)


def pack_states(
    sequence: int,
    at: int,
    states: States,
    *,
    number: int,
    dtype: Dtype = Dtype.F16,
    batch_rows: int = 0,
    queue_s: float = 0.0,
    compute_s: float = 0.0,
) -> bytearray:
    """Return a STATES frame; see `Frame`.

    Args:
        sequence: which of the session's.
        at: position of the first state.
        states: shape (rows, hidden), finite; rows may be 0.
        number: of the frame that asked for them.
        dtype: of the wire. In float16, rows with too large values are scaled.
        batch_rows: rows of the batch; at most `MOST_WANTED` are told.
        queue_s: how long the rows waited, s; as of `compute_s` at most 71 minutes are told.
        compute_s: how long they were computed, s.
    """
    if dtype is Dtype.F16 and len(states):
        states = _scaled(states)
    times = _microseconds(queue_s), _microseconds(compute_s)
    return _packed(
        Kind.STATES, sequence, at, number, states, dtype, min(batch_rows, MOST_WANTED), times=times
    )


def pack_error(sequence: int, code: Code, *, number: int, have: int = 0, text: str = "") -> bytearray:
    """Return an ERROR frame; `have` is how many positions of the sequence the server has."""
    payload = text.encode("ascii", "replace")[:LONGEST_TEXT]
    frame = bytearray(HEADER_BYTES + len(payload))
    frame[HEADER_BYTES:] = payload
    return _headed(frame, Kind.ERROR, Dtype.F16, 0, sequence, have, code, number, (0, 0))


def unpack(data: bytes | bytearray | memoryview, hidden: int) -> Frame:
    """Read a frame, and check everything but whether the states are finite (`all_finite`).

    Args:
        data: one whole message.
        hidden: length of a state.

    Raises:
        BadFrameError: the bytes are no frame.
    """
    if len(data) < HEADER_BYTES:
        raise BadFrameError(f"a frame has at least {HEADER_BYTES} bytes, not {len(data)}")
    number_of, dtype_of, wanted, sequence, at, rows, number, crc, queue_us, compute_us = _HEADER.unpack_from(
        data
    )
    try:
        kind, dtype = Kind(number_of), Dtype(dtype_of)
    except ValueError:
        raise BadFrameError(f"frames of kind {number_of} and type {dtype_of} are not known") from None
    payload = memoryview(data)[HEADER_BYTES:]
    if zlib.crc32(payload) != crc:
        raise BadFrameError("the payload's checksum differs: it was damaged on its way")
    if kind is Kind.ERROR:
        if rows not in _CODES or len(payload) > LONGEST_TEXT or not (text := bytes(payload)).isascii():
            raise BadFrameError("an error has an unknown code, or a text that is too long or not ASCII")
        return Frame(kind, sequence, at, number, code=Code(rows), text=text.decode("ascii"))
    if kind is Kind.RELEASE:
        if rows or payload:
            raise BadFrameError("a release has no rows")
        return Frame(kind, sequence, at, number)
    if len(payload) != rows * hidden * dtype.numpy.itemsize:
        raise BadFrameError(f"{len(payload)} bytes are not {rows} states of {hidden} numbers")
    if kind is Kind.ROWS and (not rows or wanted > rows):
        raise BadFrameError(f"a frame has at least one row, and wants none to all, not {wanted} of {rows}")
    states = np.frombuffer(payload, dtype.numpy).reshape(rows, hidden)
    return Frame(
        kind, sequence, at, number, states, dtype, wanted, queue_s=queue_us / 1e6, compute_s=compute_us / 1e6
    )


def all_finite(states: States) -> bool:
    """Return whether no value is NaN or infinite."""
    return _largest(states) < np.inf


def _largest(states: States) -> float:
    """Return the largest absolute value; NaN where one is."""
    if not states.size:
        return 0.0
    if states.dtype.itemsize == 2:  # numpy is slow with float16: order the bits instead, NaN above infinity
        bits = int((states.view("<u2") & 0x7FFF).max())
        return float(np.array(bits, "<u2").view("<f2"))
    return float(np.maximum(states.max(), -states.min()))


def _scaled(states: States) -> States:
    """Return the states with each row that float16 cannot hold divided by the least power of two so that it can."""
    if _largest(states) <= _LARGEST_F16:
        return states
    largest = np.abs(states).max(axis=1, keepdims=True).astype(np.float64)
    powers = np.ceil(np.log2(np.maximum(largest / _LARGEST_F16, 1.0)))
    scaled: States = np.ldexp(states, -powers.astype(np.int32))
    return scaled


def _packed(
    kind: Kind,
    sequence: int,
    at: int,
    number: int,
    states: States | None = None,
    dtype: Dtype = Dtype.F16,
    wanted: int = 0,
    *,
    times: tuple[int, int] = (0, 0),
) -> bytearray:
    if states is None:
        return _headed(bytearray(HEADER_BYTES), kind, dtype, wanted, sequence, at, 0, number, times)
    rows, hidden = states.shape
    frame = bytearray(frame_bytes(rows, hidden, dtype))
    # The only copy: from the model's numbers into the message, in the format of the wire.
    np.frombuffer(frame, dtype.numpy, offset=HEADER_BYTES).reshape(rows, hidden)[:] = states
    return _headed(frame, kind, dtype, wanted, sequence, at, rows, number, times)


def _headed(
    frame: bytearray,
    kind: Kind,
    dtype: Dtype,
    wanted: int,
    sequence: int,
    at: int,
    rows: int,
    number: int,
    times: tuple[int, int],
) -> bytearray:
    if not all(0 <= one <= _U32 for one in (sequence, at, number)):
        raise ValueError(
            f"sequence, position and number are whole numbers below 2^32, not {sequence}, {at}, {number}"
        )
    crc = zlib.crc32(memoryview(frame)[HEADER_BYTES:])
    _HEADER.pack_into(frame, 0, kind, dtype, wanted, sequence, at, rows, number, crc, *times)
    return frame


def _microseconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), _U32)
