"""Which prompts a model saves, when it takes them back, and whether that is sooner than reading them anew."""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint
from disco.endpoints.llamacpp.model.added_files import Lora
from disco.endpoints.llamacpp.model.library import find_library
from disco.endpoints.saved_prompts import PromptCache
from disco.endpoints.saved_prompts.prompt_file import Kind, PromptHead, UnusableFileError
from disco.endpoints.saved_prompts.prompt_folder import PromptFolder
from disco.errors import LocalModelError

__all__ = ["PromptKeeper", "keeper_of"]

LEADING_TOKENS: Final = 128
"""What prompts have in common at their beginning is saved from so many tokens on."""

CONVERSATION_TOKENS: Final = 256
"""A conversation is saved where it goes on for so many tokens behind what it has in common with others."""

GAIN_TOKENS: Final = 32
"""A saved prompt is taken back where it spares the reading of so many tokens at least."""

_COVERED: Final = 0.9  # of a prompt that is saved already: the rest is not worth another file
_MUCH_LONGER: Final = 1.25  # a saved prompt that goes on for more than this holds too much else
_SEEN: Final = 8  # prompts among which a common beginning is looked for
_BYTE_S: Final = 5e-9  # time to take a byte of a state back, until it was measured here
_NEW_WEIGHT: Final = 0.3
_STEP: Final = 256  # tokens compared at once

_log = logging.getLogger("disco")


class KeptCache(Protocol):
    """What the keeper needs of a cache: a `SlotCache`."""

    @property
    def cached(self) -> Sequence[int]: ...

    def reusable(self, ids: Sequence[int]) -> int: ...

    def state(self, length: int) -> memoryview | None: ...

    def state_bytes(self) -> int: ...

    def put_state(self, ids: Sequence[int], state: bytearray) -> bool: ...


class _Reuses(Protocol):
    def reusable(self, ids: Sequence[int]) -> int: ...


class _Loaded(Protocol):
    path: Path
    context_tokens: int
    loras: tuple[Lora, ...]


@dataclass(slots=True)
class _Seen:
    """A prompt that may be saved.

    Attributes:
        ids: its tokens, and those of its answer.
        prompt_tokens: how many of them are the prompt's.
        leading: says how many of its first tokens a system message and tools take.
        is_news: whether something of it may be worth saving.
    """

    ids: array[int]
    prompt_tokens: int
    leading: Callable[[], int]
    is_news: bool = True


