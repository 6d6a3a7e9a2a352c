"""The language of the wall's rows: what a server does, a line for each thing it sends.

A row, in `rows/*.txt`, begins with its name in brackets and goes on, line by line, in the order in which things happen.
The first line of a file, behind `#`, says what its rows have in common.

    [02 an empty finish reason, then the connection is cut]
    means fails
    choice {"delta": {"content": "Rhine "}, "finish_reason": ""}
    cut

What is sent:

    say TEXT         a chunk with that content ("..." for text with spaces at its ends, or with escapes)
    delta JSON       a chunk whose delta has these fields
    choice JSON      a chunk whose choice has these fields
    chunk JSON       a chunk with these fields
    finish REASON    a chunk with a finish reason
    usage P C        the usage chunk: prompt and completion tokens; or its JSON
    done             `data: [DONE]`
    stop             the finish reason "stop", then [DONE]
    data TEXT        one event with that data
    raw TEXT         these bytes, with Python's escapes
    repeat N LINE    the line N times
    ticks N S LINE   the line N times, after S seconds of silence each time
    event TYPE JSON  an event of the Responses API
    body TEXT        a document instead of a stream; JSON, or any text
    pause S          seconds of silence
    cut, reset       the connection is closed, or reset, before the body's end

How it is sent:

    status N, header NAME: VALUE
    refuse, drop     no connection; or none stays open until there is a response
    each N, joined   the body in pieces of N bytes; in one piece. Otherwise each line is a piece
    lines END        line ends of the stream: CR or CRLF
    coded gzip       the body is compressed, and says so (gzip, deflate, identity)

When it is sent: lines behind one of these are a reply of their own; the first that fits is played.

    when FIELD       the request has that field, and it is not false
    when n=1         it is the first request
    when responses   it is for the Responses API
    otherwise        for all others; several conditions in one line must all hold

What is asked, what is right, and what differs on purpose:

    ask JSON         parameters of the request; `ask tools`: two tools, "weather" and "now"
    document JSON    what the same server says to a request without `stream`; otherwise it is put together of the chunks
    means JSON       what a reader should get: text, calls, finish, usage; otherwise what the SDK makes of it
    means fails      this is no answer: whoever may ask somebody else does
    means refused    every server refuses this request: nobody else is asked
    words N          the prompt has N more words
    within S         the longest wait where somebody else may answer, in seconds
    ways WAY ...     only these: set-ups, shapes, or both, as `serve` or `backup/stream`, `_` for a space
    but WAY: REASON  what differs there on purpose
    about TEXT       where it comes from
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from scripted_server import chunk, usage

__all__ = ["CUT", "DROP", "FAILS", "REFUSE", "REFUSED", "RESET", "Reply", "Row", "read_rows", "rows_of"]

FAILS, REFUSED = "fails", "refused"
CUT, RESET, REFUSE, DROP = "cut", "reset", "refuse", "drop"
TEXT = "Rhine and Main"  # what the rows say, where they say nothing of their own
Step = bytes | float | str
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_NOTHING = {"type": "object", "properties": {}, "required": []}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {**parameters, "additionalProperties": False},
        },
    }
    for name, parameters in (("weather", _CITY), ("now", _NOTHING))
]
_ENDS = {"CR": b"\r", "CRLF": b"\r\n"}
_CODES = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": lambda data: data,
}


@dataclass(frozen=True)
class Reply:
    """One reply of a row: when it is given, its head, and its body as steps: bytes, seconds, or a fault.

    `chunks` are its chunks as objects, of which a document is made.
    """

    when: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    chunks: Sequence[Any] = ()
    is_document: bool = False

    def fits(self, path: str, body: Any, number: int) -> bool:
        return all(self._holds(condition, path, body, number) for condition in self.when.split())

    @staticmethod
    def _holds(condition: str, path: str, body: Any, number: int) -> bool:
        if condition == "responses":
            return "responses" in path
        if condition.startswith("n="):
            return number == int(condition[2:])
        return isinstance(body, dict) and body.get(condition) not in (None, False)

    @property
    def fault(self) -> str | None:
        """What ends the body early."""
        return next((s for s in self.steps if isinstance(s, str)), None)

    @property
    def wait_s(self) -> float:
        return sum((s for s in self.steps if isinstance(s, float)), 0.0)


@dataclass(frozen=True, eq=False)
class Row:
    """A case: what its server does, what is asked of it, and what is right."""

    name: str
    replies: Sequence[Reply]
    ask: Mapping[str, Any] = field(default_factory=dict)
    document: Any = None
    means: Any = None
    words: int = 0
    within_s: float | None = None
    ways: Sequence[str] = ()
    but: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    theme: str = ""

    @cached_property
    def has_responses(self) -> bool:
        """It scripts the Responses API; all others have no such path."""
        return any("responses" in reply.when for reply in self.replies)

    @property
    def good(self) -> Mapping[str, Any]:
        """What a server says that is in order: what the row means, or the usual text."""
        means = self.means if isinstance(self.means, Mapping) else {}
        said = "".join(_said(body) for body in self.replies[-1].chunks)
        text = None if means.get("calls") else TEXT if TEXT.startswith(said) else said
        return {"text": text, "finish": "stop", **means}

    def reply(self, path: str, body: Any, number: int) -> Reply:
        """The reply to a request; a document where a stream was not asked for."""
        reply = next(r for r in self.replies if r.fits(path, body, number))
        streamed = isinstance(body, dict) and bool(body.get("stream"))
        if streamed or reply.is_document or "responses" in path or reply.fault in (REFUSE, DROP):
            return reply
        return _as_document(reply, self.document)


def read_rows(folder: Path | None = None) -> list[Row]:
    """All rows of the wall, in the order of the files and in theirs."""
    paths = sorted((folder or Path(__file__).with_name("rows")).glob("*.txt"))
    return [row for path in paths for row in rows_of(path.read_text(encoding="utf-8"), path.name)]


def rows_of(text: str, where: str = "rows") -> list[Row]:
    """The rows of a text. A line that is none of the language raises, with its place."""
    rows: list[_Reading] = []
    theme = ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("# ") and not rows:
            theme = " ".join([theme, line[2:]]).strip()
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                rows.append(_Reading(line.strip()[1:-1], theme))
            else:
                rows[-1].line(line)
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"{where}:{number}: {line!r}: {error!r}") from error
    return [reading.row() for reading in rows]


class _Reading:
    """A row while its lines are read."""

    def __init__(self, name: str, theme: str) -> None:
        self.fields: dict[str, Any] = {"name": name, "theme": theme, "ask": {}, "but": {}}
        self.replies: list[_Body] = [_Body("")]

    def line(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        match verb:
            case "about":
                self.fields["about"] = rest
            case "ask":
                self.fields["ask"] |= {"tools": TOOLS} if rest == "tools" else json.loads(rest)
            case "document":
                self.fields[verb] = json.loads(rest)
            case "means":
                self.fields[verb] = rest if rest in (FAILS, REFUSED) else json.loads(rest)
            case "words":
                self.fields["words"] = int(rest)
            case "within":
                self.fields["within_s"] = float(rest)
            case "ways":
                self.fields[verb] = rest.split()
            case "but":
                way, _, reason = rest.partition(": ")
                self.fields["but"][way] = reason
            case "when" | "otherwise":
                if self.replies[0].is_fresh:
                    self.replies.clear()
                self.replies.append(_Body(rest))
            case _:
                self.replies[-1].line(verb, rest)

    def row(self) -> Row:
        return Row(replies=[body.reply() for body in self.replies], **self.fields)


class _Body:
    """A reply while its lines are read."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.is_fresh = True
        self.made: dict[str, Any] = {"headers": {}}
        self.steps: list[Step] = []
        self.chunks: list[Any] = []
        self.each: int | None = None
        self.end, self.coded = b"\n", ""

    def line(self, verb: str, rest: str) -> None:
        self.is_fresh = False
        match verb:
            case "status":
                self.made["status"] = int(rest)
            case "header":
                name, _, value = rest.partition(": ")
                self.made["headers"][name] = value
            case "body":
                self.made["is_document"] = True
                self.steps.append(_text(rest).encode())
            case "each":
                self.each = int(rest)
            case "joined":
                self.each = 2**62
            case "lines":
                self.end = _ENDS[rest]
            case "coded":
                self.coded = rest
            case "repeat":
                count, _, line = rest.partition(" ")
                verb, _, rest = line.partition(" ")
                for _ in range(int(count)):
                    self.line(verb, rest)
            case "ticks":
                count, silence, line = rest.split(" ", 2)
                for _ in range(int(count)):
                    self.steps.append(float(silence))
                    self.line(*line.partition(" ")[::2])
            case "event":
                kind, _, body = rest.partition(" ")
                data = json.dumps({"type": kind, **json.loads(body)})
                self.steps.append(f"event: {kind}\ndata: {data}\n\n".encode())
            case "pause":
                self.steps.append(float(rest))
            case "cut" | "reset" | "refuse" | "drop":
                self.steps.append(verb)
            case "raw":
                self.steps.append(codecs.escape_decode(rest.encode())[0])  # type: ignore[attr-defined]
            case "data":
                self.steps.append(f"data: {rest}\n\n".encode())
            case "done":
                self.steps.append(b"data: [DONE]\n\n")
            case "stop":
                self.line("finish", "stop")
                self.line("done", "")
            case _:
                self._chunk(_chunk(verb, rest))

    def _chunk(self, body: Any) -> None:
        self.chunks.append(body)
        self.steps.append(b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n")

    def reply(self) -> Reply:
        kind = "application/json" if self.made.get("is_document") else "text/event-stream"
        headers = {"content-type": kind, **self.made.pop("headers")}
        steps = self.steps
        if self.end != b"\n":
            steps = [s.replace(b"\n", self.end) if isinstance(s, bytes) else s for s in steps]
        if self.coded:
            headers["content-encoding"] = self.coded
            steps = _coded(steps, self.coded)
        if self.each:
            steps = list(_in_pieces(steps, self.each))
        return Reply(self.when, headers=headers, steps=steps, chunks=self.chunks, **self.made)


def _chunk(verb: str, rest: str) -> Any:
    match verb:
        case "say":
            return chunk(_text(rest))
        case "delta":
            return chunk(**json.loads(rest))
        case "choice":
            made = chunk()
            made["choices"][0].update(json.loads(rest))
            return made
        case "chunk":
            return {**chunk(), **json.loads(rest)}
        case "finish":
            return chunk(finish=rest)
        case "usage":
            counts = json.loads(rest) if rest.startswith(("{", "n")) else None
            if counts is None and rest != "null":
                prompt, _, completion = rest.partition(" ")
                return usage(int(prompt), int(completion))
            return {**chunk(), "choices": [], "usage": counts}
    raise ValueError(f"no such line: {verb}")


def _said(body: Any) -> str:
    """The text of a chunk."""
    deltas = [choice.get("delta") or {} for choice in body.get("choices") or [] if not choice.get("index")]
    texts = [delta.get("content") for delta in deltas]
    return "".join(text for text in texts if isinstance(text, str))


def _text(rest: str) -> str:
    return json.loads(rest) if rest.startswith('"') else rest


def _in_pieces(steps: Sequence[Step], size: int) -> Iterator[Step]:
    """The bytes between pauses and faults, in pieces of that size."""
    held = b""
    for step in [*steps, 0.0]:
        if isinstance(step, bytes):
            held += step
            continue
        yield from (held[at : at + size] for at in range(0, len(held), size))
        held = b""
        yield step


def _coded(steps: Sequence[Step], code: str) -> list[Step]:
    """Compressed as a whole; pauses and faults come at the end."""
    data = b"".join(s for s in steps if isinstance(s, bytes))
    return [_CODES[code](data), *(s for s in steps if not isinstance(s, bytes))]


def _as_document(reply: Reply, document: Any) -> Reply:
    """What the same server says to a request without `stream`, after the same time and with the same fault."""
    error = next((c["error"] for c in reply.chunks if c.get("error")), None)
    if document is None and error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        data = json.dumps({"error": error}).encode()
        return Reply(status=status, headers={"content-type": "application/json"}, steps=[reply.wait_s, data])
    body = assembled(reply.chunks) if document is None else document
    data = json.dumps(body, ensure_ascii=False).encode()
    headers = {**reply.headers, "content-type": "application/json"}
    if code := headers.get("content-encoding"):
        data = _CODES.get(code, bytes)(data)
    end = [data] if reply.fault is None else [data[: len(data) // 2], reply.fault]
    return replace(reply, headers=headers, steps=[reply.wait_s, *end], is_document=True)


def assembled(chunks: Sequence[Any]) -> dict[str, Any]:
    """A chat completion of these chunks, as a server would write it that never cut it into pieces."""
    whole: dict[str, Any] = {**chunk(), "object": "chat.completion", "usage": None}
    choices: dict[int, Any] = {}
    for body in chunks:
        whole.update({k: v for k, v in body.items() if k not in ("choices", "object") and v is not None})
        for choice in body.get("choices") or []:
            index = choice.get("index", 0)
            empty = {"index": index, "message": {"role": "assistant", "content": None}, "finish_reason": None}
            made = choices.setdefault(index, empty)
            made["finish_reason"] = made["finish_reason"] or choice.get("finish_reason") or None
            for name, value in (choice.get("delta") or {}).items():
                _add(made["message"], name, value)
            for name, value in choice.items():
                if name not in ("delta", "finish_reason", "index", "message"):
                    _add(made, name, value)
    return {**whole, "choices": list(choices.values())}


def _add(message: dict[str, Any], name: str, value: Any) -> None:
    old = message.get(name)
    if name == "tool_calls" and isinstance(value, list):
        calls = message.setdefault(name, [])
        for call in value:
            _add_call(calls, call)
    elif isinstance(old, str) and isinstance(value, str) and name not in ("role", "id", "type", "name"):
        message[name] = old + value
    elif isinstance(old, list) and isinstance(value, list):
        for item in value:
            index = item.get("index") if isinstance(item, dict) else None
            same = [o for o in old if index is not None and isinstance(o, dict) and o.get("index") == index]
            if not same:
                old.append(json.loads(json.dumps(item)))
            for key, inner in item.items() if same else ():
                _add(same[-1], key, inner)
    elif isinstance(old, dict) and isinstance(value, dict):
        for key, inner in value.items():
            _add(old, key, inner)
    elif value is not None or name not in message:
        message[name] = json.loads(json.dumps(value))


def _add_call(calls: list[Any], call: Any) -> None:
    call = json.loads(json.dumps(call))
    index, name = call.pop("index", None), call.get("id")
    same = [c for c in calls if c.get("id") == name] if name else calls[-1:]
    if not name and isinstance(index, int) and index < len(calls):
        same = [calls[index]]
    if not same:
        calls.append(call)
        return
    for key, value in call.items():
        if key == "function" and isinstance(value, dict):
            for part, text in value.items():
                _add(same[-1].setdefault("function", {}), part, text)
        elif value:
            same[-1][key] = value
