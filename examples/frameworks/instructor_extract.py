"""instructor on two models: a typed object from a text, whole and as a stream of partial objects.

    python examples/frameworks/instructor_extract.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server
and the local model answer. Without it, the local model answers alone: its grammar makes the object complete.
Needs: what docs/how-to/frameworks.md says
"""

import asyncio
import os
from typing import Any

import instructor
from pydantic import BaseModel

from disco import AsyncDisco, Disco

MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")


class Place(BaseModel):
    """A city and its country."""

    city: str
    country: str


def asked(text: str) -> dict[str, Any]:
    """Return the arguments of a request for the place named in `text`."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 60, "temperature": 0.0}


async def main() -> None:
    text = "We met in Lisbon, the capital of Portugal."
    async with AsyncDisco(local="smollm2-135m", preset="balanced") as client:
        filling = instructor.from_openai(client)  # the object is the argument of a tool call
        async for place in filling.create_partial(response_model=Place, **asked(text)):
            print(place)

        whole = instructor.from_openai(
            client, mode=instructor.Mode.JSON_SCHEMA
        )  # the object is the answer itself
        place, answer = await whole.create_with_completion(response_model=Place, **asked(text))
        print(f"{place} by the {answer.route.winner}")


def in_a_script() -> None:
    with Disco(local="smollm2-135m", preset="balanced") as client:
        filling = instructor.from_openai(client)
        print(filling.create(response_model=Place, **asked("I live in Rome, the capital of Italy.")))


asyncio.run(main())
in_a_script()
