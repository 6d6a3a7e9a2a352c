"""C3: an attempt whose iterator stops without saying that it ended has failed."""

from __future__ import annotations

import anyio
import openai
import pytest
from defects.asking import Server, client, continuing, preset, streamed, text_of, virtually, whole
from defects.parts import CustomAttempt, CustomEndpoint, Delta

DEVICE_FIRST = preset("device_only")


class Quits(CustomEndpoint):
    """A device whose attempts stop after so many words, without an end and without a failure."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.words = words

    def open(self, request, prefix=None):
        return QuittingAttempt(self.words)


class QuittingAttempt(CustomAttempt):
    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.left = list(words)

    async def _next(self):
        await anyio.sleep(0.1)
        if not self.left:
            raise StopAsyncIteration
        return [Delta(self.left.pop(0))]


async def ask(one, *, stream: bool):
    if not stream:
        got = await whole(one)
        return got.choices[0].message.content, got.route
    chunks = await streamed(one)
    return await text_of(chunks), chunks.route


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("words", [[], ["The", " sea"]], ids=["before any text", "in mid-answer"])
def test_the_other_endpoint_takes_over(words, stream):
    """On c5a62d7 nothing took over: TimeoutError after the 60 s that this test waits."""

    async def main():
        async with client(
            Server(continuing("The sea is wide.")), local=Quits(words), policy=DEVICE_FIRST
        ) as one:
            began_at = anyio.current_time()
            with anyio.fail_after(60):
                text, route = await ask(one, stream=stream)
            assert anyio.current_time() - began_at < 5
        assert text == "The sea is wide."
        assert [t.endpoint for t in route.attempts] == ["device", "server"]
        assert route.attempts[0].failure is not None

    virtually(main)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("words", [[], ["The", " sea"]], ids=["before any text", "in mid-answer"])
def test_with_nobody_else_it_is_an_error_and_soon(words, stream):
    """On c5a62d7 the reader hung: TimeoutError after the 60 s that this test waits (total_s is 600)."""

    async def main():
        async with client(local=Quits(words), policy=DEVICE_FIRST) as one:
            began_at = anyio.current_time()
            with anyio.fail_after(60), pytest.raises(openai.OpenAIError) as caught:
                await ask(one, stream=stream)
            assert anyio.current_time() - began_at < 5
        assert caught.value.partial_text == "".join(words)
        assert caught.value.route.finish_reason is None

    virtually(main)