class PromptKeeper:
    """Saves prompts of one loaded model, and takes them back. Used where the model is, by its thread alone.

    Mutable: `_seen` (prompts, the newest last), `_byte_s`, `_token_s` (time to read a token, s).

    Args:
        cache: what the application chose.
        model: fingerprint of the model and of how it was loaded, 16 bytes.
        warn: called with a sentence that the user should read.
    """

    def __init__(self, cache: PromptCache, model: bytes, warn: Callable[[str], None]) -> None:
        self.saves_private = cache.private
        self._cache = cache
        self._folder = PromptFolder(cache, model, warn)
        self._warn = warn
        self._model = model
        self._seen: deque[_Seen] = deque(maxlen=_SEEN)
        self._byte_s = _BYTE_S
        self._token_s = 0.0

    # Taking back

    def reusable(self, model: _Reuses, ids: Sequence[int]) -> int:
        """Return how many of `ids` need not be computed, thanks to a cache or to a saved prompt."""
        live = model.reusable(ids)
        return max([live, *(min(shared, len(ids) - 1) for shared, _ in self._useful(ids, live))])

    def restore(self, cache: KeptCache, ids: Sequence[int]) -> None:
        """Put the saved prompt into a cache that spares most of the time to read `ids`; do nothing if none does."""
        for shared, head in self._useful(ids, cache.reusable(ids)):
            began_at = time.perf_counter()
            state = self._folder.read(head)
            if state is None:
                continue
            try:
                is_taken = cache.put_state(head.ids, state)
            except LocalModelError as error:  # no memory for so many tokens; the prompt may be shorter
                _log.debug("A saved prompt was not taken back: %s", error)
                continue
            if not is_taken:
                self._folder.reject(head.path, UnusableFileError("damaged"))
                continue
            took_s = time.perf_counter() - began_at
            self._byte_s += _NEW_WEIGHT * (took_s / len(state) - self._byte_s)
            self._folder.used(head)
            _log.debug("A saved prompt was taken back in %.3f s: %d of %d tokens.", took_s, shared, len(ids))
            return

    def _useful(self, ids: Sequence[int], live: int) -> list[tuple[int, PromptHead]]:
        """Return the saved prompts that spare time, the one that spares most first, with the tokens that they share."""
        wanted = array("i", ids)
        found = []
        for head in self._folder.heads():
            shared = shared_tokens(head.ids, wanted)
            read_s = (shared - live) * (head.read_s / len(head.ids) or self._token_s)
            take_s = head.state_bytes * self._byte_s
            if shared - live >= GAIN_TOKENS and (read_s == 0 or read_s > take_s):
                found.append((read_s - take_s, shared, head))
        found.sort(key=lambda one: (one[0], one[1]), reverse=True)
        return [(shared, head) for _, shared, head in found]

    # Saving

    def note(
        self, ids: Sequence[int], leading: Callable[[], int], *, read_tokens: int, prefill_tps: float
    ) -> None:
        """Remember a prompt that was read and may be saved.

        Args:
            ids: its tokens.
            leading: returns how many of the first tokens a system message and tools take; called when the model idles.
            read_tokens: how many of its tokens were computed.
            prefill_tps: how fast, tokens/s.
        """
        if read_tokens >= LEADING_TOKENS and prefill_tps > 0:
            self._token_s = 1 / prefill_tps
        self._seen.append(_Seen(array("i", ids), len(ids), leading))

    def wrote(self, ids: Sequence[int]) -> None:
        """Remember that an answer was written behind a prompt that was noted; `ids` are those of both."""
        both = array("i", ids)
        for seen in reversed(self._seen):
            if both[: seen.prompt_tokens] == seen.ids[: seen.prompt_tokens]:
                seen.ids, seen.is_news = both, True
                return

    def save(self, caches: Sequence[KeptCache], keeps_going: Callable[[], bool]) -> None:
        """Save of the caches what is worth it. They are as before. Never raises.

        Args:
            caches: all of the model.
            keeps_going: asked in between; False ends the saving, which goes on at the next call.
        """
        prompts = list(self._seen)
        for place in reversed(range(len(prompts))):
            newest, later = prompts[place], prompts[place + 1 :]
            if not newest.is_news:
                continue
            goes_on = any(
                shared_tokens(newest.ids, other.ids) >= _COVERED * len(newest.ids) for other in later
            )
            try:
                if not goes_on and not self._save(caches, newest, prompts[:place], keeps_going):
                    return
            except Exception as error:  # noqa: BLE001 - a prompt that is not saved must not cost the model
                self._warn(
                    f"A prompt could not be saved ({type(error).__name__}). It is read again after a restart."
                )
            newest.is_news = False

    def _save(
        self,
        caches: Sequence[KeptCache],
        newest: _Seen,
        others: Sequence[_Seen],
        keeps_going: Callable[[], bool],
    ) -> bool:
        """Save a prompt, where others came before it; return whether all is done."""
        held = [(shared_tokens(array("i", cache.cached), newest.ids), cache) for cache in caches]
        there, cache = max(held, key=lambda one: one[0])
        # What the prompt has in common with an earlier one, unless it goes on from that one.
        common = (shared_tokens(newest.ids, other.ids) for other in others)
        apart = [n for n, other in zip(common, others, strict=True) if n < other.prompt_tokens]
        leading = min(max([newest.leading(), *apart]), there)
        if leading >= LEADING_TOKENS and not self._add(cache, newest.ids[:leading], "leading", keeps_going):
            return False
        if there - leading < CONVERSATION_TOKENS:
            return True
        return self._add(cache, newest.ids[:there], "conversation", keeps_going)

    def _add(self, cache: KeptCache, ids: array[int], kind: Kind, keeps_going: Callable[[], bool]) -> bool:
        """Save the first tokens of a cache unless they are saved already; return whether there is nothing to do."""
        shared = [(shared_tokens(head.ids, ids), head) for head in self._folder.heads()]
        if any(n >= _COVERED * len(ids) and len(head.ids) <= _MUCH_LONGER * len(ids) for n, head in shared):
            return True
        if not keeps_going():
            return False
        # Of a part, llama.cpp gives the state only where all else is put aside meanwhile.
        if cache.state_bytes() > 2 * self._cache.max_bytes:
            return True
        state = cache.state(len(ids))
        if state is None:
            return True  # this model can keep no part of what it has read
        head = PromptHead(
            Path(),
            self._model,
            kind,
            ids,
            len(state),
            self._token_s * len(ids),
            time.time(),
            state_checksum=0,
        )
        is_saved = self._folder.add(head, state, keeps_going=keeps_going)
        if is_saved and kind == "conversation":
            for n, older in shared:
                if older.kind == kind and n == len(older.ids):
                    self._folder.remove(older)
        return is_saved or keeps_going()


def shared_tokens(one: array[int], other: array[int]) -> int:
    """Return how many tokens two prompts have in common at their beginning."""
    most = min(len(one), len(other))
    at = 0
    while at < most and one[at : at + _STEP] == other[at : at + _STEP]:
        at += _STEP
    while at < most and one[at] == other[at]:
        at += 1
    return min(at, most)


def keeper_of(model: _Loaded, cache: PromptCache | None, warn: Callable[[str], None]) -> PromptKeeper | None:
    """Return the keeper of a model that was just loaded; None where no prompt is saved.

    A state fits only the same weights, context and llama.cpp; the fingerprint has them all.
    """
    if cache is None:
        return None
    how = f"{model_fingerprint(model.path, None, model.loras)} {model.context_tokens} {find_library()}"
    return PromptKeeper(cache, hashlib.sha256(how.encode()).digest()[:16], warn)
