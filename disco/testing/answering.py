"""Checks of answers: what an endpoint says it can do, usage, limits, failures, seams, and reports of a prefill."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack

import anyio
import openai

from disco.candidate import PromptSize
from disco.endpoints.contract import Endpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Progress, Started, Usage
from disco.request import Prefix, Request
from disco.testing.asking import (
    ask,
    collect,
    complete,
    endless,
    failure_of,
    first_content,
    fresh,
    it_has_stopped,
    long_prompt,
    same,
    text_of,
    tokens_of,
)
from disco.testing.stopping import prompt_next, resources
from disco.testing.subject import Check, Subject

__all__ = ["ANSWERING", "rises"]

_REPORTS = frozenset({"progress"})


async def what_it_can_do_it_says(subject: Subject, endpoint: Endpoint) -> None:
    """Capabilities agree with what attempts do, before, while and after they write."""
    await endpoint.warm_up()
    await endpoint.warm_up()
    able = endpoint.capabilities("smollm2-135m")
    assert able.ready
    assert able.context_tokens in (None, subject.context_tokens)
    assert endpoint.name
    assert endpoint.place in ("device", "server")
    async with endpoint.open(ask(max_tokens=3)) as attempt:
        assert [attempt.pause(), attempt.resume()] == [False] * 2
        assert able.parks or not attempt.park()
        assert able.follows or not (attempt.follow() or attempt.extend(Prefix("Once")))
        assert isinstance(await anext(attempt), Started) == able.announces
        assert [attempt.pause(), attempt.pause(), attempt.resume()] == [able.pauses] * 3
        assert not attempt.resume()
        await collect(attempt)
    assert [attempt.park(), attempt.follow(), attempt.extend(Prefix("Once"))] == [False] * 3
    assert [attempt.pause(), attempt.resume()] == [False] * 2


async def an_answer_is_batches_and_an_end_with_exact_usage(subject: Subject, endpoint: Endpoint) -> None:
    """Nothing is used before the first event; longer prompts count more; characters are whole."""
    request = ask()
    attempt = endpoint.open(request)
    assert attempt.usage == Usage()
    async with attempt:
        batches, ended = await collect(attempt)
    usage, text = attempt.usage, text_of(batches)
    assert text
    assert ended.finish_reason in ("stop", "length")
    assert usage.completion_tokens - tokens_of(batches) in (0, 1)  # the end token counts or not
    await attempt.aclose()
    assert attempt.usage == usage
    same(subject, text, (await complete(endpoint, request))[0])
    _, _, _, longer = await complete(endpoint, ask("One two three. " * 12, max_tokens=1))
    assert longer.usage.prompt_tokens > usage.prompt_tokens + 24
    # Its characters are several tokens each; what `collect` sees is always complete.
    await complete(endpoint, ask("Repeat exactly: 你好世界 🎉👩‍👩‍👧 ñandú 😀😀😀", max_tokens=12))


async def opening_does_nothing_until_iterated(subject: Subject, endpoint: Endpoint) -> None:
    """An attempt that is only opened uses nothing and holds up nobody."""
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    await anyio.sleep(0.1)
    now = resources()
    assert all(now[kind] <= before[kind] for kind in before), f"before: {before}, now: {now}"
    await prompt_next(subject, endpoint)  # a device that worked on it would not be free now
    await attempt.aclose()
    await attempt.aclose()
    await it_has_stopped(attempt)
    assert attempt.usage == Usage()


async def max_tokens_is_respected_under_both_its_names(subject: Subject, endpoint: Endpoint) -> None:
    """An answer that reaches the limit ends with "length"."""
    for name, limit in (("max_tokens", 1), ("max_completion_tokens", 3)):
        if name in subject.limits:
            continue
        request = ask(max_tokens=limit)
        if name == "max_completion_tokens":
            request = ask(max_tokens=None, max_completion_tokens=limit)
        _, tokens, ended, attempt = await complete(endpoint, request)
        assert 1 <= tokens <= limit
        assert ended.finish_reason == "length"
        assert attempt.usage.completion_tokens <= limit + 1


async def a_prompt_over_the_context_fails_as_such(subject: Subject, endpoint: Endpoint) -> None:
    """The failure is no fault of the caller's, its message quotes nothing, and the next request is served."""
    if "no context" in subject.limits:
        assert endpoint.capabilities().context_tokens is None
        return
    attempt = endpoint.open(ask("river " * (subject.context_tokens * 2)))
    failure = await failure_of(attempt)
    expected = FailureKind.INCOMPLETE if "context" in subject.limits else FailureKind.CONTEXT_LENGTH
    assert failure.kind is expected
    assert isinstance(failure.error, openai.OpenAIError)
    assert "river" not in str(failure.error)
    assert not failure.kind.is_callers_fault
    await it_has_stopped(attempt)
    await attempt.aclose()
    if "context" not in subject.limits:  # such a server drops the connection, perhaps under the next request
        await prompt_next(subject, endpoint)


