"""The cloud's layers of a model, served to many devices: their thread, and their interface for an event loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from anyio import to_thread

from disco.endpoints.context_size import LEAST_CONTEXT_TOKENS
from disco.endpoints.llamacpp.batching.model_thread import ModelThread
from disco.endpoints.llamacpp.batching.verify_curve import MEASURED_ROWS, VerifyCurve, measured_times
from disco.endpoints.llamacpp.layers.chunk import Chunk, Outcome, Refused
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file
from disco.endpoints.llamacpp.layers.row_scheduler import LayerLimits, RowScheduler
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import ConfigurationError, LocalModelError
from disco.speculate.layer_facts import Code, LayerFacts

__all__ = ["LayerConnection", "LayerEngine"]

_LEAST_CONTEXT: Final = 32
_DEPTH: Final = 256  # at which passes are measured: behind few rows, attention costs nothing yet
_SIZES: Final = (*MEASURED_ROWS, 32, 63, 64, 128, 256)  # with 64 rows llama.cpp takes other kernels
_LONG_S: Final = 2.0
_CLOSED: Final = "the layer server is closed"


class LayerConnection:
    """One device's connection. Its methods run in the event loop in which it was made; none but `take` waits.

    Args:
        thread: of the model.
        session: the device's name for itself.
        clock: s.
    """

    def __init__(self, thread: ModelThread[RowScheduler], session: str, clock: Callable[[], float]) -> None:
        self._thread = thread
        self._session = session
        self._clock = clock
        self._mail = Mailbox()
        self._submit(lambda scheduler: scheduler.connect(session, self._mail, self._clock()), None)

    def ask(self, chunk: Chunk) -> None:
        """Have a chunk computed; its outcome comes by `take`."""
        self._submit(lambda scheduler: scheduler.ask(self._session, self._mail, chunk, self._clock()), chunk)

    def release(self, sequence: int) -> None:
        """Forget a sequence; `Released` comes by `take`."""
        self._submit(lambda scheduler: scheduler.release(self._session, self._mail, sequence), None)

    async def take(self) -> list[Outcome]:
        """Return what has come, at least one outcome. Empty: there will be no more."""
        return await self._mail.take()

    def close(self) -> None:
        """Leave; the sequences stay for a while. Idempotent."""
        if not self._mail.closed:
            self._mail.closed = True
            self._thread.submit(
                lambda scheduler: scheduler.leave(self._session, self._mail, self._clock()), lambda _why: None
            )

    def _submit(self, order: Callable[[RowScheduler], None], chunk: Chunk | None) -> None:
        self._thread.submit(order, partial(self._refuse, chunk))

    def _refuse(self, chunk: Chunk | None, why: Exception | None) -> None:
        """Say that the model is not there. Without it there are no sessions, so the connection ends."""
        del chunk
        self._mail.put(Refused(None, Code.FAILED, 0, _CLOSED if why is None else _text(why)))
        self._mail.close()


class LayerEngine:
    """The layers of a model that are in the cloud, several slots, and a thread that computes.

    What comes out for a device's rows depends on its own rows only. Which other rows are in the same pass may change
    last bits, as another chunk size does.

    Args:
        path: the cloud's file.
        slots: sequences whose caches are kept at the same time. Each has memory of its own for `context_tokens`.
        context_tokens: positions of a sequence; None: what the model was trained with, at most 4,096.
        threads: of llama.cpp.
        most_rows: of one pass; how long it takes, others may have to wait.
        gpu_layers: how many layers go to a GPU, -1 for all.
        limits: of time and number.
        clock: s; where idle times are told from.

    Raises:
        ConfigurationError: a number is out of range.
        ModelFileError: the file is not the cloud's part of a model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        slots: int = 8,
        context_tokens: int | None = None,
        threads: int = 1,
        most_rows: int = 256,
        gpu_layers: int = -1,
        limits: LayerLimits = LayerLimits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        numbers = {
            "slots": slots,
            "context_tokens": context_tokens,
            "threads": threads,
            "most_rows": most_rows,
        }
        for option, value in numbers.items():
            least = _LEAST_CONTEXT if option == "context_tokens" else 1
            if value is not None and value < least:
                raise ConfigurationError(f"{option} must be at least {least}, not {value}.")
        if slots > 256:  # llama.cpp's own limit
            raise ConfigurationError(f"slots must be at most 256, not {slots}.")
        self.file = read_layer_file(path, "cloud")
        context_tokens = context_tokens or min(self.file.context_tokens, LEAST_CONTEXT_TOKENS)
        most_rows = min(most_rows, context_tokens)
        self._options: dict[str, Any] = {
            "slots": slots,
            "context_tokens": context_tokens,
            "threads": threads,
            "most_rows": most_rows,
            "gpu_layers": gpu_layers,
        }
        self._limits = limits
        self._clock = clock
        self._flag = StopFlag()
        self._model: StateModel | None = None
        self._passes_before = 0  # of models that were freed
        self._times: tuple[tuple[int, float], ...] = ()
        self._thread = ModelThread(f"disco-layers-{self.file.path.stem}", self._load, self._give_up, clock)

    def facts(self, session: str | None = None) -> LayerFacts:
        """Return what the server says of itself; with a session's name, with the load of others only."""
        scheduler, file = self._thread.scheduler, self.file
        return LayerFacts(
            model=file.path.name.removesuffix(".gguf").removesuffix(".cloud"),
            fingerprint=file.fingerprint,
            layers=file.layers,
            total_layers=file.total_layers,
            hidden=file.hidden,
            context_tokens=self._options["context_tokens"],
            slots=self._options["slots"],
            most_rows=self._options["most_rows"],
            most_sequences=self._limits.sequences_of(self._options["slots"]),
            hold_s=self._limits.hold_s,
            compute_s=self._times,
            seen_s=() if scheduler is None else scheduler.passes.seen,
            load=0.0 if scheduler is None else scheduler.load(session),
            busy=0 if scheduler is None else scheduler.slots.busy,
            waiting=0 if scheduler is None else scheduler.waiting,
        )

    @property
    def passes(self) -> int:
        """How many passes were computed so far."""
        scheduler = self._thread.scheduler
        return self._passes_before + (0 if scheduler is None else scheduler.passes.count)

    def connect(self, session: str) -> LayerConnection:
        """Begin a session or take it up again, in the current event loop. The caller closes it."""
        return LayerConnection(self._thread, session, self._clock)

    async def warm_up(self) -> None:
        """Load the model and measure it.

        Raises:
            DiscoError: the model cannot be loaded; the message says why.
        """
        mail = Mailbox()

        def refuse(why: Exception | None) -> None:
            mail.put(
                LocalModelError(f"The layer server of {self.file.path.name} is closed.")
                if why is None
                else why
            )
            mail.close()

        self._thread.submit(lambda _scheduler: mail.close(), refuse)
        for error in await mail.take():
            raise failure_of(error, self._cannot("be loaded")).error

    async def aclose(self) -> None:
        """Stop everything, free the model and end the thread. Idempotent."""
        self._thread.close()
        self._flag.set()
        await to_thread.run_sync(self._thread.join)

    def _cannot(self, what: str) -> str:
        return f"The layers of {self.file.path.name} could not {what}"

    # In the thread

    def _load(self) -> RowScheduler:
        require_llama_cpp()
        options = self._options
        model = StateModel(
            Path(self.file.path), "cloud", keep_loading=lambda: not self._thread.closing, **options
        )
        self._model = model
        model.begin(self._flag)
        random = np.random.default_rng(0)
        rows = random.standard_normal((options["most_rows"], model.hidden)).astype(np.float32)
        depth = min(_DEPTH, options["context_tokens"] // 2)
        for at in range(0, depth, len(rows)):
            model.compute([StateRows(0, at, rows[: min(len(rows), depth - at)])])

        def compute(count: int) -> None:
            model.cut(0, depth)
            model.compute([StateRows(0, depth, rows[:count], count - 1)])

        most = min(options["most_rows"], options["context_tokens"] - depth)
        times = measured_times(compute, most, sizes=_SIZES, long_s=_LONG_S)
        model.cut(0, 0)
        self._times = tuple(times)
        return RowScheduler(model, VerifyCurve(times, most), self._limits, timer=time.perf_counter)

    def _give_up(self, scheduler: RowScheduler | None, why: Exception | None) -> Exception | None:
        if scheduler is not None:
            self._passes_before += scheduler.passes.count
            scheduler.close(_CLOSED if why is None else _text(why))
        model, self._model = self._model, None
        if model is not None:
            model.close()
        return why


def _text(why: Exception) -> str:
    """Return what devices are told: nothing of this machine's files."""
    return f"the layers failed ({type(why).__name__})"
