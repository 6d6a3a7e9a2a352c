"""What rows cost on an idle machine, by their number, at the depth at which a prompt's chunks are on average.

Attention costs more the more tokens there are before. A prompt's rows have on average half of it before them, however
it is cut. So a batch of `x` rows of a prompt of `T` tokens is measured at the position `(T - x) / 2`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.split.layer_link import LayerLink, LayerServer
from disco.endpoints.split.wire import Frame, pack_rows

__all__ = ["CloudProbe", "DeviceProbe"]

SIZES = (1, 32, 63, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
_TIMES = 2
WS_BYTES = 14  # a WebSocket frame's own header, at most


def _depths(tokens: int, cost_s: Callable[[int, int], float], most: int | None = None) -> dict[str, Any]:
    """Measure batches of a prompt; `cost_s` takes the position and the rows.

    Args:
        tokens: of the prompt.
        cost_s: computes; returns s.
        most: rows of one pass; more are several passes.

    Returns:
        points: (rows, s); last_s: of one row behind the whole prompt; pass_rows: `most`.
    """
    points: list[tuple[int, float]] = []
    largest = min(tokens, most or tokens)
    for at in range(0, tokens // 2, largest):
        cost_s(at, min(largest, tokens // 2 - at))
    for rows in sorted({*(size for size in SIZES if size < largest), largest}, reverse=True):
        at = (tokens - rows) // 2  # there are rows up to here: those before, and those of the larger batches
        points.append((rows, median(cost_s(at, rows) for _ in range(_TIMES))))
    if tokens > 1:
        cost_s(tokens // 2, tokens - tokens // 2)
    last_s = median(cost_s(tokens, 1) for _ in range(3 * _TIMES))
    return {"points": points[::-1], "last_s": last_s, "pass_rows": most}


class DeviceProbe:
    """The device's part of a model, and the frames that its states are packed into. Use it in a `with`."""

    def __init__(self, path: Path, context_tokens: int) -> None:
        self._model = DeviceModel(
            path,
            context_tokens=context_tokens,
            threads=1,
            batch_tokens=context_tokens,
            gpu_layers=0,
            keep_loading=lambda: True,
        )
        self._model.begin(StopFlag())
        self._token = max(self._model.bos_token, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._model.close()

    def depth(self, tokens: int) -> dict[str, Any]:
        """Measure batches of a prompt; see `_depths`."""
        self._cost_s(0, min(tokens, 64))  # the first pass allocates
        return _depths(tokens, self._cost_s)

    def _cost_s(self, at: int, rows: int) -> float:
        self._model.cut(0, at)
        began_at = time.perf_counter()
        states = self._model.compute_states(0, at, [self._token] * rows).astype(np.float16)
        pack_rows(0, at, states.copy(), wanted=1, number=0)
        return time.perf_counter() - began_at


class CloudProbe:
    """A session of its own at a layer server. Use it in a `with`."""

    def __init__(self, device: Path, server: LayerServer) -> None:
        file = read_layer_file(device, "device")
        self._link = LayerLink(
            server, fingerprint=file.fingerprint, layers=file.layers, hidden=file.hidden, name="probe"
        )
        self._most = self._link.facts().most_rows
        self._link.open()
        self._random = np.random.default_rng(0)
        self._hidden = file.hidden

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.release(0)
        self._link.close()

    def depth(self, tokens: int) -> dict[str, Any]:
        """Measure batches of a prompt, as the server says; see `_depths`."""
        self._asked(0, 1)
        return _depths(tokens, lambda at, rows: self._asked(at, rows).compute_s, self._most)

    def round_trip_s(self, up_bps: float, down_bps: float) -> float:
        """Return the round trip of a row without what its bytes and its computation take, s."""
        took = []
        for _ in range(7):
            began_at = time.perf_counter()
            reply = self._asked(0, 1)
            took.append(time.perf_counter() - began_at - reply.queue_s - reply.compute_s)
        size = self._link.frame_bytes(1) + WS_BYTES
        return max(0.0, median(took) - size / up_bps - size / down_bps)

    def _asked(self, at: int, rows: int) -> Frame:
        states = self._random.standard_normal((rows, self._hidden)).astype(np.float16)
        number = self._link.send(0, at, states, 1)
        reply = self._link.receive(lambda: False, self._link.until(rows))
        if reply.number != number or reply.code is not None:
            raise RuntimeError(f"the layer server refused rows: {reply.text}")
        return reply
