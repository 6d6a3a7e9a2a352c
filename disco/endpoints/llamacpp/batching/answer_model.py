"""The model as one answer sees it: the interface of `NativeModel` that a `Generation` uses, over a slot.

`decode` computes nothing. Where the token is the next drafted one, its logits are there already; else the model is not
`ready`, the job gives up control, and the scheduler computes what `next_rows` says, in one pass with other answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.slots import Slot, shared_length
from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.endpoints.llamacpp.model.sequences import MOST_ROWS, Rows

__all__ = ["AnswerModel"]


class AnswerModel:
    """One answer's view of a model. Mutable: all attributes below and the private ones.

    Args:
        model: the model.
        keyed: the answer's choices. A token that the job replaces before it is read is replaced there too.

    Attributes:
        slot: where the answer's cache is; None: nowhere.
        idle_since: since when nobody asks for more of the answer; None while somebody does.
        ready: whether the logits behind the newest token are there, or, before the prompt is read, a slot.
        prompt: the tokens of the prompt, and of the beginning of an answer that another endpoint wrote.
        draft: tokens that may come behind the newest; computed together with it.
        rejected: tokens computed that turned out wrong.
    """

    keeper = None  # no prompt of a model that many answers share is saved

    def __init__(self, model: BatchModel, keyed: Keyed) -> None:
        self._model = model
        self._keyed = keyed
        self.slot: Slot | None = None
        self.idle_since: float | None = None
        self.ready = True
        self.prompt: list[int] = []
        self.draft: deque[int] = deque()
        self.rejected = 0
        self._ids: list[int] = []  # what the cache must hold
        self._needed: list[int] = []  # what is to be read behind them
        self._needed_from: int | None = None
        self._valid = 0  # of the slot's tokens, so many agree with `_ids`
        self._window: list[int] = []  # the newest rows computed
        self._place = 0  # of the first of them in its batch
        self._at = 0  # the row that is the newest token's
        # What does not depend on the answer:
        self.batch_tokens, self.context_tokens = model.batch_tokens, model.context_tokens
        self.vocabulary, self.vocabulary_tokens = model.vocabulary, model.vocabulary_tokens
        self.index, self.wants_bos, self.bos_token = model.index, model.wants_bos, model.bos_token
        self.piece, self.spell, self.ends_answer = model.piece, model.spell, model.ends_answer
        self.tokenize, self.handles = model.tokenize, model.handles
        # The numbers must not depend on how fast the machine is at the moment: batches are never filled up.
        self.batch_costs = BatchCosts(0)

    @property
    def grammar_vocabulary(self) -> Vocabulary:
        """See `NativeModel`."""
        return self._model.grammar_vocabulary

    # For the job

    def prepare(self, ids: Sequence[int]) -> None:
        """Announce the prompt, which needs a slot."""
        self.prompt = list(ids)
        self.batch_tokens = self._model.reading_batch(len(ids))
        self.ready = self.slot is not None

    def reuse(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` the slot's cache has; whole batches only, so that all numbers are the same."""
        assert self.slot is not None
        done = min(shared_length(self.slot.ids, ids), len(ids) - 1)
        done -= done % self.batch_tokens
        self._ids, self._valid = list(ids[:done]), done
        return done

    def keep(self, length: int) -> int:
        """Keep the first tokens of the cache."""
        del self._ids[length:]
        self._valid = min(self._valid, length)
        return length

    @property
    def cached(self) -> list[int]:
        """The ids that the answer has read; a copy."""
        return list(self._ids)

    @property
    def length(self) -> int:
        """How many ids the answer has read."""
        return len(self._ids)

    def decode(self, ids: Sequence[int], *, logits_from: int | None = None) -> None:
        """Read tokens: at once where they were drafted, else once the model is `ready`."""
        if len(ids) == 1 and self._keyed.chosen:
            self._keyed.chosen[-1] = token = ids[0]
            self._advance_draft(token)
            if self._at + 1 < len(self._window) and self._window[self._at + 1] == token:
                self._at += 1
                self._ids.append(token)
                self._valid += 1
                return
        self.drop_window()
        self._needed, self._needed_from, self.ready = list(ids), logits_from, False

    def _advance_draft(self, token: int) -> None:
        if self._at + 1 < len(self._window):
            return  # the draft proper begins behind the window
        if self.draft and self.draft.popleft() != token:
            self.draft.clear()

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]:
        """See `NativeModel.logits`."""
        return self._model.logits(self._place + (self._at if place < 0 else place))

    # For the scheduler

    def drop_window(self) -> None:
        """Forget computed rows that the answer has not come to, and what was drafted behind them."""
        if unused := len(self._window) - 1 - self._at if self._window else 0:
            self.rejected += unused
            self.draft.clear()
        self._window = []
        self._at = 0

    def seat(self, slot: Slot) -> None:
        """Take a slot. What it does not have of the answer is read again."""
        self.slot = slot
        if not self._ids and not self._needed:
            self.ready = True  # the job has yet to say what it wants to reuse
            return
        done = shared_length(slot.ids, self._ids)
        # As before: the prompt in whole batches.
        self._valid = done - done % self.batch_tokens if done < len(self.prompt) else done

    def next_rows(self) -> tuple[Rows, bool]:
        """Return the rows to compute next, and whether they are a window: a token and its draft."""
        assert self.slot is not None
        done, size = self._valid, self.batch_tokens
        if done < len(self._ids):
            known = len(self.prompt)
            end = min(known, (done // size + 1) * size) if done < known else done + MOST_ROWS
            ids = self._ids[done:end]
            return Rows(self.slot.number, done, ids, len(ids)), False
        if len(self._needed) > 1 or not self._keyed.chosen:
            first = len(self._needed) - 1 if self._needed_from is None else self._needed_from
            return Rows(self.slot.number, done, self._needed, first), False
        room = min(MOST_ROWS, self.context_tokens - done) - 1
        drafted = [self.draft[place] for place in range(max(min(room, len(self.draft)), 0))]
        return Rows(self.slot.number, done, [*self._needed, *drafted], 0), True

    def computed(self, rows: Rows, place: int) -> bool:
        """Note that rows are computed, the first at a place of the batch; return whether the job may go on."""
        assert self.slot is not None
        slot = self.slot
        slot.ids[rows.at :] = rows.ids
        if self._valid < len(self._ids):
            self._valid += len(rows.ids)
            return False
        needed = len(self._needed)
        self._ids += self._needed
        self._valid += needed
        self._window, self._place = list(rows.ids), place
        self._at = needed - 1
        for _ in range(len(rows.ids) - needed):
            self.draft.popleft()
        self._needed, self.ready = [], True
        return True

    @property
    def has_more_prompt(self) -> bool:
        """Whether more of the prompt, or of a lost cache, follows the rows that `next_rows` returns."""
        return self._valid < len(self._ids) or len(self._ids) + len(self._needed) < len(self.prompt)

    @property
    def waits_for_slot(self) -> bool:
        """Whether nothing can go on without a slot."""
        return not self.ready and self.slot is None

    @property
    def wanted(self) -> Sequence[int]:
        """The tokens that a slot should have."""
        return self._ids or self.prompt
