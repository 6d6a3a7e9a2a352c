"""The endpoint contract as code: every promise of `disco/endpoints/contract.py` that can be observed.

A check is an async function of a `Subject` and a fresh endpoint. `CHECKS` lists them; `test_conformance.py`
runs each on every endpoint and event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio
import openai
import pytest
import sniffio
from promptly import CPU_S, WITHIN_S, Since, cpu_s

from disco.endpoints.contract import Attempt, Endpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, DeltaKind, Ended, Started, Usage
from disco.request import Prefix, Request


@dataclass(frozen=True)
class Subject:
    """An endpoint under test.

    Attributes:
        make: makes a fresh endpoint for one test.
        context_tokens: prompt and answer together.
        exact: the text is the same whatever was cached: no floating-point arithmetic is involved.
        prompt_s: how much work a cancelled attempt may still make, in seconds of processor time.
        within_s: how long it may go on, with room for a busy machine.
        work_s: seconds of processor time the endpoint has used so far; with a simulated one, nothing works.
        long_tokens: length of a prompt whose prefill is long enough to be cancelled in the middle.
        limits: what the model's server (not the endpoint) is known to get wrong: "max_completion_tokens" (it
            ignores it), "context" (a prompt too long for it is an empty stream).
    """

    make: Callable[[], AbstractAsyncContextManager[Endpoint]]
    context_tokens: int
    exact: bool = False
    prompt_s: float = CPU_S
    within_s: float = WITHIN_S
    work_s: Callable[[], float] = cpu_s
    long_tokens: int = 1400
    limits: frozenset[str] = frozenset()


Check = Callable[[Subject, Endpoint], Awaitable[None]]
CHECKS: list[Check] = []
_NUMBERS = itertools.count(1000)


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


# ---------------------------------------------------------------- tools


def since(subject: Subject) -> Since:
    """A stopwatch of what the subject does from now on."""
    return Since(subject.work_s, anyio.current_time)


async def soon(subject: Subject, what: Callable[[], Awaitable[object]]) -> None:
    """It is done soon, or given up."""
    began = since(subject)
    with anyio.fail_after(subject.within_s):
        await what()
    began.check(subject.prompt_s, subject.within_s)


def ask(text="Write a long story about a river and a mill.", max_tokens=12, **params) -> Request:
    params = {"temperature": 0.0, "seed": 1, "max_tokens": max_tokens, **params}
    return Request([{"role": "user", "content": text}], "smollm2-135m", params)


def long_prompt(subject: Subject, words: int | None = None) -> Request:
    # No earlier one is in the cache.
    return ask(f"{next(_NUMBERS)} " + "river " * (words or subject.long_tokens))


def endless(subject: Subject) -> Request:
    return ask(max_tokens=subject.context_tokens // 2)


async def collect(attempt: Attempt) -> tuple[list[list[Delta]], Ended]:
    """Iterate to the end; the rules of iteration are checked on the way."""
    batches: list[list[Delta]] = []
    ended = None
    first = True
    async for event in attempt:
        assert ended is None, "something came after Ended"
        if isinstance(event, Started):
            assert first, "Started is not the first event"
            first = False
            continue
        first = False
        if isinstance(event, Ended):
            ended = event
            continue
        assert isinstance(event, list)
        assert event, "an empty batch"
        assert all(isinstance(delta, Delta) for delta in event)
        batches.append(event)
    assert ended is not None, "iteration stopped without Ended"
    for _ in range(3):
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)
    return batches, ended


async def next_event(attempt: Attempt):
    """The next event that is not `Started`."""
    while isinstance(event := await anext(attempt), Started):
        pass
    return event


async def complete(endpoint: Endpoint, request: Request, prefix: Prefix | None = None):
    async with endpoint.open(request) if prefix is None else endpoint.open(request, prefix) as attempt:
        batches, ended = await collect(attempt)
    return text_of(batches), tokens_of(batches), ended, attempt


def text_of(batches: list[list[Delta]]) -> str:
    return "".join(delta.text for batch in batches for delta in batch)


def tokens_of(batches: list[list[Delta]]) -> int:
    return sum(d.tokens for batch in batches for d in batch if d.kind is not DeltaKind.ROLE)


async def first_content(attempt: Attempt) -> None:
    while True:
        event = await anext(attempt)
        if isinstance(event, Started):
            continue
        assert isinstance(event, list)
        if any(delta.kind is not DeltaKind.ROLE for delta in event):
            return


def resources() -> dict[str, int]:
    """What a forgotten attempt would leave behind, by kind."""
    # The loops' own workers (asyncio looks host names up in one) are nobody's attempt.
    loops = ("asyncio_", "Trio thread", "AnyIO worker")
    found = {"threads": sum(not thread.name.startswith(loops) for thread in threading.enumerate())}
    if sniffio.current_async_library() == "trio":
        import trio

        found["tasks"] = trio.lowlevel.current_statistics().tasks_living
    else:
        import asyncio

        found["tasks"] = len(asyncio.all_tasks())
    with contextlib.suppress(OSError):
        links = [_link(fd) for fd in Path("/proc/self/fd").iterdir()]
        found["sockets"] = sum(link.startswith("socket:") for link in links)
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


async def nothing_left(before: dict[str, int], subject: Subject) -> None:
    """Wait until no more is there than before; a closed socket may take the loop a moment."""
    began = since(subject)
    while any(resources()[kind] > before[kind] for kind in before):
        left = f"left running: {resources()}, before: {before}"
        began.check(subject.prompt_s, subject.within_s, left)
        await anyio.sleep(0.02)


async def prompt_next(subject: Subject, endpoint: Endpoint) -> None:
    """The next attempt works, and need not wait for what was cancelled."""
    began = since(subject)
    _, tokens, ended, _ = await complete(endpoint, ask("Say hello.", max_tokens=2))
    assert tokens <= 2
    assert ended.finish_reason in ("stop", "length")
    began.check(subject.prompt_s + 1.0, subject.within_s)


# ---------------------------------------------------------------- iteration


@check
async def it_yields_batches_then_ended_then_stops(subject, endpoint):
    async with endpoint.open(ask()) as attempt:
        batches, ended = await collect(attempt)
        assert text_of(batches)
        assert ended.finish_reason in ("stop", "length")


@check
async def opening_does_nothing_until_iterated(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    await anyio.sleep(0.1)
    assert attempt.usage == Usage()
    assert resources() == before
    # A device that worked on it would not be free now.
    await prompt_next(subject, endpoint)
    assert attempt.usage == Usage()
    await attempt.aclose()
    assert attempt.usage == Usage()


@check
async def text_is_always_complete_utf8(subject, endpoint):
    request = ask("Repeat exactly: 你好世界 🎉👩‍👩‍👧 ñandú 😀😀😀", max_tokens=40)
    async with endpoint.open(request) as attempt:
        batches, _ = await collect(attempt)
    for batch in batches:
        for delta in batch:
            assert "\ufffd" not in delta.text
            delta.text.encode("utf-8", errors="strict")


@check
async def the_same_request_gives_the_same_answer(subject, endpoint):
    first = await complete(endpoint, ask("What is the capital of France?", max_tokens=8))
    again = await complete(endpoint, ask("What is the capital of France?", max_tokens=8))
    if subject.exact:
        assert first[0] == again[0]
    else:  # a cached prompt changes the arithmetic in its last digits, seldom the first word
        assert first[0].split()[:1] == again[0].split()[:1]


# ---------------------------------------------------------------- limits and usage


@check
async def max_tokens_is_respected(subject, endpoint):
    for limit in (1, 5):
        _, tokens, ended, attempt = await complete(endpoint, ask(max_tokens=limit))
        assert 1 <= tokens <= limit
        assert ended.finish_reason == "length"
        assert attempt.usage.completion_tokens <= limit + 1


@check
async def max_tokens_under_its_other_name(subject, endpoint):
    if "max_completion_tokens" in subject.limits:
        pytest.skip("the server ignores it")
    request = Request(
        [{"role": "user", "content": "Tell me a story."}], "smollm2-135m", {"max_completion_tokens": 3}
    )
    _, tokens, ended, _ = await complete(endpoint, request)
    assert 1 <= tokens <= 3
    assert ended.finish_reason == "length"


@check
async def what_is_written_already_lowers_max_tokens(subject, endpoint):
    if not endpoint.capabilities().continues:
        pytest.skip("does not continue")
    prefix = Prefix("Once upon a time there was", tokens=6)
    _, tokens, ended, _ = await complete(endpoint, ask(max_tokens=10), prefix)
    assert 1 <= tokens <= 4
    assert ended.finish_reason == "length"
    for limit in (6, 3):  # nothing is left to write
        text, tokens, ended, _ = await complete(endpoint, ask(max_tokens=limit), prefix)
        assert (text, tokens, ended.finish_reason) == ("", 0, "length")


@check
async def usage_grows_and_is_exact_in_the_end(subject, endpoint):
    async with endpoint.open(ask(max_tokens=20)) as attempt:
        assert attempt.usage == Usage()
        emitted = last = 0
        async for event in attempt:
            usage = attempt.usage
            assert usage.prompt_tokens > 0 or isinstance(event, Started)
            assert 0 <= usage.cached_tokens <= usage.prompt_tokens
            assert usage.completion_tokens >= last
            last = usage.completion_tokens
            if isinstance(event, Ended):
                if event.usage is not None:
                    assert usage == event.usage
            elif isinstance(event, list):
                emitted += tokens_of([event])
                assert usage.completion_tokens >= emitted
        assert emitted <= attempt.usage.completion_tokens <= emitted + 1  # the end token counts or not
    assert attempt.usage.completion_tokens == last


@check
async def a_longer_prompt_is_more_usage(subject, endpoint):
    _, _, _, short = await complete(endpoint, ask("One.", max_tokens=1))
    _, _, _, long = await complete(endpoint, ask("One two three. " * 14, max_tokens=1))
    assert long.usage.prompt_tokens > short.usage.prompt_tokens + 40


@check
async def a_prompt_over_the_context_fails_as_such(subject, endpoint):
    attempt = endpoint.open(ask("river " * (subject.context_tokens * 2)))
    with pytest.raises(EndpointFailure) as failure:
        await collect(attempt)
    expected = FailureKind.INCOMPLETE if "context" in subject.limits else FailureKind.CONTEXT_LENGTH
    assert failure.value.kind is expected
    assert isinstance(failure.value.error, openai.OpenAIError)
    assert "river" not in str(failure.value.error)
    assert not failure.value.kind.is_callers_fault
    with pytest.raises(StopAsyncIteration):
        await anext(attempt)
    await attempt.aclose()
    try:
        await prompt_next(subject, endpoint)
    except EndpointFailure as failed:
        # Such a server drops the connection a moment after it ended the stream, perhaps under the next request.
        assert "context" in subject.limits
        assert failed.kind is FailureKind.CONNECTION  # noqa: PT017
        await prompt_next(subject, endpoint)


# ---------------------------------------------------------------- stopping


@check
async def closing_before_the_start(subject, endpoint):
    attempt = endpoint.open(ask())
    await attempt.aclose()
    await attempt.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(attempt)
    assert attempt.usage == Usage()


@check
async def cancelling_before_the_first_token(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    async with attempt:
        with anyio.move_on_after(0.05) as scope:
            await first_content(attempt)
            pytest.fail("the prompt is too short to be cancelled")
        cancelled = since(subject)
        assert scope.cancelled_caught
    cancelled.check(subject.prompt_s, subject.within_s)
    await nothing_left(before, subject)
    assert attempt.usage.completion_tokens == 0
    with pytest.raises(StopAsyncIteration):
        await anext(attempt)
    await prompt_next(subject, endpoint)


@check
async def cancelling_in_mid_answer(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(endless(subject))
    async with attempt:
        await first_content(attempt)
        with anyio.move_on_after(0.05) as scope:
            async for _ in attempt:
                pass
        assert scope.cancelled_caught
        cancelled = since(subject)
    cancelled.check(subject.prompt_s, subject.within_s)
    assert attempt.usage.prompt_tokens > 0
    assert attempt.usage.completion_tokens > 0
    charged = attempt.usage
    await nothing_left(before, subject)
    await prompt_next(subject, endpoint)
    assert attempt.usage == charged


@check
async def closing_in_mid_answer_without_iterating_on(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(endless(subject))
    await first_content(attempt)
    await soon(subject, attempt.aclose)
    await attempt.aclose()
    await nothing_left(before, subject)
    with pytest.raises(StopAsyncIteration):
        await anext(attempt)
    await prompt_next(subject, endpoint)


@check
async def closing_from_another_task_ends_the_iteration(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    for request in (long_prompt(subject), endless(subject)):
        attempt = endpoint.open(request)
        finished = anyio.Event()

        async def consume(attempt=attempt, finished=finished):
            with contextlib.suppress(EndpointFailure, anyio.ClosedResourceError):
                async for event in attempt:
                    assert not isinstance(event, Ended)
            finished.set()

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await anyio.sleep(0.05)

            async def close(attempt=attempt, finished=finished):
                async with anyio.create_task_group() as closers:
                    closers.start_soon(attempt.aclose)
                    closers.start_soon(attempt.aclose)
                await finished.wait()

            await soon(subject, close)
        with pytest.raises(StopAsyncIteration):
            await anext(attempt)
        await nothing_left(before, subject)
    await prompt_next(subject, endpoint)


@check
async def closing_after_the_end(subject, endpoint):
    _, _, ended, attempt = await complete(endpoint, ask(max_tokens=3))
    usage = attempt.usage
    await attempt.aclose()
    assert attempt.usage == usage
    assert ended.usage is None or ended.usage == usage


@check
async def closing_under_cancellation_still_closes(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(endless(subject))
    await first_content(attempt)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await attempt.aclose()
    await soon(subject, attempt.aclose)
    await nothing_left(before, subject)
    await prompt_next(subject, endpoint)


@check
async def closing_the_endpoint_stops_its_attempts(subject, endpoint):
    before = resources()
    attempt = endpoint.open(endless(subject))
    await first_content(attempt)
    await soon(subject, endpoint.aclose)
    await endpoint.aclose()
    with anyio.fail_after(subject.within_s), contextlib.suppress(EndpointFailure, anyio.ClosedResourceError):
        async for event in attempt:
            assert not isinstance(event, Ended)
    await attempt.aclose()
    await nothing_left(before, subject)


# ---------------------------------------------------------------- side by side


@check
async def two_attempts_at_once_both_complete_unmixed(subject, endpoint):
    questions = ["Name three colours.", "What is two plus two?"]
    alone = [(await complete(endpoint, ask(q, max_tokens=6)))[0] for q in questions]
    together = ["", ""]

    async def one(i):
        text, tokens, ended, _ = await complete(endpoint, ask(questions[i], max_tokens=6))
        assert tokens <= 6
        assert ended.finish_reason in ("stop", "length")
        together[i] = text

    async with anyio.create_task_group() as group:
        group.start_soon(one, 0)
        group.start_soon(one, 1)
    if subject.exact:
        assert together == alone
    else:
        assert [t.split()[:1] for t in together] == [t.split()[:1] for t in alone]


@check
async def cancelling_one_of_two_leaves_the_other(subject, endpoint):
    kept, dropped = endpoint.open(ask(max_tokens=30)), endpoint.open(endless(subject))
    result = []

    async def consume():
        result.append(await collect(kept))

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with anyio.move_on_after(0.05):
            await first_content(dropped)
        await dropped.aclose()
    batches, ended = result[0]
    assert ended.finish_reason in ("stop", "length")
    assert text_of(batches)
    await kept.aclose()


# ---------------------------------------------------------------- continuing


PREFIXES = [
    Prefix("Once upon a time there was a small", tokens=8),
    Prefix("Once upon a time there was a small ", tokens=9),
    Prefix("Once upon a time there was a mill.\n", tokens=10),
    Prefix("Once upon a time there was a mill.\n\n", tokens=10),
    Prefix("Once upon a time there was a beauti", tokens=9, withheld=" beauti"),
    Prefix("Once upon a time there was", tokens=6, withheld=" was"),
    Prefix("Once", tokens=1, withheld="Once"),
    Prefix("They all danced at the mill 🎉", tokens=10),
    Prefix("A family 👩‍👩‍👧 lived by the river", tokens=15, withheld=" river"),
    Prefix("从前有一条河", tokens=12),
    Prefix("A mill ends a turn with <|im_end|> and", tokens=14),
]


@check
async def it_continues_exactly_where_the_prefix_ends(subject, endpoint):
    if not endpoint.capabilities().continues:
        pytest.skip("does not continue")
    restart, _, _, whole = await complete(endpoint, ask(max_tokens=20))
    assert whole.seam is None, "an answer from its beginning has no seam"
    for prefix in PREFIXES:
        room = max(8, prefix.tokens + 2)  # for all of an echo, and for a restart
        asked = ask(max_tokens=prefix.tokens + room)
        try:
            text, tokens, ended, attempt = await complete(endpoint, asked, prefix)
        except EndpointFailure as failure:
            # Allowed by the contract: the withheld piece does not come again, or a prompt that is sent as
            # text cannot tell a control token from its name.
            assert failure.kind is FailureKind.SEAM, prefix.text  # noqa: PT017
            assert prefix.withheld or "<|" in prefix.text, prefix.text
            continue
        assert ended.finish_reason in ("stop", "length")
        # How many tokens the withheld text is to the target, a server's endpoint can only estimate.
        assert tokens <= room + len(prefix.withheld) // 3
        assert attempt.usage.prompt_tokens > 0
        assert not text.startswith(prefix.text), f"an echo of {prefix.text!r}"
        tail = prefix.text[-10:]
        assert not text.lstrip().startswith(tail.lstrip()), f"a repeat after {prefix.text!r}: {text!r}"
        assert not (len(restart) >= 20 and text.lstrip().startswith(restart[:20])), f"a restart: {text!r}"
        assert "\ufffd" not in text
        text.encode("utf-8", errors="strict")
        its_seam_adds_up(attempt, prefix, text)


def its_seam_adds_up(attempt: Attempt, prefix: Prefix, text: str) -> None:
    """What became of the seam is told, and missing is what repeats the prefix and nothing else."""
    seam = attempt.seam
    assert seam is not None
    assert seam.verdict in ("continued", "echo")
    assert seam.sent_chars == len(prefix.sent)
    assert seam.written_chars - seam.swallowed_chars == len(text)
    if text:
        echo_chars = seam.sent_chars if seam.verdict == "echo" else 0
        assert seam.swallowed_chars == echo_chars + len(prefix.withheld)


@check
async def it_goes_on_with_its_own_answer(subject, endpoint):
    if not endpoint.capabilities().continues:
        pytest.skip("does not continue")
    whole, tokens, _, _ = await complete(endpoint, ask(max_tokens=16))
    cuts = sorted({len(whole) // 3, len(whole) // 2, whole.rfind(" ", 0, len(whole) // 2)})
    for cut in (c for c in cuts if c > 0):
        text = whole[:cut]
        # Hand over as a session does: from the whitespace before the last, perhaps incomplete, word.
        word_at = max(text.rfind(" "), text.rfind("\n"), 0)
        prefix = Prefix(text, tokens=tokens // 2, withheld=text[word_at:])
        try:
            rest, _, _, _ = await complete(endpoint, ask(max_tokens=16 + tokens // 2), prefix)
        except EndpointFailure as failure:
            assert failure.kind is FailureKind.SEAM  # noqa: PT017
            continue
        if subject.exact:
            assert (text + rest).startswith(whole)
        else:
            assert rest
            # The end of the word that was cut is written once: the same word as before the cut.
            assert (text + rest)[word_at:].split()[:1] == whole[word_at:].split()[:1]


# ---------------------------------------------------------------- parking


@check
async def parking(subject, endpoint):
    if not endpoint.capabilities().parks:
        attempt = endpoint.open(ask(max_tokens=3))
        assert not attempt.park()
        await collect(attempt)
        assert not attempt.park()
        return
    # A prompt that no earlier check has left in the cache, so that there is a prefill to be parked in.
    request = ask(f"{next(_NUMBERS)} " + "river mill water stone " * 45, max_tokens=5)
    async with endpoint.open(request) as attempt:
        parked: list[bool] = []

        async def park():
            await anyio.sleep(0.01)
            parked.append(attempt.park())

        async with anyio.create_task_group() as group:
            group.start_soon(park)
            batches, ended = await collect(attempt)
        assert parked == [True]
        assert ended.finish_reason == "parked"
        assert not text_of(batches)
        assert attempt.usage.prompt_tokens > 100
        assert attempt.usage.completion_tokens == 0
        assert not attempt.park()
    _, tokens, _, warm = await complete(endpoint, request)
    assert 1 <= tokens <= 5
    assert warm.usage.cached_tokens >= 0.9 * warm.usage.prompt_tokens - 8  # its prefill was kept


@check
async def a_parked_attempt_can_be_closed(subject, endpoint):
    if not endpoint.capabilities().parks:
        pytest.skip("servers do not park")
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    attempt.park()
    with anyio.move_on_after(0.1):
        await collect(attempt)
    await soon(subject, attempt.aclose)
    await nothing_left(before, subject)
    await prompt_next(subject, endpoint)


# ---------------------------------------------------------------- the endpoint


@check
async def capabilities_are_consistent(subject, endpoint):
    await endpoint.warm_up()
    await endpoint.warm_up()
    capabilities = endpoint.capabilities("smollm2-135m")
    assert capabilities.ready
    assert capabilities.context_tokens in (None, subject.context_tokens)
    assert endpoint.name
    assert endpoint.place in ("device", "server")
