"""Servers as people have them: what they do with a half-written answer, in memory or on a loopback socket.

What such a server writes follows from the request alone, except that the one that rephrases once remembers that.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from scripted_server import chunk, sse

from disco.endpoints.simulation.simulated_text import tokenise

__all__ = ["KINDS", "TEXT", "Kind", "PlainServer", "listening", "served"]

TEXT = "".join(f"{' ' if i else ''}word{i}" for i in range(60))
"""An answer of sixty words, none of which comes twice."""
OTHER = "Well, to say it in my own words: " + " ".join(f"other{i}" for i in range(60))
COUNT = ", 12, 13, 14, 15, 16, 17, 18, 19"

Kind = Literal["flags", "echoes", "obeys", "rephrases once", "rephrases", "restarts", "same again"]
KINDS: tuple[Kind, ...] = (
    "flags",  # continues where it is asked to by the two flags
    "echoes",  # continues a trailing message, and repeats it first
    "obeys",  # has no way to continue, refuses fields that it does not know, and does what it is told
    "rephrases once",  # the same, but begins in other words the first time
    "rephrases",  # the same, but always begins in other words
    "restarts",  # ignores all that, and writes another answer
    "same again",  # ignores all that, and writes the same answer from its beginning
)


@dataclass
class PlainServer:
    """Mutable: `bodies`, the requests so far. `text`: the answer to every question."""

    kind: Kind
    text: str = TEXT
    bodies: list[Any] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        """The instructions to repeat some words."""
        last = [body["messages"][-1]["content"] for body in self.bodies]
        return [content for content in last if "<last_words>" in content]

    def reply(self, body: Any) -> str | int:
        """The text of the answer, or the status of a refusal."""
        self.bodies.append(body)
        if "stream" not in body:  # /apply-template
            return 404
        last, before = body["messages"][-1], body["messages"][-2:-1]
        knows_no_more = self.kind in ("obeys", "rephrases once", "rephrases")
        if knows_no_more and ("continue_final_message" in body or "prefix" in last):
            return 400
        quoted = re.search("<last_words>(.*)</last_words>", last["content"], re.DOTALL)
        if quoted and knows_no_more:
            assert before[0]["role"] == "assistant"
            refuses = self.kind == "rephrases" or (self.kind == "rephrases once" and len(self.told) == 1)
            return f"Certainly! {quoted[1]}" if refuses else quoted[1] + self._after(before[0]["content"])
        if last["role"] == "assistant":
            if self.kind == "echoes":
                return last["content"] + self._after(last["content"])
            if self.kind == "flags" and body.get("continue_final_message"):
                return self._after(last["content"])
        return (
            self.text if self.kind == "same again" or not (quoted or last["role"] == "assistant") else OTHER
        )

    def _after(self, begun: str) -> str:
        if begun.startswith("Tally"):  # the probe
            return COUNT
        assert self.text.startswith(begun)
        return self.text[len(begun) :]

    def pieces(self, body: Any) -> list[bytes] | int:
        """The events of the answer, one for each token, or the status of a refusal."""
        said = self.reply(body)
        if isinstance(said, int):
            return said
        begun = body["messages"][-1]["content"]
        echo = begun if said.startswith(begun) else ""  # costs a server no tokens
        tokens = [*tokenise(echo), *tokenise(said[len(echo) :])[: body.get("max_tokens")]]
        ends = "stop" if "".join(tokens) == said else "length"
        return [*(sse(chunk(token), done=False) for token in tokens), sse(chunk(finish=ends))]


@contextlib.contextmanager
def served(server: PlainServer) -> Iterator[str]:
    """Serve on a loopback port, in a thread; its base_url."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = server.pieces(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            status, kind = 200, "text/event-stream"
            if isinstance(said, int):
                error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
                status, kind, said = said, "application/json", [json.dumps({"error": error}).encode()]
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(sum(map(len, said))))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client may leave as soon as it sees a restart
                for piece in said:
                    self.wfile.write(piece)

        def log_message(self, *args: object) -> None:
            pass

    with listening(Handler) as base_url:
        yield base_url


@contextlib.contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a loopback port, in a thread; its base_url."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/v1"
        finally:
            http.shutdown()
            thread.join()