async def of_attempts_at_once_one_is_cancelled_and_the_others_are_unmixed(
    subject: Subject, endpoint: Endpoint
) -> None:
    """Three at once, one of which is given up: the others write what they write alone."""
    questions = ["Name three colours.", "What is two plus two?"]
    alone = [(await complete(endpoint, ask(q, max_tokens=6)))[0] for q in questions]
    together = ["", ""]

    async def one(i: int) -> None:
        together[i] = (await complete(endpoint, ask(questions[i], max_tokens=6)))[0]

    dropped = endpoint.open(endless(subject))
    async with anyio.create_task_group() as group:
        group.start_soon(one, 0)
        group.start_soon(one, 1)
        with anyio.move_on_after(0.05):
            await first_content(dropped)
        await dropped.aclose()
    for i in (0, 1):
        same(subject, together[i], alone[i])


# ---------------------------------------------------------------- continuing

PREFIXES = [
    Prefix("Once upon a time there was a small ", tokens=9),
    Prefix("Once upon a time there was a mill.\n\n", tokens=10),
    Prefix("Once upon a time there was a beauti", tokens=9, withheld=" beauti"),
    Prefix("A family 👩‍👩‍👧 lived by the river", tokens=15, withheld=" river"),
    Prefix("A mill ends a turn with <|im_end|> and", tokens=14),
]


async def it_continues_exactly_where_the_prefix_ends(subject: Subject, endpoint: Endpoint) -> None:
    """Neither an echo nor a restart nor a repeated word reaches the reader; only for endpoints that continue."""
    del subject
    if not endpoint.capabilities().continues:
        return
    restart, _, _, whole = await complete(endpoint, ask(max_tokens=12))
    assert whole.seam is None, "an answer from its beginning has no seam"
    text, tokens, ended, _ = await complete(endpoint, ask(max_tokens=PREFIXES[0].tokens), PREFIXES[0])
    assert (text, tokens, ended.finish_reason) == ("", 0, "length"), "nothing is left to write"
    for prefix in PREFIXES:
        room = max(8, prefix.tokens + 2)  # for all of an echo, and for a restart
        try:
            text, tokens, ended, attempt = await complete(
                endpoint, ask(max_tokens=prefix.tokens + room), prefix
            )
        except EndpointFailure as failure:
            # Allowed: the withheld piece does not come again, or text cannot tell a control token from its name.
            assert failure.kind is FailureKind.SEAM, prefix.text  # noqa: PT017
            assert prefix.withheld or "<|" in prefix.text, prefix.text
            continue
        assert ended.finish_reason in ("stop", "length")
        # How many tokens the withheld text is to the target, a server's endpoint can only estimate.
        assert tokens <= room + len(prefix.withheld) // 3
        assert not text.startswith(prefix.text), f"an echo of {prefix.text!r}"
        tail = prefix.text[-10:]
        assert not text.lstrip().startswith(tail.lstrip()), f"a repeat after {prefix.text!r}: {text!r}"
        assert not (len(restart) >= 20 and text.lstrip().startswith(restart[:20])), f"a restart: {text!r}"
        # What became of the seam is told, and missing is what repeats the prefix and nothing else.
        seam = attempt.seam
        assert seam is not None, "a seam is not reported"
        assert seam.verdict in ("continued", "echo")
        assert seam.sent_chars == len(prefix.sent)
        assert seam.written_chars - seam.swallowed_chars == len(text)
        echo = seam.sent_chars * (seam.verdict == "echo")
        assert not text or seam.swallowed_chars == echo + len(prefix.withheld)


