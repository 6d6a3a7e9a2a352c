"""The program of the process that holds the model: `python -m disco.endpoints.llamacpp.runtime.child_main`.

Orders come through stdin, and the model's output leaves through stdout (see `child_protocol`). The model runs in the
main thread. Another thread reads stdin, so that a stop reaches a model that computes. At the end of stdin the process
ends at once. So it never outlives the process that started it, however that one ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import IO, Any, NoReturn

from disco.endpoints.llamacpp.drafting.draft_job import DraftJob
from disco.endpoints.llamacpp.model.native import Aborted, NativeModel
from disco.endpoints.llamacpp.output.generation import Generation
from disco.endpoints.llamacpp.output.label_scoring import LabelScoring
from disco.endpoints.llamacpp.output.prompt_sizing import PromptSizing
from disco.endpoints.llamacpp.output.text_scoring import TextScoring
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.runtime.child_protocol import (
    pack,
    pack_item,
    unpack,
    unpack_prefix,
    unpack_sampling,
)
from disco.endpoints.llamacpp.runtime.job import Job, failure_of
from disco.endpoints.llamacpp.runtime.speed_benchmark import MeasurementJob
from disco.endpoints.llamacpp.saving.prompt_keeper import keeper_of
from disco.endpoints.llamacpp.saving.saving_job import SavePrompts
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import EndpointFailure

__all__ = ["main"]

PROGRESS_S = 0.1  # tokens that complete no text are reported this often; batches of a prompt always
OOM_SCORE = "500"  # of 1000: when memory runs out, the system ends this process before the application


class _Model(NativeModel):
    """A model that reports each step."""

    on_step: Callable[[int], None] | None = None

    def decode(self, ids: Sequence[int], *, logits_from: int | None = None) -> None:
        super().decode(ids, logits_from=logits_from)
        if self.on_step is not None:
            self.on_step(len(ids))


class _Out:
    """The output pipe, and the outbox of every job. Used by the main thread alone. Mutable: `job`, `_sent_at`.

    Attributes:
        job: the job whose output is sent.
    """

    abandoned = False

    def __init__(self, file: IO[bytes]) -> None:
        self.job: Job | None = None
        self._file = file
        self._sent_at = 0.0

    def put(self, item: Any) -> None:
        self._write(pack_item(item, None if self.job is None else self.job.usage))

    def close(self) -> None:
        self.send("left")

    def send(self, name: str, content: Any = None) -> None:
        self._write(pack(name, content, None if self.job is None else self.job.usage))

    def step(self, tokens: int) -> None:
        tells = self.job is not None and self.job.on_progress is not None
        if (tokens > 1 and not tells) or time.monotonic() - self._sent_at >= PROGRESS_S:
            self.send("progress")

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line)
            self._file.flush()
        except OSError:  # the reader of the pipe is gone
            os._exit(0)
        self._sent_at = time.monotonic()


class _Process:
    """The state that both threads share. Mutable: `_renderer`, `_open` (jobs that are not over, by number)."""

    def __init__(self, orders: IO[bytes], out: _Out) -> None:
        self._orders = orders
        self._out = out
        self._renderer: Renderer | None = None
        self._settings: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[tuple[int, bool]] = (
            queue.SimpleQueue()
        )  # number, and whether to work on it
        self._open: dict[int, Job] = {}

    # In the thread that reads

    def read(self) -> None:
        try:
            for line in self._orders:
                name, content, _ = unpack(line)
                self._take(name, content)
        finally:
            os._exit(0)

    def _take(self, name: str, content: Any) -> None:
        if name == "load":
            self._settings.put(content)
        elif name == "flags":
            job = self._open.get(content["number"])
            if job is None:
                return  # the job has ended already
            job.take_flags(content)
        elif name == "continue":
            job = self._open[content["number"]]
            job.paused = False
            if content["more"] is not None:
                job.take_more(content["more"])
            self._jobs.put((content["number"], True))
        elif name == "drop":
            self._jobs.put((content, False))
        else:
            number = content.pop("number")
            self._open[number] = self._make(name, content)
            self._jobs.put((number, True))

    def _make(self, name: str, content: Any) -> Job:
        if name == "measure":
            return MeasurementJob(self._out, **content)
        if name == "save_prompts":
            within_s = content["within_s"]
            still_works = partial(self._out.send, "progress")  # a large state takes longer than a token
            return SavePrompts(inf if within_s is None else within_s, self._out, still_works)
        makers = {"score": self._scoring, "score_texts": self._text_scoring, "size": self._sizing}
        makers["draft"] = self._drafting
        job = makers.get(name, self._generation)(content)
        job.park = content["park"]
        job.on_progress = lambda progress: self._out.send("progress", progress)
        return job

    def _generation(self, content: Any) -> Job:
        return Generation(
            self._out,
            content["messages"],
            unpack_prefix(content["prefix"]),
            unpack_sampling(content["sampling"]),
            renderer=self._loaded_renderer,
            name=content["name"],
            wants=frozenset(content["wants"]),
            known_bytes=content["known_bytes"],
            may_be_saved=content["may_be_saved"],
        )

    def _scoring(self, content: Any) -> Job:
        return LabelScoring(
            self._out,
            content["messages"],
            tuple(content["classes"]),
            renderer=self._loaded_renderer,
            name=content["name"],
        )

    def _text_scoring(self, content: Any) -> Job:
        return TextScoring(
            self._out,
            content["messages"],
            tuple(content["texts"]),
            renderer=self._loaded_renderer,
            name=content["name"],
        )

    def _drafting(self, content: Any) -> Job:
        sampling = unpack_sampling(content["sampling"])
        return DraftJob(
            self._out, content["prompt_ids"], sampling, seed=content["seed"], name=content["name"]
        )

    def _sizing(self, content: Any) -> Job:
        messages, name = content["messages"], content["name"]
        return PromptSizing(self._out, messages, renderer=self._loaded_renderer, name=name)

    def _loaded_renderer(self) -> Renderer:
        assert self._renderer is not None
        return self._renderer

    # In the main thread

    def work(self) -> NoReturn:
        settings = self._settings.get()
        name = settings.pop("name")
        try:
            model = self._load(**settings)
        except Exception as exc:  # noqa: BLE001 - any error must be reported to the other process
            self._out.put(failure_of(exc, f"The model of endpoint {name!r} could not be loaded"))
            os._exit(1)
        model.on_step = self._out.step
        while True:
            number, works = self._jobs.get()
            job = self._open[number]
            if not works:
                model.drop(job)
                del self._open[number]
                continue
            self._out.job = job
            broken, over = False, True
            try:
                job.check()
                over = model.serve(job)
            except Aborted:
                pass
            except EndpointFailure as failure:
                self._out.put(failure)
            except Exception as exc:  # noqa: BLE001 - any error must be reported to the other process
                self._out.put(failure_of(exc, f"The model of endpoint {name!r} failed while it worked"))
                broken = True
            if over:
                model.drop(job)
                del self._open[number]
                self._out.close()
            else:
                self._out.send("paused")
            if broken:
                os._exit(1)  # the model's state is unknown: a new process loads a new one

    def _load(
        self, *, path: str, chat_template: str | None, prompt_cache: dict[str, Any] | None, **numbers: Any
    ) -> _Model:
        # The other process stops the loading by ending this process.
        model = _Model(Path(path), keep_loading=lambda: True, **numbers)
        cache = None if prompt_cache is None else PromptCache(**prompt_cache)
        model.keeper = keeper_of(model, cache, lambda sentence: self._out.send("warned", sentence))
        self._renderer = Renderer(model, chat_template)
        self._out.send(
            "loaded",
            {
                "context_tokens": model.context_tokens,
                "vocabulary": model.vocabulary,
                "parameters": model.parameters,
            },
        )
        return model


def main() -> NoReturn:
    """Load the model that the first order names, then do the work of the others, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles Ctrl-C
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    out = _Out(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # output that a library prints must not mix with the messages
    process = _Process(os.fdopen(0, "rb"), out)
    threading.Thread(target=process.read, name="orders", daemon=True).start()
    process.work()


if __name__ == "__main__":
    main()
