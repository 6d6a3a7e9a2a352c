"""instructor does the same with AsyncDisco and Disco as with the SDK's own clients, in each of its modes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.frameworks.asked import PARIS, Place

instructor = pytest.importorskip("instructor", reason="instructor is not installed: make test-frameworks")

pytestmark = pytest.mark.anyio


FACTS = PARIS.model_dump()
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Where do you live?"}]}


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
async def test_an_object_whole_and_as_it_fills(client, mode):
    filling = instructor.from_openai(client, mode=instructor.Mode[mode])
    assert (await filling.create(response_model=Place, **ASKED)).model_dump() == FACTS
    partial = [place async for place in filling.create_partial(response_model=Place, **ASKED)]
    assert len(partial) > 2
    assert (partial[0].city, partial[-1].city, partial[-1].country) == (None, "Paris", "France")


async def test_several_tool_calls(client):
    filling = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
    places = list(await filling.create(response_model=Iterable[Place], **ASKED))
    assert [place.model_dump() for place in places] == [FACTS]


async def test_the_completion_beside_the_object_has_its_route(server, ours):
    filling = instructor.from_openai(ours, mode=instructor.Mode.JSON_SCHEMA)
    place, answer = await filling.create_with_completion(
        response_model=Place, extra_body={"disco": {"migrate": False}}, **ASKED
    )
    assert place.model_dump() == FACTS
    assert answer.route.winner == "server"
    assert "disco" not in server.bodies[0]


async def test_the_responses_api(client):
    filling = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
    assert (await filling.create(response_model=Place, **ASKED)).model_dump() == FACTS


def test_the_synchronous_client(sync_client):
    filling = instructor.from_openai(sync_client)
    assert filling.create(response_model=Place, **ASKED).model_dump() == FACTS
    *_, last = filling.create_partial(response_model=Place, **ASKED)
    assert (last.city, last.country) == ("Paris", "France")
