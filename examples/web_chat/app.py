"""A chat in the browser: your server answers; a backup, then a model on this machine take over when it fails.

    python examples/web_chat/app.py                  # then open http://127.0.0.1:8000
    python examples/web_chat/app.py --demo-server    # without a provider: a server on this machine stands in for one

Your server is the one in OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL, the backup the one in BACKUP_API_KEY,
BACKUP_BASE_URL and BACKUP_MODEL. Without any of them the local model answers alone.
What an application of yours has to change is marked CHANGE.
Needs: pip install fastapi uvicorn, and a local model: docs/start/install.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import openai
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, StreamingResponse
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic import BaseModel, Field, ValidationError

import disco
from disco.reasons import sentence
from disco.testing import ModelServer

# CHANGE: the model of your server, its price (USD per million tokens in and out) where `disco prices check` knows none,
# and the model on this machine, which answers when no server does.
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
PRICE: tuple[float, float] | None = None
LOCAL = "smollm2-135m"
# CHANGE: the most that all servers together may cost, and a name of its own, so that no other program spends it.
BUDGET: disco.Budget = {"usd": 5, "per": "month", "account": "web-chat"}
MOST_CONVERSATIONS = 1000  # kept in memory; the oldest goes first
MOST_ROUNDS = 4  # requests for one answer: the model may call a function, see its result, and call another


def backups() -> list[disco.Backup]:
    """Return the servers that answer when the first one does not, in their order."""
    # CHANGE: another provider, with its own name for the model.
    if "BACKUP_API_KEY" not in os.environ:
        return []
    base_url = os.environ.get("BACKUP_BASE_URL", "https://openrouter.ai/api/v1")
    model = os.environ.get("BACKUP_MODEL", "openai/gpt-4o-mini")
    return [disco.Backup(base_url=base_url, api_key=os.environ["BACKUP_API_KEY"], model=model)]


class Tool(BaseModel):
    """A function that a model may call: its docstring and fields are what the model is told."""

    def run(self) -> str:
        """Return the result, for the model."""
        raise NotImplementedError


# CHANGE: what your application can look up or do. Check here what the user may do: the arguments are a model's words.
class TimeIn(Tool):
    """The date and the time of day, now, in a time zone."""

    zone: str = Field(description="IANA name of the time zone, such as Europe/Paris")

    def run(self) -> str:
        if self.zone not in available_timezones():
            return f"No time zone is called {self.zone}."
        return f"{datetime.now(ZoneInfo(self.zone)):%A, %d %B %Y, %H:%M}"


TOOLS: dict[str, type[Tool]] = {"TimeIn": TimeIn}


class Title(BaseModel):
    """The form of an answer that a program reads: its JSON schema goes with the request."""

    title: str = Field(description="what the conversation is about, in at most five words")


class Question(BaseModel):
    """What the page asks."""

    text: str = Field(min_length=1, max_length=8000)
    tools: bool = False  # an answer that may call functions is continued by no other endpoint


@dataclass
class Conversation:
    """What one tab has asked and read; one answer at a time."""

    messages: list[Mapping[str, object]] = field(default_factory=list[Mapping[str, object]])
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class Bill:
    """What all answers cost, stopped and failed ones included."""

    usd: float = 0.0
    device_energy_j: float = 0.0

    def add(self, route: disco.RouteRecord) -> None:
        self.usd += route.bill_usd
        self.device_energy_j += route.device_energy_j or 0.0  # None: not known


@dataclass
class Call:
    """A function that the model calls. Its parts come in several chunks."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def add(self, part: ChoiceDeltaToolCall) -> None:
        self.id = part.id or self.id
        if part.function is not None:
            self.name = part.function.name or self.name
            self.arguments += part.function.arguments or ""

    def told(self) -> dict[str, object]:
        """Return the call as a part of a message, for the next request."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    def run(self) -> str:
        """Return the result or, for the model to read, what was wrong with the call."""
        if self.name not in TOOLS:
            return f"There is no function {self.name}."
        try:
            return TOOLS[self.name].model_validate_json(self.arguments).run()
        except ValidationError as error:
            return str(error)


def create_app(client: disco.AsyncDisco, model: str, bill: Bill) -> FastAPI:
    """Return the application, which closes `client` at its end; the client's `on_route` adds to `bill`."""
    conversations: dict[str, Conversation] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with client:
            await client.warm_up(model)  # loads the local model, and warns of a wrong key or model name
            yield

    app = FastAPI(title="disco web chat", lifespan=lifespan)

    def found(name: str) -> Conversation:
        if name not in conversations:
            raise HTTPException(404, "This conversation has ended. Reload the page.")
        return conversations[name]

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(Path(__file__).parent / "index.html")

    # CHANGE: whoever reaches this address may ask. Let your users log in, and keep conversations in your database:
    # here they are gone with the process, and only one process has them.
    @app.post("/conversations")
    async def begin() -> dict[str, str | None]:
        while len(conversations) >= MOST_CONVERSATIONS:
            del conversations[next(iter(conversations))]
        name = secrets.token_urlsafe()
        conversations[name] = Conversation()
        return {"name": name, "model": model if client.server is not None else None}

    @app.post("/conversations/{name}/answer")
    async def ask(name: str, question: Question) -> StreamingResponse:
        # When the page stops the answer or is closed, `answer` is cancelled, which closes the stream: the models stop.
        return StreamingResponse(answer(client, model, found(name), question), media_type="text/event-stream")

    @app.post("/conversations/{name}/title")
    async def title(name: str) -> dict[str, str | None]:
        return {"title": await title_of(client, model, found(name))}

    @app.get("/conversations/{name}/bill")
    async def bill_in_all(name: str) -> dict[str, float]:
        async with found(name).turn:  # an answer that was just stopped is charged by then
            return {"usd": bill.usd, "device_energy_j": bill.device_energy_j}

    return app


