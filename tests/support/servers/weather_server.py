"""An OpenAI-compatible server on a socket that always knows the weather in Paris: text, tool calls, JSON.

What it answers follows from the request alone: a tool is called where one is offered and was not called yet, a schema
is filled in where there is one, else it writes a sentence.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from weather_responses import as_chat, response, response_events

__all__ = ["SENTENCE", "WeatherServer", "weather_server"]

SENTENCE = "It is sunny in Paris."
FACTS = {"city": "Paris", "country": "France"}
USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
WeatherServer = SimpleNamespace
"""`base_url`, and the `bodies` it was sent."""


@contextlib.contextmanager
def weather_server() -> Iterator[WeatherServer]:
    """Serve on a loopback port, in a thread."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        http.daemon_threads = True
        http.known = WeatherServer(base_url=f"http://127.0.0.1:{http.server_address[1]}/v1", bodies=[])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield http.known
        finally:
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.known.bodies.append(body)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        if self.path.endswith("/responses"):
            message, _ = _message(as_chat(body))
            data = (response_events if body.get("stream") else response)(body, message).encode()
        else:
            answer = _events if body.get("stream") else _completion
            data = answer(body, *_message(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def _message(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The whole answer, and why it ends."""
    tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
    if tools and choice != "none" and body["messages"][-1]["role"] != "tool":
        function = tools[0]["function"]
        call = {"name": function["name"], "arguments": _filled(function["parameters"])}
        return {"tool_calls": [{"id": "call_1", "type": "function", "function": call}]}, "tool_calls"
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        return {"content": _filled(wanted["json_schema"]["schema"])}, "stop"
    return {"content": json.dumps(FACTS) if wanted else SENTENCE}, "stop"


def _filled(schema: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in FACTS.items() if name in schema["properties"]})


def _made(kind: str, *choices: dict[str, Any], **more: Any) -> str:
    made = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "m-1", "system_fingerprint": "fp_1"}
    return json.dumps({**made, "choices": choices, **more})


def _completion(body: dict[str, Any], message: dict[str, Any], reason: str) -> str:
    whole = {"role": "assistant", "content": None, **message}
    choice = {"index": 0, "message": whole, "logprobs": None, "finish_reason": reason}
    return _made("chat.completion", choice, usage=USAGE)


def _events(body: dict[str, Any], message: dict[str, Any], reason: str) -> str:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if "content" in message else None}]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": 0, "function": {**function, "arguments": ""}}]})
        pieces = re.findall(".{1,6}", function["arguments"])
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    deltas += [{"content": piece} for piece in re.findall(".{1,6}", message.get("content", ""))]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    chunks = [_made("chat.completion.chunk", choice) for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append(_made("chat.completion.chunk", usage=USAGE))
    return "".join(f"data: {data}\n\n" for data in [*chunks, "[DONE]"])
