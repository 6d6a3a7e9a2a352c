"""The endpoint contract about answers: their events, limits, usage, two at once, and continuing; see `conformance`."""

from __future__ import annotations

import anyio
import openai
import pytest

from disco.errors import EndpointFailure, FailureKind
from disco.events import Started, Usage
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
        assert able.parks or not attempt.park()
        assert able.follows or not (attempt.follow() or attempt.extend(Prefix("Once")))
        assert isinstance(await anext(attempt), Started) == able.announces
        await collect(attempt)
    assert [attempt.park(), attempt.follow(), attempt.extend(Prefix("Once"))] == [False] * 3


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
    assert (
        tokens_of(batches) <= usage.completion_tokens <= tokens_of(batches) + 1
    )  # the end token counts or not
    await attempt.aclose()
    assert attempt.usage == usage
    same(subject, text, (await complete(endpoint, request))[0])
    _, _, _, longer = await complete(endpoint, ask("One two three. " * 20, max_tokens=1))
    assert longer.usage.prompt_tokens > usage.prompt_tokens + 40
    # Its characters are several tokens each; what `collect` sees is always complete.
    await complete(endpoint, ask("Repeat exactly: 你好世界 🎉👩‍👩‍👧 ñandú 😀😀😀", max_tokens=24))


@check
async def opening_does_nothing_until_iterated(subject, endpoint):
    await complete(endpoint, ask(max_tokens=2))
    before = resources()
    attempt = endpoint.open(long_prompt(subject))
    await anyio.sleep(0.1)
    assert resources() == before
    await prompt_next(subject, endpoint)  # a device that worked on it would not be free now
    assert attempt.usage == Usage()
    await attempt.aclose()
    await attempt.aclose()
    await it_has_stopped(attempt)
    assert attempt.usage == Usage()


@check
async def max_tokens_is_respected_under_both_its_names(subject, endpoint):
    for name, limit in (("max_tokens", 1), ("max_tokens", 5), ("max_completion_tokens", 3)):
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
    await it_has_stopped(attempt)
    await attempt.aclose()
    try:
        await prompt_next(subject, endpoint)
    except EndpointFailure as failed:
        # Such a server drops the connection a moment after it ended the stream, perhaps under the next request.
        assert "context" in subject.limits
        assert failed.kind is FailureKind.CONNECTION  # noqa: PT017
        await prompt_next(subject, endpoint)


@check
async def of_attempts_at_once_one_is_cancelled_and_the_others_are_unmixed(subject, endpoint):
    questions = ["Name three colours.", "What is two plus two?"]
    alone = [(await complete(endpoint, ask(q, max_tokens=6)))[0] for q in questions]
    together = ["", ""]

    async def one(i):
        together[i], tokens, ended, _ = await complete(endpoint, ask(questions[i], max_tokens=6))
        assert tokens <= 6
        assert ended.finish_reason in ("stop", "length")

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
    Prefix("Once upon a time there was a small", tokens=8),
    Prefix("Once upon a time there was a small ", tokens=9),
    Prefix("Once upon a time there was a mill.\n\n", tokens=10),
    Prefix("Once upon a time there was a beauti", tokens=9, withheld=" beauti"),
    Prefix("Once", tokens=1, withheld="Once"),
    Prefix("A family 👩‍👩‍👧 lived by the river", tokens=15, withheld=" river"),
    Prefix("A mill ends a turn with <|im_end|> and", tokens=14),
]


@check
async def it_continues_exactly_where_the_prefix_ends(subject, endpoint):
    if not endpoint.capabilities().continues:
        pytest.skip("does not continue")
    restart, _, _, whole = await complete(endpoint, ask(max_tokens=20))
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
            # Allowed by the contract: the withheld piece does not come again, or a prompt that is sent as
            # text cannot tell a control token from its name.
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
        echo_chars = seam.sent_chars if seam.verdict == "echo" else 0
        assert not text or seam.swallowed_chars == echo_chars + len(prefix.withheld)
