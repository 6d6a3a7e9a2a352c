"""The model as one answer sees it: a cache of its own, which is a slot's while the answer has one.

`decode` computes nothing. Where the token is the next drafted one, its logits are there already; else the model is not
`ready`, the job gives up control, and the scheduler computes what `next_rows` says, in one pass with other answers.
What others have displaced in a slot is read again before anything else, without the job's doing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.batch_model import BatchModel
from disco.endpoints.llamacpp.batching.slots import Slot, Slots, shared_length
from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.endpoints.llamacpp.model.sequences import MOST_ROWS, Rows
from disco.endpoints.llamacpp.saving.slot_cache import SlotCache

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper

__all__ = ["AnswerModel"]


class AnswerModel:
    """One answer's view of a model. Mutable: all attributes below and the private ones.

    Args:
        model: the model.
        keyed: the answer's choices. A token that the job replaces before it is read is replaced there too.
        slots: of the model.
        hold_s: how long the answer keeps its slot while it asks for nothing and others wait, s.
        whole_batches: of a cache, only whole batches of the prompt are reused, and none is filled up: then the numbers
            do not depend on what the cache holds, nor on how fast the machine is at the moment.

    Attributes:
        slot: where the answer's cache is; None: nowhere.
        idle_since: since when nobody asks for more of the answer; None while somebody does.
        ready: whether the logits behind the newest token are there, or, before the prompt is read, a slot.
        prompt: the tokens of the prompt, and of the beginning of an answer that another endpoint wrote.
        draft: tokens that may come behind the newest; computed together with it.
        rejected: tokens computed that turned out wrong.
        batch_costs: how long batches took.
        took_s: how long the newest pass with rows of the answer took, s.
        keeper: saves prompts and takes them back; None: none is saved.
    """

    def __init__(
        self, model: BatchModel, keyed: Keyed, slots: Slots, *, hold_s: float, whole_batches: bool
    ) -> None:
        self._model = model
        self.keyed = keyed
        self._slots = slots
        self.hold_s = hold_s
        self._whole_batches = whole_batches
        self.slot: Slot | None = None
        self.idle_since: float | None = None
        self.ready = True
        self.prompt: list[int] = []
        self.draft: deque[int] = deque()
        self.rejected = 0
        self.took_s = 0.0
        self._ids: list[int] = []  # what the cache must hold
        self._needed: list[int] = []  # what is to be read behind them
        self._needed_from: int | None = None
        self._valid = 0  # of the slot's tokens, so many agree with `_ids`
        self._window: list[int] = []  # the newest rows computed
        self._place = 0  # of the first of them in its batch
        self._at = 0  # the row that is the newest token's
        self._held: npt.NDArray[np.float32] | None = (
            None  # the newest token's logits, where others compute meanwhile
        )
        # What does not depend on the answer:
        self.path = model.path
        self.batch_tokens, self.context_tokens = model.batch_tokens, model.context_tokens
        self.vocabulary, self.vocabulary_tokens = model.vocabulary, model.vocabulary_tokens
        self.index, self.wants_bos, self.bos_token = model.index, model.wants_bos, model.bos_token
        self.piece, self.spell, self.ends_answer = model.piece, model.spell, model.ends_answer
        self.tokenize = model.tokenize
        self.threads, self.load_s = model.threads, model.load_s
        self.batch_costs = BatchCosts(0) if whole_batches else model.batch_costs
        self.keeper: PromptKeeper | None = None if whole_batches else model.keeper

    @property
    def grammar_vocabulary(self) -> Vocabulary:
        """See `ModelTokens`."""
        return self._model.grammar_vocabulary

    # For the job

    def prepare(self, ids: Sequence[int]) -> None:
        """Announce the prompt, which needs a slot: the model is `ready` once it has one."""
        self.prompt = list(ids)
        self.batch_tokens = self._model.reading_batch(len(ids))
        self.ready = self.slot is not None
        if self.ready:
            self._restore()

    def reuse(self, ids: Sequence[int]) -> int:
        """Keep what was read that agrees with the beginning of `ids`, by this answer or before it, and drop the rest.

        Returns:
            How many of `ids` need not be computed. The others must be given to `decode`; if there are none, the logits
            behind the last of them are here.
        """
        if self._newest_is_here and self._ids == list(ids):
            return len(ids)
        done = min(
            shared_length(self._ids, ids), max(len(ids) - 1, 0)
        )  # what it has read itself, in a slot or not
        found = 0 if self.slot is None else min(shared_length(self.slot.ids, ids), len(ids) - 1)
        if self._whole_batches:
            found -= found % self.batch_tokens
        self._leave_newest()
        self._valid = min(self._valid, done)
        if found > done:
            self._valid = done = found
        self._ids = list(ids[:done])
        return done

    def reusable(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` need not be computed, in the slot that is best for them. Changes nothing."""
        found = self._slots.best(ids).ids if self.slot is None else self.slot.ids
        return max(min(shared_length(found, ids), len(ids) - 1), 0)

    def keep(self, length: int) -> int:
        """Keep the first tokens of the cache and drop the rest; return how many are left."""
        if length < len(self._ids):
            self._leave_newest()
            del self._ids[length:]
            self._valid = min(self._valid, length)
        return len(self._ids)

    @property
    def cached(self) -> list[int]:
        """The ids that the answer has read; a copy."""
        return list(self._ids)

    @property
    def length(self) -> int:
        """How many ids the answer has read."""
        return len(self._ids)

    def decode(self, ids: Sequence[int], *, logits_from: int | None = None) -> None:
        """Read tokens: at once where they were drafted, else once the model is `ready`.

        Args:
            ids: the tokens, at most `batch_tokens`.
            logits_from: keep the logits of the tokens from this place on; None: of the last one only.
        """
        if len(ids) == 1 and self.keyed.chosen:
            self.keyed.chosen[-1] = token = ids[0]
            self._advance_draft(token)
            if self._at + 1 < len(self._window) and self._window[self._at + 1] == token:
                self._at += 1
                self._ids.append(token)
                self._valid += 1
                return
        self._leave_newest()
        self._needed, self._needed_from, self.ready = list(ids), logits_from, False

    def _leave_newest(self) -> None:
        self.drop_window()
        self._held = None

    def _advance_draft(self, token: int) -> None:
        if self._at + 1 < len(self._window):
            return  # the draft proper begins behind the window
        if self.draft and self.draft.popleft() != token:
            self.draft.clear()

    def logits(self, place: int = -1) -> npt.NDArray[np.float32]:
        """Return one token's logits, shape (vocabulary,), float32; a view that is valid until control is given up.

        Args:
            place: of the token among those that `decode` was given; without `logits_from` only the last has
                logits. -1: the newest one, whose logits stay valid for a job that gives the model up.
        """
        if place < 0 and self._held is not None:
            return self._held
        return self._model.logits(self._place + (self._at if place < 0 else place))

    @property
    def caches(self) -> list[SlotCache]:
        """What all slots hold, for a `PromptKeeper`."""
        return [SlotCache(self._model, slot) for slot in self._slots.all]

    def _restore(self) -> None:
        if self.keeper is not None and self.slot is not None:
            self.keeper.restore(SlotCache(self._model, self.slot), self.prompt)

    # For the scheduler

    @property
    def _newest_is_here(self) -> bool:
        return self._held is not None or (bool(self._window) and self.ready)

    def hold(self) -> None:
        """Keep the newest token's logits: the job gives the model up before it has used them."""
        if self._held is None and self._newest_is_here:
            self._held = self.logits().copy()
            self.drop_window()

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
            self._restore()
            self.ready = True  # the job has yet to say what it wants to reuse
            return
        done = shared_length(slot.ids, self._ids)
        if self._whole_batches and done < len(self.prompt):
            done -= done % self.batch_tokens
        self._valid = done

    def lost(self) -> None:
        """Note that the slot's cache is empty."""
        assert self.slot is not None
        self.slot.ids.clear()
        self._valid = 0

    def next_rows(self) -> tuple[Rows, bool]:
        """Return the rows to compute next, and whether they are a window: a few behind the prompt, and a draft."""
        assert self.slot is not None
        done = self._valid = min(self._valid, len(self.slot.ids))
        size = self.batch_tokens
        if done < len(self._ids):
            known = len(self.prompt)
            end = min(known, (done // size + 1) * size) if done < known else done + MOST_ROWS
            ids = self._ids[done:end]
            return Rows(self.slot.number, done, ids, len(ids)), False
        needed = len(self._needed)
        first = needed - 1 if self._needed_from is None else self._needed_from
        if done < len(self.prompt) or needed > MOST_ROWS:
            return Rows(self.slot.number, done, self._needed, first), False
        room = min(MOST_ROWS, self.context_tokens - done) - needed if self._model.cuts else 0
        drafted = [self.draft[place] for place in range(max(min(room, len(self.draft)), 0))]
        return Rows(self.slot.number, done, [*self._needed, *drafted], first), True

    def computed(self, rows: Rows, place: int, took_s: float) -> int:
        """Note that rows are computed, the first at a place of the batch; `ready` says whether the job may go on.

        Returns:
            How many of them had been computed before, and were displaced.
        """
        assert self.slot is not None
        slot = self.slot
        slot.ids[rows.at :] = rows.ids
        self.took_s = took_s
        if self._valid < len(self._ids):
            self._valid += len(rows.ids)
            return len(rows.ids)
        needed = len(self._needed)
        self._ids += self._needed
        self._valid += needed
        self._window, self._place = list(rows.ids), place
        self._at, self._held = needed - 1, None
        for _ in range(len(rows.ids) - needed):
            self.draft.popleft()
        self._needed, self.ready = [], True
        return 0

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
