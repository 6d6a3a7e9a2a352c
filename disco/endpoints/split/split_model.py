"""A model of which only the first layers and the head are on this machine, as the engine of an answer uses it.

A pass is: first layers here, states up, middle layers there, states down, head here. `compute` does it up to the
sending; what comes back is waited for where it is needed. So while a piece of a prompt is on its way, or
computed there, the device computes the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import head_file
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.added_files import Lora
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.sequences import MOST_ROWS, Rows
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.split.device_states import DeviceStates
from disco.endpoints.split.exchange import Exchange, Sent
from disco.endpoints.split.layer_link import LayerLink, LayerServer
from disco.endpoints.split.link_meter import Answered, LinkMeter, device_curve
from disco.endpoints.split.wire import HEADER_BYTES, MOST_WANTED
from disco.speculate.chunks import Chunks, PassTimes, Reply, SplitPath, chunk_of
from disco.speculate.layer_facts import LayerFacts

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper

__all__ = ["SplitModel"]

_DEPTH: Final = 256  # at which passes are measured: behind few tokens, attention costs nothing yet


class SplitModel:
    """See the module, and `BatchModel` for the methods. For one thread; `states` is shared with a drafter's.

    Mutable: `_content`, the tokens of each sequence; `_newest`, the frames of the newest pass; `_logits`, their rows'
    once the head has computed them; `facts`.

    Args:
        path: the device's file; the head's is beside it.
        server: where the middle layers are.
        name: the endpoint's, for messages.
        chunks: how a prompt is cut.
        reply: which rows of a prompt come down; "all" is the paper's.
        slots, keep_loading, context_tokens, threads, batch_tokens, gpu_layers: as for `SequenceModel`. Of slots there
            are no more than the layer server lets one device have.

    Raises:
        ModelFileError: a file is missing or unfit.
        EndpointFailure: the layer server cannot be reached, or does not fit.

    Attributes:
        device: the first layers and the draft's head.
        states: what they have computed.
        facts: what the server said last.
        meter: how fast the link is.
        closed: whether it is; nothing of it may be used then.
    """

    fills_up = False  # rows that nobody reads would have to be sent
    cuts = True
    loras: tuple[Lora, ...] = ()
    keeper: PromptKeeper | None = None  # of the middle layers' caches, this machine has nothing to save

    def __init__(
        self,
        path: Path,
        *,
        server: LayerServer,
        name: str,
        chunks: Chunks = "makespan",
        reply: Reply = "last",
        slots: int = 1,
        keep_loading: Callable[[], bool] = lambda: True,
        context_tokens: int | None = None,
        threads: int = 1,
        batch_tokens: int = 512,
        gpu_layers: int = -1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path, self.closed = path, False
        self._chunks, self._reply, self._clock = chunks, reply, clock
        self._name = name
        self.slots = slots
        self.device = DeviceModel(
            path,
            slots=slots,
            keep_loading=keep_loading,
            context_tokens=context_tokens,
            threads=threads,
            batch_tokens=batch_tokens,
            gpu_layers=gpu_layers,
        )
        device = self.device
        self.states = DeviceStates(device, server.dtype.numpy)
        self._head: StateModel | None = None
        try:
            self._link = LayerLink(
                server,
                fingerprint=device.file.fingerprint,
                layers=device.file.layers,
                hidden=device.hidden,
                name=name,
            )
            self.facts: LayerFacts = self._link.facts()
            slots = self.slots = min(slots, self.facts.most_sequences)
            self._head = StateModel(
                head_file(device.file),
                "head",
                context_tokens=MOST_ROWS * slots,
                threads=threads,
                most_rows=MOST_ROWS * slots,
                gpu_layers=gpu_layers,
                keep_loading=keep_loading,
            )
        except BaseException:
            self.close()
            raise
        self.context_tokens = self.room_tokens = min(device.context_tokens, self.facts.context_tokens)
        fit = (self.facts.most_frame_bytes - HEADER_BYTES) // self._link.state_bytes
        self.batch_tokens = max(1, min(device.batch_tokens, fit, MOST_WANTED))
        self.most_rows = max(self.batch_tokens, MOST_ROWS)
        self.meter = LinkMeter(self.facts)
        self._content: list[list[int]] = [[] for _ in range(slots)]
        self._newest: list[tuple[int, int, Sent]] = []  # (first place, wanted from, frame)
        self._logits: dict[int, npt.NDArray[np.float32]] | None = None
        self._exchange = Exchange(
            self._link, self._states_of, name=name, most_rows=self.batch_tokens, clock=clock
        )
        self._device_s = PassTimes(((1, 0.0),))
        # What does not depend on where the layers are:
        self.vocabulary, self.vocabulary_tokens = device.vocabulary, device.vocabulary_tokens
        self.index, self.bos_token = device.index, device.bos_token
        self.bos_text, self.eos_text, self.template = device.bos_text, device.eos_text, device.template
        self.piece, self.spell, self.ends_answer = device.piece, device.spell, device.ends_answer
        self.tokenize = device.tokenize
        self.parameters, self.threads, self.load_s = device.parameters, device.threads, device.load_s
        self.batch_costs = BatchCosts(0)  # a chunk's size follows from the link
        try:
            self._measure()
        except BaseException:
            self.close()
            raise

    @property
    def wants_bos(self) -> bool:
        """See `ModelTokens`."""
        return self.device.wants_bos

    @property
    def grammar_vocabulary(self) -> Vocabulary:
        """See `ModelTokens`."""
        return self.device.grammar_vocabulary

    @property
    def way(self) -> SplitPath:
        """What is known of the device, the link and the cloud by now."""
        return self.meter.path(self._device_s, self._link.state_bytes)

    @property
    def link(self) -> LayerLink:
        """The connection."""
        return self._link

    def begin(self, flag: StopFlag) -> None:
        """Make `flag` stop all computation, and all waiting, from now on."""
        self._exchange.flag = flag
        self.device.begin(flag)
        if self._head is not None:
            self._head.begin(flag)

    def _measure(self) -> None:
        """Measure device and link."""
        with self.states.for_target():
            most = self.device.batch_tokens
            depth = min(most, _DEPTH, self.context_tokens // 2)
            tokens = [max(self.device.bos_token, 0)] * most
            self.device.compute_states(0, 0, tokens[:depth])

            def compute(rows: int) -> None:
                self.device.cut(0, depth)
                self.device.compute_states(0, depth, tokens[:rows])

            self._device_s = device_curve(compute, min(most, self.context_tokens - depth))
            self.device.forget()
        most = min(self.facts.most_rows, self.context_tokens)
        self.meter.measure(self._probe, self._link.state_bytes, most)
        self._link.release(0)

    def _probe(self, rows: int, wanted: int) -> Answered:
        states = np.zeros((rows, self.device.hidden), np.float32)
        frame = Sent(0, 0, wanted, states)
        self._exchange.send(frame)
        self._exchange.collect()
        assert frame.reply is not None
        return Answered(frame.replied_s - frame.sent_s, frame.reply.queue_s + frame.reply.compute_s)

    def forget(self) -> None:
        """Empty all sequences here; there they are replaced by what comes next."""
        with self.states.for_target():
            self.states.forget()
        for content in self._content:
            content.clear()

    def reading_batch(self, prompt_tokens: int) -> int:
        """Return the chunk in which a prompt is sent, tokens."""
        return chunk_of(self.way, prompt_tokens, self._chunks, reply=self._reply, most=self.batch_tokens)

    def compute(self, parts: Sequence[Rows]) -> list[int]:
        """Compute rows of several sequences as far as this machine can, and send their states.

        Returns:
            The place of the first row of each part, for `logits`.

        Raises:
            Aborted: the flag was set.
            EndpointFailure: the layer server cannot be reached, or refuses the rows.
            LocalModelError: llama.cpp failed.
        """
        places, place = [], 0
        self._newest, self._logits = [], None
        for part in parts:
            places.append(place)
            content = self._content[part.slot]
            del content[part.at :]
            content.extend(part.ids)
            with self.states.for_target():
                states = self.states.rows(part.slot, content, part.at)
            is_prompt = part.logits_from > 0
            everything = is_prompt and self._reply == "all"
            wanted = len(part.ids) if everything else len(part.ids) - part.logits_from
            frame = Sent(part.slot, part.at, wanted, states)
            self._exchange.send(frame)
            if part.logits_from < len(part.ids):
                self._newest.append((place, part.logits_from, frame))
            place += len(part.ids)
        return places

    def synchronise(self) -> None:
        """Wait for the states of the newest pass, and compute the head."""
        if self._logits is None:
            self._exchange.collect(self.meter)
            self._logits = self._headed()

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]:
        """Return the logits of a row of the newest pass that was asked for, shape (vocabulary,)."""
        self.synchronise()
        assert self._logits is not None
        return self._logits[place]

    def cut(self, slot: int, length: int) -> bool:
        """Keep the first tokens of a sequence; return False where it has fewer, and none is left then."""
        content = self._content[slot]
        has_them = length <= len(content)
        del content[length if has_them else 0 :]
        return has_them

    def make_room(self, tokens: int) -> None:
        """Do nothing: the device's part has all of its room from the start."""

    def state_bytes(self, sequence: int) -> int:
        """Return 0: there is no state to save here."""
        del sequence
        return 0

    def sequence_tokens(self, sequence: int) -> int:
        """Return how many tokens a sequence has."""
        return len(self._content[sequence])

    def sequence_state(self, sequence: int, length: int) -> None:
        """Return None: see `state_bytes`."""

    def put_sequence_state(self, sequence: int, state: bytearray | memoryview, tokens: int) -> None:
        """Do nothing: see `state_bytes`."""

    def close(self) -> None:
        """Free everything, and break the connection off. Idempotent."""
        with self.states.for_target():  # a drafter may be at work
            self.closed = True
            self.device.close()
        if self._head is not None:
            self._head.close()
        if hasattr(self, "_link"):
            self._link.close()

    def _states_of(self, slot: int, at: int, end: int) -> npt.NDArray[Any]:
        with self.states.for_target():
            return self.states.rows(slot, self._content[slot][:end], at)

    def _headed(self) -> dict[int, npt.NDArray[np.float32]]:
        """Return the logits of the newest pass by place; the last row's under -1, too."""
        places: list[int] = []
        deep: list[npt.NDArray[Any]] = []
        if not self._newest:
            return {}
        for first, wanted_from, frame in self._newest:
            assert frame.reply is not None
            assert frame.reply.states is not None
            needed = frame.rows - wanted_from
            places.extend(range(first + wanted_from, first + frame.rows))
            deep.append(frame.reply.states[-needed:])
        assert self._head is not None
        head = self._head
        head.cut(0, 0)
        rows = np.concatenate(deep)
        parts = (
            [head.compute([StateRows(0, 0, rows)])[0]] if len(rows) <= head.most_rows else self._pieces(rows)
        )
        logits = dict(zip(places, np.concatenate(parts) if len(parts) > 1 else parts[0], strict=True))
        logits[-1] = logits[places[-1]]
        return logits

    def _pieces(self, rows: npt.NDArray[Any]) -> list[npt.NDArray[np.float32]]:
        assert self._head is not None
        parts = []
        for at in range(0, len(rows), self._head.most_rows):
            self._head.cut(0, 0)
            parts.append(
                self._head.compute([StateRows(0, 0, rows[at : at + self._head.most_rows])])[0].copy()
            )
        return parts
