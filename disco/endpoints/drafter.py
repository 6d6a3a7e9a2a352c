"""What guesses the next tokens of an answer: the interface of drafters, and one that needs no model.

A draft is a hint. A verify server compares it with what its own model chooses (`disco.speculate`), so a bad guess costs
time and never changes the answer.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from anyio.lowlevel import checkpoint

from disco.errors import EndpointFailure, FailureKind, NoEndpointError
from disco.events import Progress, Usage

__all__ = ["DraftOrder", "Drafted", "Drafter", "Drafting", "NgramDrafter", "NgramIndex"]


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """What to draft next.

    The drafter's sequence is the prompt and, behind it, tokens of the answer: given ones and drafted ones. An order
    first makes the sequence agree with the answer, then drafts behind it.

    Attributes:
        number: of the order; each order of an answer has a higher one than those before it.
        keep: how many tokens of the answer stay in the sequence; those behind them are taken out.
        append: tokens of the answer that then follow. None, with `keep` all tokens so far, goes on with the last
            draft, and costs nothing that drafting more tokens at once would not have cost.
        count: most tokens to draft; 0 to have the sequence read and nothing drafted.
        stop_below: drafting ends with the first token at which the most probable one has a lower probability than
            this; that token is drafted, too. 0: it never ends for that reason.
    """

    number: int
    keep: int
    append: tuple[int, ...] = field(repr=False)
    count: int
    stop_below: float = 0.0


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was drafted for an order; these tokens are in the drafter's sequence now.

    Attributes:
        number: of the order.
        ids: the drafted tokens: fewer than `count` where the draft was broken off, ended (with an end-of-answer token,
            which is among them), became too improbable or filled the context; and where a drafter has no guess.
        took_s: how long the drafter worked for it, s, without the time that it waited for other requests.
        read_tokens: tokens computed besides one for each drafted token: appended ones, and those that another request
            had displaced in the cache.
    """

    number: int
    ids: tuple[int, ...] = field(repr=False)
    took_s: float
    read_tokens: int = 0