# ---------------------------------------------------------------- reading


def rises(told: list[Progress]) -> None:
    """Check that reports are in order, one at least for every 128 tokens, from a prefill's beginning to its end."""
    done = [one.tokens_done for one in told]
    assert all(0 < later - earlier <= 128 for earlier, later in itertools.pairwise(done))
    assert len({one.tokens_total for one in told}) == 1
    assert done[-1] == told[-1].tokens_total
    assert told[0].prefill_tps == 0
    assert all(one.prefill_tps > 0 for one in told[1:])


async def progress_is_reported_to_those_who_want_it(subject: Subject, endpoint: Endpoint) -> None:
    """By endpoints that report their prefill, and only where it is asked for."""
    del subject
    await complete(endpoint, fresh(2, max_tokens=2))
    told: list[Progress] = []
    async with endpoint.open(fresh(50, max_tokens=3), wants=_REPORTS) as attempt:
        await collect(attempt, told)
        assert (len(told) > 2) == endpoint.capabilities().progress
        if told:
            rises(told)
            assert attempt.usage.prompt_tokens == told[-1].tokens_total
            assert attempt.usage.cached_tokens == told[0].tokens_done


async def _counted(endpoint: Endpoint, request: Request) -> PromptSize | None:
    """Ask again for a while: an engine that still ends another answer does not count."""
    for _ in range(50):
        size = await endpoint.prompt_size(request, 5.0)
        if size is not None or not endpoint.capabilities().follows:
            break
        await anyio.sleep(0.02)
    return size


async def a_prompts_size_is_what_an_attempt_then_reports(subject: Subject, endpoint: Endpoint) -> None:
    """By endpoints that count prompts without reading them."""
    await complete(endpoint, fresh(2, max_tokens=2))
    request = fresh(30, max_tokens=2)
    size = await _counted(endpoint, request)
    knows_its_cache = endpoint.capabilities().follows  # our engine
    assert size is not None or not knows_its_cache
    *_, attempt = await complete(endpoint, request)
    again = await _counted(endpoint, request)
    if size is None or again is None:
        assert size == again
        return
    assert size.tokens == again.tokens == attempt.usage.prompt_tokens
    if knows_its_cache:
        assert size.cached_tokens == attempt.usage.cached_tokens
        assert again.cached_tokens == size.tokens - 1  # the last token is computed for its logits
    else:
        assert size.cached_tokens == again.cached_tokens == 0
    async with AsyncExitStack() as stack:  # one that works is not asked
        for _ in range(subject.slots):
            await first_content(await stack.enter_async_context(endpoint.open(endless(subject))))
        with anyio.fail_after(1.0):
            assert await endpoint.prompt_size(request, 30.0) is None
    too_long = await endpoint.prompt_size(ask("river " * subject.context_tokens), 5.0)
    assert too_long is None or too_long.tokens > subject.context_tokens  # it may refuse to count that far
    await prompt_next(subject, endpoint)


ANSWERING: tuple[Check, ...] = (
    what_it_can_do_it_says,
    an_answer_is_batches_and_an_end_with_exact_usage,
    opening_does_nothing_until_iterated,
    max_tokens_is_respected_under_both_its_names,
    a_prompt_over_the_context_fails_as_such,
    of_attempts_at_once_one_is_cancelled_and_the_others_are_unmixed,
    it_continues_exactly_where_the_prefix_ends,
    progress_is_reported_to_those_who_want_it,
    a_prompts_size_is_what_an_attempt_then_reports,
)
"""In the order in which they are run."""
