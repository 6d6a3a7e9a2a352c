"""The same over real connections: the synchronous client, the SDK's helpers, and `disco serve`."""

from __future__ import annotations

from typing import Any

import anyio.from_thread
import openai
import pytest
import scripted_server as scripted
from answers.two_servers import GOOD, TOOLS, called
from scripted_server import chunk, scripted_server, sse
from serving import serving

from disco import AsyncDisco, Backup, Disco

pytestmark = pytest.mark.real

ROME = '{"city": "Rome"}'
STUMP = [chunk(**called("", name="weather")), chunk(**called('{"ci')), chunk(finish="tool_calls")]
WHOLE = [chunk(**called("", name="weather")), chunk(**called(ROME)), chunk(finish="tool_calls")]
EMPTY = [chunk(role="assistant"), chunk(finish="stop")]
TEXT = [chunk(GOOD), chunk(finish="stop")]
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Rhine?"}]}


@pytest.fixture
def portal():
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        yield portal


def served(portal: Any, events: list[Any]) -> Any:
    return portal.wrap_async_context_manager(scripted_server(scripted.stream(sse(*events))))


def settings(first: Any, second: Any) -> dict[str, Any]:
    backup = Backup(base_url=second.base_url, api_key="k", model="m", price=(1, 1), continuation="none")
    at = {"base_url": first.base_url, "api_key": "k", "price": (1, 1), "continuation": "none"}
    return {**at, "backups": [backup]}


@pytest.mark.parametrize("way", ["streamed", "whole", "helper"])
@pytest.mark.parametrize(("broken", "answer"), [(EMPTY, TEXT), (STUMP, WHOLE)], ids=["empty", "half a call"])
def test_the_synchronous_client(portal, broken, answer, way):
    with (
        served(portal, broken) as first,
        served(portal, answer) as second,
        Disco(**settings(first, second)) as client,
    ):
        asked = {**ASKED, "tools": TOOLS}
        if way == "streamed":
            deltas = [each.choices[0].delta for each in client.chat.completions.create(**asked, stream=True)]
            text = "".join(delta.content or "" for delta in deltas)
            calls = [call.function.arguments for delta in deltas for call in delta.tool_calls or []]
        else:
            if way == "helper":
                with client.chat.completions.stream(**asked) as events:
                    message = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            text, calls = message.content or "", [c.function.arguments for c in message.tool_calls or []]
        assert (text, "".join(calls)) == ((GOOD, "") if answer is TEXT else ("", ROME))


def test_the_text_that_is_cut_is_in_the_synchronous_error(portal):
    cut, seen = [chunk("The "), chunk("Rhine "), {"error": {"message": "boom"}}], []
    with (
        served(portal, cut) as first,
        served(portal, cut) as second,
        Disco(**settings(first, second), max_retries=0) as client,
    ):
        chunks = client.chat.completions.create(**ASKED, stream=True)
        with pytest.raises(openai.OpenAIError) as caught:
            seen.extend(each.choices[0].delta.content for each in chunks)
        assert ("".join(seen), caught.value.partial_text) == ("The Rhine ", "The Rhine ")
        with pytest.raises(openai.OpenAIError) as caught:
            client.chat.completions.create(**ASKED)
        assert caught.value.partial_text == "The Rhine "


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("broken", "answer"), [(EMPTY, TEXT), (STUMP, WHOLE)], ids=["empty", "half a call"])
def test_disco_serve(portal, broken, answer, stream):
    with served(portal, broken) as first, served(portal, answer) as second:
        made = settings(first, second)
        with serving(lambda **given: AsyncDisco(**made, **given)) as disco:
            got = disco.ask("/v1/chat/completions", {**ASKED, "tools": TOOLS, "stream": stream})
            assert got.status == 200
            assert ("Rhine" if answer is TEXT else "Rome") in got.body.decode()
            assert disco.routes[0].attempts[0].failure == "incomplete"
            assert b'{\\"ci"' not in got.body