class Drafting(ABC):
    """The drafting of one answer: `read` once, then one `draft` at a time. Between two drafts it holds no model.

    Where a draft fails, all further ones fail, too.
    """

    @abstractmethod
    async def read(self, prompt_ids: Sequence[int]) -> None:
        """Read the prompt. Cancelling it ends the drafting.

        Args:
            prompt_ids: the rendered prompt in the ids of the drafter's vocabulary.

        Raises:
            EndpointFailure: the drafter cannot be used: CONTEXT_LENGTH for a prompt that is too long, BAD_REQUEST for
                ids that its vocabulary does not have, CRASHED and RATE_LIMIT as from an attempt.
        """

    @abstractmethod
    async def draft(self, order: DraftOrder) -> Drafted:
        """Draft the next tokens; waits while another request uses the model (`busy`).

        Cancelling it breaks the draft off. The sequence then has an unknown number of drafted tokens behind the
        appended ones, so the next order keeps none of them.

        Raises:
            EndpointFailure: see `read`. BAD_REQUEST for an order that does not fit the sequence.
        """

    def stop(self) -> None:  # noqa: B027 - a drafter may be too fast for it
        """Break off the draft that is being made; `draft` then returns what there is. Without one, do nothing."""

    @property
    def busy(self) -> bool:
        """Whether a draft would now wait for other requests, or delay them."""
        return False

    @property
    def progress(self) -> Progress | None:
        """How far `read` has come; None where that is not known."""
        return None

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """The tokens computed so far: of the prompt and of what was read later, and the drafted ones."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the drafting; returns when nothing of it is running. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Drafter(ABC):
    """Something that drafts.

    Attributes:
        name: of the endpoint that is charged for its tokens, or of the method.
    """

    name: str

    @property
    @abstractmethod
    def vocabulary(self) -> str | None:
        """Fingerprint of the tokenizer; None where any will do, and where it is not known yet (`ready`)."""

    @property
    def ready(self) -> bool:
        """Whether it can begin at once; False while a model is not loaded."""
        return True

    async def warm_up(self) -> None:  # noqa: B027 - optional hook
        """Do now what the first draft would wait for. Raises what `Endpoint.warm_up` raises."""

    @abstractmethod
    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        """Begin to draft an answer; nothing happens until it reads.

        Args:
            seed: of the keyed noise (`disco.speculate.coupled`) with which the answer is chosen.
            sampling: the request's parameters; those that choose tokens count, the others are ignored.

        Raises:
            EndpointFailure: BAD_REQUEST for a parameter that is malformed.
        """


_LONGEST: Final = 4
_CHECKPOINT_TOKENS: Final = 4096


class NgramDrafter(Drafter):
    """Drafts what followed the last time when the newest tokens came before: for answers that quote their prompt.

    Costs a few microseconds a draft, for any vocabulary. Names, code that is edited, and quotations are often guessed
    right; free text is not. It knows no probabilities, so `DraftOrder.stop_below` has no effect.

    Source: Saxena, "Prompt Lookup Decoding", 2023 (https://github.com/apoorvumang/prompt-lookup-decoding); vLLM and
    transformers have it, too. They take the first place that matches; here it is the last one, which is nearer in the
    text, and a match that reaches the end goes on with what it has copied, as in LZ77.

    Args:
        longest: most tokens at the end that are looked for.
        shortest: fewest of them; without a match of so many, nothing is drafted.
        name: in records.
    """

    def __init__(self, *, longest: int = _LONGEST, shortest: int = 1, name: str = "n-gram") -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"1 <= shortest <= longest does not hold for {shortest} and {longest}")
        self.name = name
        self._longest, self._shortest = longest, shortest

    @property
    def vocabulary(self) -> None:
        return None

    def open(self, *, seed: int = 0, sampling: Mapping[str, Any] | None = None) -> NgramDrafting:
        del seed, sampling  # a copy has neither noise nor probabilities
        return NgramDrafting(NgramIndex(self._longest), self._shortest)


class NgramDrafting(Drafting):
    """See `NgramDrafter`. Mutable: `_index`, `_prompt_tokens`."""

    def __init__(self, index: NgramIndex, shortest: int) -> None:
        self._index = index
        self._shortest = shortest
        self._prompt_tokens = 0

    async def read(self, prompt_ids: Sequence[int]) -> None:
        for start in range(0, len(prompt_ids), _CHECKPOINT_TOKENS):
            self._index.extend(prompt_ids[start : start + _CHECKPOINT_TOKENS])
            await checkpoint()
        self._prompt_tokens = len(prompt_ids)

    async def draft(self, order: DraftOrder) -> Drafted:
        try:
            return self.draft_now(order)
        except ValueError as exc:
            raise EndpointFailure(FailureKind.BAD_REQUEST, NoEndpointError(f"{exc}.")) from exc

    def draft_now(self, order: DraftOrder) -> Drafted:
        """Do the same as `draft`, without an event loop.

        Raises:
            ValueError: the sequence has fewer tokens of the answer than are to be kept.
        """
        began_at = time.perf_counter()
        self._index.keep(self._prompt_tokens + order.keep)
        self._index.extend(order.append)
        ids = self._index.next_tokens(order.count, self._shortest)
        self._index.extend(ids)
        return Drafted(order.number, ids, time.perf_counter() - began_at)

    @property
    def usage(self) -> Usage:
        """Nothing: no model computes anything."""
        return Usage()

    async def aclose(self) -> None:
        await checkpoint()


class NgramIndex:
    """A sequence of tokens that knows for each of its n-grams where it ended the last time before.

    Adding and removing a token at the end takes a few dictionary operations, whatever the length. Mutable: `tokens`;
    for each n, `_last` (n-gram to the place of its last token, where it occurred last) and `_before` (for each place,
    where the n-gram that ends there had ended before; -1 for nowhere).

    Args:
        longest: the largest n.
    """

    def __init__(self, longest: int) -> None:
        self.tokens: list[int] = []
        self._last: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in range(longest))
        self._before: tuple[list[int], ...] = tuple([] for _ in range(longest))

    def extend(self, ids: Iterable[int]) -> None:
        """Add tokens at the end."""
        tokens = self.tokens
        for token in ids:
            tokens.append(token)
            at = len(tokens) - 1
            for n, (last, before) in enumerate(zip(self._last, self._before, strict=True), 1):
                # An n-gram that begins before the sequence is shorter than n, and so equals no other.
                gram = tuple(tokens[max(0, at + 1 - n) :])
                before.append(last.get(gram, -1))
                last[gram] = at

    def keep(self, length: int) -> None:
        """Remove all tokens behind the first `length`.

        Raises:
            ValueError: there are fewer.
        """
        tokens = self.tokens
        if not 0 <= length <= len(tokens):
            raise ValueError(f"{length} tokens cannot be kept of {len(tokens)}")
        while len(tokens) > length:
            end = len(tokens)
            for n, (last, before) in enumerate(zip(self._last, self._before, strict=True), 1):
                gram, earlier = tuple(tokens[max(0, end - n) :]), before.pop()
                if earlier < 0:
                    del last[gram]
                else:
                    last[gram] = earlier
            tokens.pop()

    def next_tokens(self, count: int, shortest: int = 1) -> tuple[int, ...]:
        """Return `count` tokens that followed the longest end of the sequence that occurred before; none without one.

        Args:
            count: how many.
            shortest: fewest tokens at the end that must have occurred before.
        """
        tokens = self.tokens
        if not tokens or count <= 0:
            return ()
        for before in reversed(self._before[shortest - 1 :]):
            if (match := before[-1]) >= 0:
                behind = tokens[match + 1 : match + 1 + count]
                copied = len(tokens) - 1 - match  # from there on, the copy repeats itself
                return tuple(behind[place % copied] for place in range(count))
        return ()
