"""Endpoints that are programs: "command:llm -m qwen3" runs `llm -m qwen3` for each answer, without a shell.

The program reads the prompt from standard input to its end, and writes the answer to standard output. Where disco does
not know better, a program may send the prompt anywhere, so "command:" is for requests that may leave this machine. With
"command-here:" the user says that the program works on this machine alone.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence

import anyio
from anyio.abc import Process

from disco.candidate import Reach, place_of
from disco.dispatch import estimate_tokens
from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, LocalModelError
from disco.events import Delta, Ended, Usage
from disco.request import Prefix, Request

__all__ = ["CommandEndpoint", "command", "command_here"]

_CHARS_PER_TOKEN = 4  # a program reports no tokens, so they are estimated as disco estimates prompts
_WORDS = re.compile(r"\s*\S+")


def command(argument: str, *, name: str) -> CommandEndpoint:
    """Make an endpoint whose program may send prompts anywhere; see `CommandEndpoint`."""
    return CommandEndpoint(_split(argument), name=name, reach="any")


def command_here(argument: str, *, name: str) -> CommandEndpoint:
    """Make an endpoint whose program keeps prompts on this machine: the user vouches for that."""
    return CommandEndpoint(_split(argument), name=name, reach="device")


def _split(argument: str) -> list[str]:
    if os.name != "nt":
        return shlex.split(argument)
    return [word.strip('"') for word in shlex.split(argument, posix=False)]  # there, \ divides folders


class CommandEndpoint(Endpoint):
    """An endpoint that runs a program for each answer. Mutable: `_open`, the attempts that are not closed."""

    def __init__(self, words: Sequence[str], *, name: str, reach: Reach = "any") -> None:
        """Check the command; nothing is run.

        Args:
            words: the program and its arguments. They may hold a key, so no message quotes the arguments.
            name: the endpoint's name in plans and records.
            reach: how far a prompt travels: "device" if the program sends it nowhere.

        Raises:
            ValueError: there is no such program.
        """
        if not words:
            raise ValueError("name a program, such as command:llm -m qwen3")
        program = shutil.which(words[0])
        if program is None:
            raise ValueError(f"there is no program {words[0]!r} on this machine's PATH")
        self.name, self.place = name, place_of(reach)
        self._words, self._reach = (program, *words[1:]), reach
        self._open: set[CommandAttempt] = set()

    @property
    def reach(self) -> Reach:
        """How far a prompt travels."""
        return self._reach

    def capabilities(self, model: str | None = None) -> Capabilities:
        """Plain text only; an answer can be cut at any length."""
        del model
        return Capabilities(limits=True)

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> CommandAttempt:
        """Make an attempt; the program is started when it is iterated."""
        del prefix, wants  # nothing is continued or reported: the capabilities say so
        attempt = CommandAttempt(self._words, request, self._open)
        self._open.add(attempt)
        return attempt

    async def aclose(self) -> None:
        """Stop every program."""
        for attempt in tuple(self._open):
            await attempt.aclose()


class CommandAttempt(Attempt):
    """One run of the program. All fields but `_words` and `_request` are mutable."""

    def __init__(self, words: Sequence[str], request: Request, among: set[CommandAttempt]) -> None:
        self._words, self._request, self._among = words, request, among
        self._process: Process | None = None
        self._changing = anyio.Lock()  # held while the program is started or stopped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # white space that is text only if more text follows
        self._usage = Usage()
        self._is_over = False

    @property
    def usage(self) -> Usage:
        """Estimates, from the first moment on: a program counts no tokens."""
        return self._usage

    async def __anext__(self) -> Event:
        if self._is_over:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):  # `aclose` came from another task
            await self.aclose()
            raise StopAsyncIteration from None
        except BaseException:
            await self.aclose()
            raise
        if isinstance(event, Ended):
            await self.aclose()
        return event

    async def _next(self) -> Event:
        process = self._process or await self._start()
        assert process.stdout is not None
        limit = self._request.max_tokens
        while limit is None or self._usage.completion_tokens < limit:
            try:
                data = await process.stdout.receive()
            except anyio.EndOfStream:
                return await self._end(process)
            deltas = self._deltas(self._decoder.decode(data), limit)
            if deltas:
                return deltas
        return Ended("length", self._usage)

    async def _start(self) -> Process:
        if self._request.params.get("stop"):
            error = LocalModelError("A command cannot stop at a given text. Leave `stop` out.")
            raise EndpointFailure(FailureKind.UNSERVED, error)
        prompt = prompt_of(self._request)
        async with self._changing:
            if self._is_over:
                raise anyio.ClosedResourceError
            with anyio.CancelScope(shield=True):  # a program that was just started must not be lost
                self._process = process = await anyio.open_process(
                    self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            self._usage = Usage(prompt_tokens=max(1, round(estimate_tokens(prompt))))
        assert process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError):  # it may not read all; what it writes decides
            await process.stdin.send(prompt.encode())
        await process.stdin.aclose()
        return process

    def _deltas(self, text: str, limit: int | None) -> list[Delta]:
        """Return the text as deltas of one word each, up to the limit."""
        text = self._held + text
        deltas: list[Delta] = []
        end = tokens = 0
        for word in _WORDS.finditer(text):
            room = None if limit is None else limit - self._usage.completion_tokens - tokens
            if room == 0:
                break
            own = max(1, len(word[0]) // _CHARS_PER_TOKEN)
            deltas.append(Delta(word[0], own if room is None else min(own, room)))
            tokens, end = tokens + deltas[-1].tokens, word.end()
        self._held = text[end:]
        self._usage = Usage(self._usage.prompt_tokens, self._usage.completion_tokens + tokens)
        return deltas

    async def _end(self, process: Process) -> Ended:
        status = await process.wait()
        if self._is_over:
            raise anyio.ClosedResourceError
        if status != 0:
            raise EndpointFailure(
                FailureKind.CRASHED,
                LocalModelError(
                    f"The program {self._words[0]!r} ended with the status {status}. Run it in a terminal to see why."
                ),
            )
        if not self._usage.completion_tokens:
            error = IncompleteAnswerError(f"The program {self._words[0]!r} wrote nothing.")
            raise EndpointFailure(FailureKind.INCOMPLETE, error)
        return Ended("stop", self._usage)

    async def aclose(self) -> None:
        """Kill the program and wait for its end, even if the caller is cancelled."""
        self._is_over = True
        self._among.discard(self)
        with anyio.CancelScope(shield=True):
            async with self._changing:
                process, self._process = self._process, None
                if process is not None:
                    if process.returncode is None:
                        process.kill()
                    await process.aclose()


def prompt_of(request: Request) -> str:
    """Return a conversation as one text: a single message as it is, several with their roles."""
    said = [(str(message.get("role", "user")), _text(message.get("content"))) for message in request.messages]
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join([*(f"{role.capitalize()}: {text}" for role, text in said), "Assistant:"])


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: Iterable[object] = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
