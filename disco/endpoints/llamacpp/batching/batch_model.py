"""What the engine needs of its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.model.added_files import Lora
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.sequences import Rows
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.endpoints.llamacpp.prompting.token_healing import PieceIndex

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper

__all__ = ["BatchModel"]


class BatchModel(Protocol):
    """A model for several answers: a `SequenceModel`, or one of which only a part is on this machine."""

    path: Path
    loras: tuple[Lora, ...]
    fills_up: bool
    """Whether one pass needs sequences that are consecutive and have equally many rows (`grouping`)."""
    slots: int
    most_rows: int
    batch_tokens: int
    context_tokens: int
    room_tokens: int
    """How many tokens each sequence has memory for; `make_room` gets more."""
    vocabulary: str | None
    vocabulary_tokens: int
    index: PieceIndex
    bos_token: int
    parameters: int
    threads: int
    load_s: float
    batch_costs: BatchCosts
    keeper: PromptKeeper | None
    cuts: bool
    """Whether the end of a cache can be dropped; where not, nothing is computed ahead, and no pass is filled up."""
    bos_text: str
    eos_text: str
    template: str | None

    @property
    def wants_bos(self) -> bool: ...

    @property
    def grammar_vocabulary(self) -> Vocabulary: ...

    def piece(self, token: int) -> bytes: ...

    def spell(self, ids: Sequence[int]) -> bytes | None: ...

    def ends_answer(self, token: int) -> bool: ...

    def tokenize(self, text: str, *, special: bool) -> list[int]: ...

    def begin(self, flag: StopFlag) -> None: ...

    def forget(self) -> None: ...

    def reading_batch(self, prompt_tokens: int) -> int: ...

    def make_room(self, tokens: int) -> None: ...

    def compute(self, parts: Sequence[Rows]) -> list[int]: ...

    def synchronise(self) -> None: ...

    def state_bytes(self, sequence: int) -> int: ...

    def sequence_tokens(self, sequence: int) -> int: ...

    def sequence_state(self, sequence: int, length: int) -> memoryview | None: ...

    def put_sequence_state(self, sequence: int, state: bytearray | memoryview, tokens: int) -> None: ...

    def cut(self, slot: int, length: int) -> bool: ...

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]: ...

    def close(self) -> None: ...
