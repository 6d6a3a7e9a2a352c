"""The endpoint contract of answers, and of devices: turns, parking, warm followers, progress; see `conformance`."""

from __future__ import annotations

import math

import anyio
import openai
import pytest

from disco.errors import EndpointFailure, FailureKind
from disco.events import Started, Usage
from disco.request import Prefix
from tests.endpoints import conformance as base
from tests.endpoints.conformance import (
    ask,
    check,
    check_of_devices,
    collect,
    complete,
    endless,
    first_content,
    follower,
    fresh,
    next_event,
    parked,
    prompt_next,
    same,
    text_of,
    tokens_of,
)


@check
async def what_it_can_do_it_says(subject, endpoint):
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


@check
async def an_answer_is_batches_and_an_end_with_exact_usage(subject, endpoint):
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


@check
async def opening_does_nothing_until_iterated(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = base.resources()
    attempt = endpoint.open(base.long_prompt(subject))
    await anyio.sleep(0.1)
    assert base.resources() == before
    await prompt_next(subject, endpoint)  # a device that worked on it would not be free now
    await attempt.aclose()
    await attempt.aclose()
    await base.it_has_stopped(attempt)
    assert attempt.usage == Usage()


@check
async def max_tokens_is_respected_under_both_its_names(subject, endpoint):
    for name, limit in (("max_tokens", 1), ("max_completion_tokens", 3)):
        if name in subject.limits:
            continue
        _, tokens, ended, attempt = await complete(endpoint, ask(**{"max_tokens": None, name: limit}))
        assert 1 <= tokens <= limit
        assert ended.finish_reason == "length"
        assert attempt.usage.completion_tokens <= limit + 1


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
    await base.it_has_stopped(attempt)
    await attempt.aclose()
    if "context" not in subject.limits:  # such a server drops the connection, perhaps under the next request
        await prompt_next(subject, endpoint)


@check
async def of_attempts_at_once_one_is_cancelled_and_the_others_are_unmixed(subject, endpoint):
    questions = ["Name three colours.", "What is two plus two?"]
    alone = [(await complete(endpoint, ask(q, max_tokens=6)))[0] for q in questions]
    together = ["", ""]

    async def one(i):
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


@check
async def it_continues_exactly_where_the_prefix_ends(subject, endpoint):
    if not endpoint.capabilities().continues:
        pytest.skip("does not continue")
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
        assert seam.verdict in ("continued", "echo")
        assert seam.sent_chars == len(prefix.sent)
        assert seam.written_chars - seam.swallowed_chars == len(text)
        echo = seam.sent_chars * (seam.verdict == "echo")
        assert not text or seam.swallowed_chars == echo + len(prefix.withheld)


# ---------------------------------------------------------------- devices

STORY = "Once upon a time there was a mill by the river, and the miller had three sons. "


@check_of_devices
async def an_attempt_that_waits_has_not_begun(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    async with endpoint.open(endless(subject)) as first:
        await first_content(first)
        assert endpoint.capabilities().waiting == 1
        async with endpoint.open(fresh()) as second:
            with anyio.move_on_after(0.1):
                await anext(second)
                pytest.fail("two at once")
            assert second.usage == Usage()
            assert second.progress is None
    assert endpoint.capabilities().waiting in (0, 1)  # a job that was just stopped may still leave
    await prompt_next(subject, endpoint)


@check_of_devices
async def progress_is_told_while_it_reads(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    rows, seen = 50, []  # all of it is read here, in several batches
    async with endpoint.open(fresh(rows)) as attempt, anyio.create_task_group() as group:
        assert attempt.progress is None

        async def look():
            while True:
                seen.append(attempt.progress)
                await anyio.sleep(0.005)

        group.start_soon(look)
        began_at = anyio.current_time()
        await next_event(attempt)  # text, or an end: the model may have nothing to say
        took_s = anyio.current_time() - began_at
        group.cancel_scope.cancel()
        last = attempt.progress
    assert last.tokens_done == last.tokens_total > 4 * rows
    told = [one.tokens_done for one in seen if one is not None]
    assert told == sorted(told)
    assert len(set(told)) > 2
    assert last.prefill_tps > 0.5 * last.tokens_total / took_s


@check_of_devices
async def parking(subject, endpoint):
    request = fresh(45, max_tokens=5)  # so that there is a prefill to be parked in
    attempt, told = endpoint.open(request), []

    async def park():
        await anyio.sleep(0.01)
        told.append(attempt.park())

    async with attempt, anyio.create_task_group() as group:
        group.start_soon(park)
        batches, ended = await collect(attempt)
    assert (told, text_of(batches), ended.finish_reason) == ([True], "", "parked")
    assert attempt.usage.prompt_tokens > 100
    assert attempt.usage.completion_tokens == 0
    assert not attempt.park()
    _, _, _, warm = await complete(endpoint, request)
    assert warm.usage.cached_tokens >= 0.9 * warm.usage.prompt_tokens - 8  # its prefill was kept


@check_of_devices
async def a_follower_reads_once_and_never_writes(subject, endpoint):
    request = fresh(20)
    async with follower(endpoint, request) as attempt:  # it still reads when it has been told thrice
        started = await anext(attempt)
        for n in (1, 2, 3):
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
        before = (await parked(attempt)).usage
        assert before == attempt.usage
        assert started == Started(before.cached_tokens)
        assert before.prompt_tokens > 120
        for n in (4, 5):
            assert attempt.extend(Prefix(STORY * n, tokens=20 * n))
            now = (await parked(attempt)).usage
            # The end of the old text may be cut into other tokens in the new one, and is read again then.
            assert 15 <= now.prompt_tokens - before.prompt_tokens <= 30
            assert now.cached_tokens <= before.cached_tokens + 1
            before = now
        progress = attempt.progress
        assert progress.tokens_done == progress.tokens_total
        assert abs(progress.tokens_total - now.prompt_tokens) <= 3
        assert now.completion_tokens == 0
        with anyio.move_on_after(0.1):
            await anext(attempt)
            pytest.fail("there was nothing more to read")
    assert attempt.usage == now
    assert not attempt.extend(Prefix("Once"))
    assert not attempt.follow()
    _, tokens, _, warm = await complete(endpoint, request, Prefix(STORY * 5, tokens=2))
    assert tokens > 0
    assert warm.usage.cached_tokens >= warm.usage.prompt_tokens - 1
    assert warm.usage.prompt_tokens == progress.tokens_total


@check_of_devices
async def an_attempt_can_become_a_follower_which_leaves_the_model_to_others_and_can_end(subject, endpoint):
    async with endpoint.open(ask("Tell me a long story. " * 6, max_tokens=500)) as attempt:
        await first_content(attempt)
        assert attempt.follow()
        first = (await parked(attempt)).usage
        with anyio.fail_after(subject.within_s):
            while endpoint.capabilities().waiting:  # noqa: ASYNC110 - it is another thread's state
                await anyio.sleep(0.005)
        await complete(endpoint, ask("Something else, so that the cache is taken.", max_tokens=4))
        assert attempt.extend(Prefix(STORY, tokens=20))
        again = (await parked(attempt)).usage
        assert attempt.park()
        assert (await collect(attempt))[1].finish_reason == "parked"
        # All but the template's first tokens had to be computed again, and counts again.
        assert again.prompt_tokens - again.cached_tokens > 1.7 * first.prompt_tokens - first.cached_tokens


@check_of_devices
async def a_follower_can_be_stopped_at_any_time(subject, endpoint):
    before = await base.used(endpoint)
    more = Prefix("river " * subject.long_tokens, tokens=5)
    cases = [  # the request, what a follower that waits is told, and who stops it
        (base.long_prompt(subject), None, base.cancelled),
        (ask(), Prefix(), base.cancelled),
        (ask(), Prefix(), base.closed_twice_by_other_tasks),
        (ask(), more, base.cancelled),
    ]
    for request, told, stop in cases:
        attempt = follower(endpoint, request)
        if told is not None:
            await parked(attempt)
        if told:
            attempt.extend(told)
        await base.soon(subject, stop, attempt)
        await attempt.aclose()
        await base.it_has_stopped(attempt)
        await base.nothing_left(before, subject)
    await prompt_next(subject, endpoint)


@check_of_devices
async def log_probabilities_are_given_to_those_who_want_them(subject, endpoint):
    texts = []
    for wants in (frozenset(), frozenset({"logp"})):
        async with endpoint.open(ask(max_tokens=10), wants=wants) as attempt:
            batches, _ = await collect(attempt)
        texts.append(text_of(batches))
        deltas = [delta for batch in batches for delta in batch if delta.tokens]
        assert [delta.logp and len(delta.logp) for delta in deltas] == [
            d.tokens if wants else None for d in deltas
        ]
        assert all(math.isfinite(one) and one <= 1e-5 for delta in deltas for one in delta.logp or ())
    same(subject, *texts)
