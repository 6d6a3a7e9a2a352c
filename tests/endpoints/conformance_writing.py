"""The endpoint contract about answers: their events, limits, usage, two at once, and continuing; see `conformance`."""

from __future__ import annotations

import anyio
import openai
import pytest

from disco.endpoints.contract import Attempt
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started, Usage
from disco.request import Prefix
from tests.endpoints.conformance import (
    ask,
    check,
    collect,
    complete,
    endless,
    first_content,
    it_has_stopped,
    long_prompt,
    prompt_next,
    resources,
    text_of,
    tokens_of,
)


@check
async def it_yields_batches_then_ended_then_stops(subject, endpoint):
    async with endpoint.open(ask()) as attempt:
        batches, ended = await collect(attempt)
        assert text_of(batches)
        assert ended.finish_reason in ("stop", "length")
        usage = attempt.usage
        assert ended.usage in (None, usage)
    await attempt.aclose()
    assert attempt.usage == usage


@check
async def opening_does_nothing_until_iterated(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    await anyio.sleep(0.1)
    assert resources() == before
    # A device that worked on it would not be free now.
    await prompt_next(subject, endpoint)
    assert attempt.usage == Usage()
    await attempt.aclose()
    await attempt.aclose()
    await it_has_stopped(attempt)
    assert attempt.usage == Usage()


@check
async def text_is_always_complete_utf8(subject, endpoint):
    request = ask("Repeat exactly: 你好世界 🎉👩‍👩‍👧 ñandú 😀😀😀", max_tokens=40)
    async with endpoint.open(request) as attempt:
        batches, _ = await collect(attempt)
    for text in (delta.text for batch in batches for delta in batch):
        assert "\ufffd" not in text
        text.encode("utf-8", errors="strict")


@check
async def the_same_request_gives_the_same_answer(subject, endpoint):
    request = ask("What is the capital of France?", max_tokens=8)
    same(subject, *[(await complete(endpoint, request))[0] for _ in range(2)])


def same(subject, one: str, other: str) -> None:
    if subject.exact:
        assert one == other
    else:  # a cached prompt changes the arithmetic in its last digits, seldom the first word
        assert one.split()[:1] == other.split()[:1]


# ---------------------------------------------------------------- limits and usage


@check
async def max_tokens_is_respected_under_both_its_names(subject, endpoint):
    limits = [("max_tokens", 1), ("max_tokens", 5), ("max_completion_tokens", 3)]
    for name, limit in limits:
        if name in subject.limits:
            continue
        params = {"max_tokens": None, name: limit}
        _, tokens, ended, attempt = await complete(endpoint, ask(**params))
        assert 1 <= tokens <= limit
        assert ended.finish_reason == "length"
        assert attempt.usage.completion_tokens <= limit + 1


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
                assert event.usage in (None, usage)
            elif isinstance(event, list):
                emitted += tokens_of([event])
                assert usage.completion_tokens >= emitted
        assert emitted <= attempt.usage.completion_tokens <= emitted + 1  # the end token counts or not
    assert attempt.usage.completion_tokens == last
    _, _, _, longer = await complete(endpoint, ask("One two three. " * 20, max_tokens=1))
    assert longer.usage.prompt_tokens > attempt.usage.prompt_tokens + 40


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
    await it_has_stopped(attempt)
    await attempt.aclose()
    try:
        await prompt_next(subject, endpoint)
    except EndpointFailure as failed:
        # Such a server drops the connection a moment after it ended the stream, perhaps under the next request.
        assert "context" in subject.limits
        assert failed.kind is FailureKind.CONNECTION  # noqa: PT017
        await prompt_next(subject, endpoint)


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
    for i in (0, 1):
        same(subject, together[i], alone[i])


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