async def answer(
    client: disco.AsyncDisco, model: str, conversation: Conversation, question: Question
) -> AsyncIterator[str]:
    """Yield server-sent events: the text with its writer, each function's result, facts on each request, an error."""
    async with conversation.turn:
        messages = [*conversation.messages, {"role": "user", "content": question.text}]
        tools = [openai.pydantic_function_tool(tool) for tool in TOOLS.values()]
        text = ""
        try:
            for _ in range(MOST_ROUNDS):
                text, calls = "", dict[int, Call]()
                stream = await client.chat.completions.create(
                    model=model,
                    messages=messages,
                    max_tokens=400,
                    stream=True,
                    tools=tools if question.tools else openai.omit,
                )
                async with stream:
                    async for chunk in stream:
                        if not chunk.choices:
                            continue
                        delta = chunk.choices[0].delta
                        for part in delta.tool_calls or ():
                            calls.setdefault(part.index, Call()).add(part)
                        if delta.content:
                            text += delta.content
                            shown = {"writer": stream.writer, "buffered": stream.buffered_tokens}
                            yield event(text=delta.content, **shown)
                yield event(**facts(stream.route))
                if not calls:
                    break
                results = {call.id: call.run() for call in calls.values()}
                told = [call.told() for call in calls.values()]
                messages.append({"role": "assistant", "content": text or None, "tool_calls": told})
                messages += [{"role": "tool", "tool_call_id": i, "content": r} for i, r in results.items()]
                text = ""
                for call in calls.values():
                    yield event(call=f"{call.name}({call.arguments})", result=results[call.id])
        except openai.OpenAIError as error:
            # CHANGE: this says which endpoint failed how, for you. Log it, and show your users less.
            route = disco.evidence(error).route  # None where no endpoint was asked
            yield event(error=str(error), **({} if route is None else facts(route)))
        finally:
            # What was read stays in the conversation, also if the answer was stopped or broke off.
            if text:
                messages.append({"role": "assistant", "content": text})
            if messages[-1]["role"] != "user":
                conversation.messages = messages


async def title_of(client: disco.AsyncDisco, model: str, conversation: Conversation) -> str | None:
    """Return what a conversation is about; None if no model says so. It is a request like any other, and billed."""
    async with conversation.turn:  # an answer that was just stopped is in it by then
        messages = [*conversation.messages[:1], *conversation.messages[-1:]]
    messages.append({"role": "user", "content": "Give this conversation a title."})
    try:
        completion = await client.chat.completions.parse(
            model=model,
            messages=messages,
            max_tokens=40,
            response_format=Title,
        )
    except (openai.OpenAIError, ValidationError):  # a title is not worth an error
        return None
    parsed = completion.choices[0].message.parsed
    return None if parsed is None else parsed.title


def facts(route: disco.RouteRecord) -> dict[str, object]:
    """Return what the page shows of a request: numbers and names of endpoints, and why each did what it did."""
    return {
        "route": route.to_dict(),
        "bill_usd": route.bill_usd,
        "device_energy_j": route.device_energy_j,
        "why": [sentence(reason) for reason in route.why],
    }


def event(**data: object) -> str:
    """Return a server-sent event with `data` as JSON."""
    return f"data: {json.dumps(data)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat in the browser.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--demo-server", action="store_true", help="try it with a server that needs no key")
    given = parser.parse_args()
    model, price, budget, bill = MODEL, PRICE, BUDGET, Bill()
    with ExitStack() as stack:
        if given.demo_server:
            server = stack.enter_context(ModelServer(LOCAL))
            os.environ |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
            model, price = server.model_name, (0.15, 0.60)
            budget = disco.Budget(usd=5, per="month", account="web-chat-demo")
        # No preset is named: the server answers, and the others take over when it fails, refuses or is late.
        client = disco.AsyncDisco(
            local=LOCAL, backups=backups(), budget=budget, price=price, on_route=bill.add
        )
        print(f"Open http://127.0.0.1:{given.port}")
        uvicorn.run(create_app(client, model, bill), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
