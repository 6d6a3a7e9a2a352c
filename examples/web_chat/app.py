"""A chat in the browser that shows live which endpoint wrote which words, and the level of the playback buffer.

    python examples/web_chat/app.py                  # then open http://127.0.0.1:8000
    python examples/web_chat/app.py --demo-server    # with a real server and the local model

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), your server and the
local model answer together. Without it, the local model answers alone.
Needs: pip install fastapi uvicorn, and a local model: docs/start/install.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel

from disco import AsyncDisco
from disco.cli.demonstration.demo_runtime import server_class
from disco.dispatch import available_presets, load_preset
from disco.endpoints.continuation import Continuation

LOCAL = "smollm2-135m"


class Question(BaseModel):
    """A request of the page: the conversation so far, and the preset for the answer."""

    messages: list[dict[str, str]]
    preset: str = "balanced"


def create_app(client: AsyncDisco, model: str) -> FastAPI:
    """Return the application, which closes `client` at its end; `model` is the server's model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            await client.warm_up(model)
            yield

    app = FastAPI(title="disco web chat", lifespan=lifespan)

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(Path(__file__).parent / "index.html")

    @app.get("/config")
    async def config() -> dict[str, Any]:
        presets = {name: load_preset(name).summary for name in available_presets()}
        return {"presets": presets, "model": model, "server": client.server is not None}

    @app.post("/chat")
    async def chat(question: Question) -> StreamingResponse:
        # When the page is closed or stops the answer, the server cancels `answer`, which closes the stream.
        return StreamingResponse(answer(client, model, question), media_type="text/event-stream")

    return app


async def answer(client: AsyncDisco, model: str, question: Question) -> AsyncIterator[str]:
    """Yield server-sent events: each chunk of text with its writer, then the route record or the error."""
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=question.messages,
            max_tokens=400,
            stream=True,
            extra_body={"disco": {"preset": question.preset}},
        )
        async with stream:
            async for chunk in stream:
                text = chunk.choices[0].delta.content if chunk.choices else None
                if text:
                    yield event(text=text, writer=stream.writer, buffered=stream.buffered_tokens)
        yield event(route=stream.route.to_dict(), bill_usd=stream.route.bill_usd)
    except openai.OpenAIError as error:
        yield event(error=str(error))


def event(**data: object) -> str:
    """Return a server-sent event with `data` as JSON."""
    return f"data: {json.dumps(data)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat in the browser with two models.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--demo-server", action="store_true", help="start a real server for the demonstration"
    )
    given = parser.parse_args()
    with ExitStack() as stack:
        model = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        settings: dict[str, Any] = {}
        if given.demo_server:
            server = stack.enter_context(server_class("auto")(LOCAL))
            # The server continues through /completions with the same model file, so the file's template fits.
            continuation = Continuation(method="completions", template=str(server.model))
            settings = {"base_url": server.base_url, "api_key": "none", "continuation": continuation}
            settings["price"] = (0.15, 0.60)  # USD per million tokens in and out: gpt-4o-mini's
        app = create_app(AsyncDisco(local=LOCAL, **settings), model)
        print(f"Open http://127.0.0.1:{given.port}")
        uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
