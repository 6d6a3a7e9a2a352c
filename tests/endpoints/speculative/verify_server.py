"""A verify server on a loopback socket that follows the rules of the real one, with an answer that is known before."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from endpoints.speculative.made_pair import FACTS, PROMPT, TARGET
from speculate.made_verifier import MadeVerifier

from disco.speculate.effects import Send
from disco.speculate.messages import Round, Verdict, VerifierFacts

_TOKEN_S = 0.003
SPOKEN = "".join(f" {token}" for token in TARGET)


@dataclass
class VerifyServer:
    """Mutable: all. `dies_after`: how many verdicts it gives before it is gone. `forgets_after`: and forgets once."""

    facts: VerifierFacts | None = FACTS
    next_facts: VerifierFacts | None = FACTS  # once it has forgotten
    chat: bytes | None = None
    dies_after: int | None = None
    forgets_after: int | None = None
    port: int = 0
    paths: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    answers: dict[str, MadeVerifier] = field(default_factory=dict)
    rejected: int = 0
    verdicts: int = 0
    open: int = 0
    connections: int = 0
    most_connected: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def die(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.connections += 1
        self.most_connected = max(self.most_connected, len(self.writers))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = head.lower().partition(b"content-length:")[2]
                body = await reader.readexactly(int(fields.split(b"\r\n")[0] or 0))
                path = head.split(b" ")[1].decode().partition("?")[0]
                self.paths.append(path)
                self.heads.append(head)
                if head.startswith(b"DELETE /v1/disco/rounds/"):
                    self.released.append(path.rpartition("/")[2])
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                    continue
                await self.reply(writer, path, json.loads(body) if body else None)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def reply(self, writer: asyncio.StreamWriter, path: str, body: Any) -> None:
        if path == "/v1/disco/verifier" and self.facts is not None:
            await self.document(writer, 200, self.facts.to_json())
        elif path == "/v1/disco/rounds" and self.facts is not None:
            self.bodies.append(body)
            self.open += 1
            try:
                await self.round(writer, Round.from_json(body))
            finally:
                self.open -= 1
        elif path == "/v1/chat/completions" and self.chat is not None:
            writer.write(_head(200, "text/event-stream", len(self.chat)) + self.chat)
        else:
            await self.document(writer, 404, {"error": {"message": "no such path", "code": "not_found"}})

    async def document(self, writer: asyncio.StreamWriter, status: int, content: Mapping[str, Any]) -> None:
        data = json.dumps(content).encode()
        writer.write(_head(status, "application/json", len(data)) + data)
        await writer.drain()

    async def round(self, writer: asyncio.StreamWriter, round_: Round) -> None:
        self.rounds.append(round_)
        if self.forgets_after is not None and self.verdicts >= self.forgets_after:
            self.forgets_after = None
            self.answers.clear()
            self.facts = self.next_facts
        mine = None if self.facts is None else self.facts.fingerprint
        if round_.opening is not None and round_.opening.fingerprint not in (None, mine):
            error = {"message": "another model", "code": "model_changed"}
            await self.document(writer, 409, {"error": error})
            return
        if round_.opening is not None and round_.key not in self.answers:
            self.answers[round_.key] = MadeVerifier(TARGET, length=len(round_.opening.ids))
        answer = self.answers.get(round_.key)
        if answer is None:
            error = {"message": "not here", "code": "answer_lost"}
            await self.document(writer, 409, {"error": error})
            return
        send = Send(round_.number, round_.at, round_.draft, round_.alone)
        waits = 0
        while (lines := answer.replies(send)) is None:
            waits += 1
            if waits > 200:
                lines = iter([answer.stale(send)])
                break
            await asyncio.sleep(0.001)
        if round_.alone:
            writer.write(_head(200, "application/x-ndjson", None))
        for verdict in lines:
            await asyncio.sleep(_TOKEN_S)
            if writer.is_closing():
                return
            self.verdicts += 1
            if self.dies_after is not None and self.verdicts > self.dies_after:
                self.die()
                return
            data = json.dumps(self.told(answer, round_, verdict)).encode() + b"\n"
            if not round_.alone:
                writer.write(_head(200, "application/json", len(data)) + data)
                return
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    def told(self, answer: MadeVerifier, round_: Round, verdict: Verdict) -> dict[str, Any]:
        new = verdict.at == round_.at and bool(round_.draft) and bool(verdict.rows)
        self.rejected += max(0, len(round_.draft) - max(0, len(verdict.ids) - 1)) if new else 0
        content = verdict.to_json()
        content["deltas"] = [
            {**one, "delta": {"content": f" {TARGET[one['at']]}"}, "ids": [TARGET[one["at"]]]}
            for one in verdict.deltas
        ]
        content |= {"prompt_tokens": len(PROMPT), "completion_tokens": answer.length}
        content |= {"rejected_tokens": self.rejected, "compute_s": _TOKEN_S}
        if round_.wants_prompt:
            content["prompt_ids"] = list(PROMPT)
        return content


def _head(status: int, kind: str, length: int | None) -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\n{size}\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def verify_server(**settings: Any) -> AsyncIterator[VerifyServer]:
    made = VerifyServer(**settings)
    made.server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = made.server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.die()
        await asyncio.sleep(0)
