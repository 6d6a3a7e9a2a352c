"""Executors for the work of a sweep: this process, processes of this machine, or a Dask cluster."""

from __future__ import annotations

import os
import pickle
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError

__all__ = ["Progress", "available_cores", "open_executor", "run_all", "share", "shared_value"]

Progress = Callable[[int, int], None]
"""Called with the number of units of work done, and the total."""

CONNECT_S = 5.0  # how long a Dask scheduler may take to answer


@contextmanager
def open_executor(
    jobs: int | None = None, scheduler: str | None = None, *, connect_s: float = CONNECT_S
) -> Iterator[Executor | None]:
    """Open an executor for `sweep`; everything that it started has stopped when the block ends.

    Args:
        jobs: number of processes; None: one per core that this process may use; 1: the work is done in this process.
        scheduler: address of a Dask scheduler, such as "tcp://10.0.0.5:8786"; its workers need the same disco.
        connect_s: how long the scheduler may take to answer, s.

    Yields:
        The executor, or None if the work is to be done in this process.

    Raises:
        ConfigurationError: `jobs` below 1 or together with `scheduler`, `distributed` is not installed, or no
            scheduler answers.
    """
    if jobs is not None and jobs < 1:
        raise ConfigurationError(f"jobs must be at least 1, not {jobs}")
    if scheduler is not None:
        if jobs is not None:
            raise ConfigurationError("a scheduler brings its own workers: give jobs or a scheduler, not both")
        with _dask(scheduler, connect_s) as executor:
            yield executor
        return
    workers = available_cores() if jobs is None else jobs
    if workers == 1:
        yield None
        return
    # Fresh interpreters: a fork would copy locks that other threads of this process hold.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_exit_on_interrupt)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """Return the number of cores that this process may use; in a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def share(executor: Executor, value: Any) -> Iterator[Any]:
    """Send a large value to the workers once instead of with every task.

    Args:
        executor: executor of the tasks.
        value: can be pickled.

    Yields:
        A handle. A task takes the handle as an argument of its own (not inside another one) in the value's place, and
        unwraps it with `shared_value`. On a Dask cluster the value is scattered; for processes of this machine it is in
        a temporary file, which each process reads once; any other executor gets the value itself.
    """
    client = getattr(executor, "_client", None)
    if client is not None and hasattr(client, "scatter"):
        yield client.scatter(value, broadcast=True)
        return
    if not isinstance(executor, ProcessPoolExecutor):
        yield value
        return
    with tempfile.TemporaryDirectory(prefix="disco-") as folder:
        path = Path(folder) / "value"
        with path.open("wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
        yield _Spilled(path)


def shared_value(handle: Any) -> Any:
    """Return the value of a handle of `share`, in a worker."""
    return _read(handle.path) if isinstance(handle, _Spilled) else handle


def run_all(
    executor: Executor | None,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    progress: Progress | None,
) -> list[Any]:
    """Return results in the order of their arguments. The first error cancels calls that have not begun, and is raised.

    Args:
        executor: any executor; None: the calls run in this process.
        function: can be pickled, like its arguments.
        arguments: of each call.
        progress: called after each call.

    Raises:
        ConfigurationError: a worker process ended unexpectedly.
    """
    tell = progress or (lambda _done, _total: None)
    total = len(arguments)
    if executor is None:
        results = []
        for each in arguments:
            results.append(function(*each))
            tell(len(results), total)
        return results
    futures = [executor.submit(function, *each) for each in arguments]
    try:
        for count, future in enumerate(as_completed(futures), 1):
            future.result()
            tell(count, total)
        return [future.result() for future in futures]
    except BrokenExecutor as error:
        raise ConfigurationError(
            "a worker process ended abruptly: it was out of memory (use fewer jobs, or chunks), or the program that "
            'starts the sweep has no `if __name__ == "__main__":` around it'
        ) from error
    finally:
        for future in futures:
            future.cancel()


@dataclass(frozen=True, slots=True)
class _Spilled:
    path: Path


@lru_cache(maxsize=1)  # a process works on one sweep at a time, and folder names are never reused
def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by `share` into a folder only this user can open


def _exit_on_interrupt() -> None:
    # Ctrl-C reaches every process of the terminal: workers exit without output, the parent reports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _dask(address: str, connect_s: float) -> Iterator[Executor]:
    try:
        from distributed import Client  # noqa: PLC0415 - an extra, and heavy
    except ImportError as error:
        raise ConfigurationError(
            'a Dask scheduler needs the package distributed: pip install "disco-llm[cluster]"'
        ) from error
    if not re.fullmatch(r"(\w+://)?[^:/]+:\d+", address):
        raise ConfigurationError(
            f"the address of a Dask scheduler is host:port, such as tcp://10.0.0.5:8786, not {address!r}"
        )
    try:
        client = Client(address, timeout=connect_s, set_as_default=False)
    except (OSError, ValueError) as error:  # a time-out is an OSError
        raise ConfigurationError(
            f"no Dask scheduler answers at {address} within {connect_s:g} s; start one with `dask scheduler` "
            "and workers with `dask worker ADDRESS`, and give the address it prints"
        ) from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise ConfigurationError(
                f"the Dask scheduler at {address} has no workers; start some: dask worker {address}"
            )
        # Not pure: a file that a piece of work reads may have changed since Dask last saw the same piece.
        executor: Executor = client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)
