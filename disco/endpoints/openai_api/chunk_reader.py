"""Reads the data of server-sent events as chat or completion chunks, and makes deltas of them.

A chunk is validated with pydantic straight from bytes. That gives the same object as the SDK's own `construct_type`
at a twentieth of its cost, but is stricter. A chunk that pydantic rejects (an unknown finish reason, a null
`created`, a missing index, ...) is repaired and built without validation, as the SDK would build it. A chunk that
differs from another only in its text is not parsed at all (see `chunk_template`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.completion_usage import PromptTokensDetails
from pydantic import ValidationError

from disco.endpoints.openai_api.call_pieces import CallPieces, is_one_that_goes_on
from disco.endpoints.openai_api.chunk_repair import (
    Halves,
    MalformedChunkError,
    ServerReportedError,
    as_chunk,
    divided,
    finish_only,
    has_notes,
    is_bare,
    json_object,
    log_probabilities,
    logprob_entries,
    may_count,
    mended_choice,
    parts_of,
    presentable,
    reason_in,
    says_something,
    usage_from,
    usage_in,
    with_greatest,
    without_finish,
)
from disco.endpoints.openai_api.chunk_template import MAX_TEMPLATES, ChunkTemplate, TemplateChunk
from disco.endpoints.openai_api.label_scores import label_scores
from disco.events import Delta, DeltaKind, ToolCallDelta, Usage

__all__ = ["ChatReader", "ChunkReader", "CompletionReader"]

_REPAID_AFTER = 4  # chunks that a template must serve to repay its making
# Needed for every token; looking them up on the enum runs Python code (3.11).
_TEXT, _REASONING, _TOOL = DeltaKind.TEXT, DeltaKind.REASONING, DeltaKind.TOOL


class ChunkReader:
    """Reads events into deltas and remembers how the answer ended.

    Attributes:
        done: nothing more is to be read.
        finish_reason: how the answer ended, as the first reason says; None while there is none. A server that sends
            `[DONE]` and no reason has ended its answer: clients that wait for "stop" get it, or the name of the calls
            that came. (The SDK shows such an answer without a reason.) So has one that gives fewer choices than asked.
        is_sure: the reason shows that the answer is complete. Some servers give a reason in every chunk: a reason in
            the first chunk with content or before it, or one that more content follows, shows nothing.
        finish_raw: the chunk with the finish reason, where the application may see it.
        ends_with_content: whether `finish_raw` has content that no delta had.
        last_calls: the calls of which only `finish_raw` has any.
        has_notes: whether a chunk without content had fields of a provider's own.
        usage: the server's count: the greatest of each kind that came.
        tokens: this reader's own count.
        broken: the error in the data behind the deltas that `read` returned last.
    """

    # Mutable: all attributes, by `read`.
    __slots__ = (
        *("_halves", "_implied", "_reported", "_tokens_at_end", "broken", "done", "ends_with_content"),
        *("finish_raw", "finish_reason", "has_notes", "is_sure", "last_calls", "tokens", "usage"),
    )

    def __init__(self) -> None:
        self._halves = Halves()
        self._implied: str | None = None  # the reason that follows from what came, where none is given
        # The last error that only looks like one, and `tokens` then.
        self._reported: tuple[ServerReportedError, int] | None = None
        self._tokens_at_end = 0
        self.done = False
        self.finish_reason: str | None = None
        self.is_sure = False
        self.finish_raw: Any = None
        self.ends_with_content = False
        self.last_calls: tuple[ToolCallDelta, ...] = ()
        self.has_notes = False
        self.usage: Usage | None = None
        self.tokens = 0
        self.broken: MalformedChunkError | ServerReportedError | None = None

    @property
    def has_content(self) -> bool:
        """Whether anything of an answer has come."""
        return bool(self.tokens) or self.ends_with_content or self.has_notes

    def read(self, events: list[bytes], *, ends: bool = False) -> list[Delta]:
        """Return the deltas in `events`, in order; `ends`: they are the last.

        What cannot be read behind the end of a complete answer is ignored. Any other error behind some deltas waits in
        `broken`, so that those deltas are returned and counted. What only looks like an error is one if nothing more
        comes.

        Raises:
            MalformedChunkError: an event's data is no chunk.
            ServerReportedError: an event's data is an error object.
        """
        deltas: list[Delta] = []
        try:
            self._read(events, deltas)
            if self._reported is not None and (ends or self.done):
                error, tokens = self._reported
                if self.finish_reason is None and self.tokens == tokens:
                    raise error
        except (MalformedChunkError, ServerReportedError) as error:
            self._compare()
            if self.is_sure and isinstance(error, MalformedChunkError):
                self.done = True
            elif deltas:
                self.broken = error
            else:
                raise
        if self.finish_reason is not None:
            self._compare()
        elif self.done and self.tokens:
            self.finish_reason = self._implied or "stop"
        return deltas

    def _read(self, events: list[bytes], deltas: list[Delta]) -> None:
        raise NotImplementedError

    def _json(self, data: bytes, *, in_choices: bool = True) -> dict[str, Any] | None:
        """Return what `json_object` does, and note the end; empty for what only looks like an error."""
        try:
            body = json_object(data, in_choices=in_choices)
        except ServerReportedError as error:
            if not error.by_shape:
                raise
            self._reported = error, self.tokens
            return {}
        self.done = self.done or body is None
        return body

    def _ended(self, reason: str, tokens: int) -> None:
        """Note the first reason, once its chunk is counted; `tokens`: those of its chunk."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.is_sure = self.tokens > tokens
            self._tokens_at_end = self.tokens

    def _compare(self) -> None:
        """Find out whether content has come behind the reason."""
        if self.tokens > self._tokens_at_end:
            self.is_sure = False


class ChatReader(ChunkReader):
    """Reads `chat.completion.chunk` events.

    The chunk that carries the (last) finish reason becomes no delta: it is kept in `finish_raw`, with the
    stream's usage in its `usage`. With more than one choice asked for, deltas are opaque (kind TOOL, text empty),
    because several answers at once do not form one text.

    Args:
        choices: how many answers were asked for (`n`).
        hides_logprobs: the application did not ask for log probabilities: they appear in `Delta.logp` only.
        classes: the request's classes, to be scored by the alternatives to the first token; see `label_scores`.
    """

    # Mutable: all attributes, by `read`.
    __slots__ = (
        *(
            "_calls",
            "_choices",
            "_classes",
            "_finished",
            "_hides_logprobs",
            "_in_messages",
            "_others",
            "_places",
        ),
        *("_template", "_template_made_at", "_templates_left", "_usage_given"),
    )

    def __init__(
        self, choices: int = 1, *, hides_logprobs: bool = False, classes: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._classes = classes
        self._choices = choices
        self._hides_logprobs = hides_logprobs
        self._calls = CallPieces()
        self._in_messages = False  # each chunk has a message in place of its delta
        self._places: dict[int, int] = {}  # the server's index of a choice: its place among them
        self._others: list[Delta] = []  # those of other choices, to be passed on after the answer's
        self._finished: set[int] = set()  # the choices that have a reason
        self._template: ChunkTemplate | None = None
        self._templates_left = MAX_TEMPLATES if choices == 1 else 0  # that may be made in vain
        self._template_made_at = 0  # `tokens` when the template was made
        self._usage_given: CompletionUsage | None = None  # the last one at the API's place

    def _read(self, events: list[bytes], deltas: list[Delta]) -> None:
        validate = ChatCompletionChunk.model_validate_json
        halves = self._halves  # first halves of characters, which belong before the next text
        for data in events:
            template = self._template
            if (
                template is not None
                and not halves
                and (text := template.text(data)) is not None
                and not (template.kind is _TOOL and self._calls.come_again(template.call, text))
            ):
                self.tokens += 1
                raw = TemplateChunk(template, data, text)
                if template.kind is _TEXT:
                    deltas.append(Delta(text, 1, _TEXT, None, raw))
                elif template.kind is _REASONING:
                    deltas.append(Delta("", 1, _REASONING, None, raw, reasoning=text))
                else:
                    self._calls.go_on(template.call, text)
                    piece = ToolCallDelta(template.call, text)
                    deltas.append(Delta("", 1, _TOOL, None, raw, tool_calls=(piece,)))
                continue
            chunk: ChatCompletionChunk | None = None
            if not halves and b"_fields_set" not in data:
                with contextlib.suppress(ValidationError):
                    chunk = validate(data)
            if chunk is None:
                chunk = self._mended(data)
                if chunk is None:
                    if self.done:
                        break
                    continue
            elif (extra := chunk.__pydantic_extra__) and "error" in extra:
                json_object(data)  # raises what it reports
            if may_count(chunk):
                self._note_usage(chunk)
            if chunk.usage is None and self._choices == 1:
                # disco asked for the usage, so a null in every chunk is no news for the application.
                chunk.__pydantic_fields_set__.discard("usage")
            choices = chunk.choices
            if not choices:
                if chunk.model_extra:
                    self._json(data)  # it may look like an error
                if chunk.model_extra or getattr(chunk, "moderation", None) is not None:
                    # A provider's notes, such as filters. The usage is told apart.
                    chunk.usage = None
                    chunk.__pydantic_fields_set__.discard("usage")
                    if self.finish_raw is None:
                        deltas.append(Delta("", 0, DeltaKind.ROLE, None, chunk))
                    else:  # the application gets the last chunk at the end, so what comes after it goes with it
                        self._add_to_last(chunk)
                continue
            if self._choices > 1:
                self._read_opaque(chunk, deltas)
                continue
            if choices[0].index or len(choices) > 1 or not self._places:
                chunk = self._first_choice(chunk)
                if chunk is None:
                    continue
            choice = chunk.choices[0]
            if (extra := choice.__pydantic_extra__) and says_something(extra.get("error")):
                if not is_bare(choice.delta):
                    self._read_other(chunk, deltas)  # it came before the error
                json_object(data)  # raises what it reports
            logprobs = choice.logprobs
            if logprobs is not None and self._hides_logprobs:
                choice.logprobs = None
            if choice.finish_reason is not None:
                self._read_last(chunk, choice.finish_reason, logprobs, deltas)
                continue
            if logprobs is not None:
                self._read_counted(chunk, logprobs, deltas)
                continue
            delta = choice.delta
            text = delta.content
            extra = delta.__pydantic_extra__
            # Servers that can reason send `"reasoning_content": null` beside every piece of text.
            if (
                text
                and type(text) is str
                and delta.tool_calls is None
                and not (extra and any(extra.values()))
            ):
                self.tokens += 1
                deltas.append(Delta(text, 1, _TEXT, None, chunk))
                if self._templates_left:
                    self._make_template(data, chunk)
            else:
                self._read_other(chunk, deltas)
                repeats = deltas[-1].kind is _REASONING or is_one_that_goes_on(delta.tool_calls)
                if repeats and deltas[-1].raw is chunk and self._templates_left:
                    self._make_template(data, chunk)
        if self._others:
            deltas += self._others
            self._others = []

    def _first_choice(self, chunk: ChatCompletionChunk) -> ChatCompletionChunk | None:
        """Return the answer's part of a chunk, if it has one; another choice, which nobody asked for, is passed on.

        The choices are numbered from 0, as clients expect, in their order of appearance. Where others have written
        nothing, the server's own number 0 is the answer.
        """
        if (
            self._places
            and 0 not in self._places
            and not self.tokens
            and any(c.index == 0 for c in chunk.choices)
        ):
            self._places = {0: 0, **{index: place + 1 for index, place in self._places.items()}}
        mine: list[Any] = []
        others: list[Any] = []
        for choice in chunk.choices:
            choice.index = self._places.setdefault(choice.index, len(self._places))
            (others if choice.index else mine).append(choice)
        if others:
            content = any(not is_bare(choice.delta) for choice in others)
            self.tokens += content
            kind = _TOOL if content else DeltaKind.ROLE
            raw = chunk.model_copy(update={"choices": others, "usage": None})
            self._others.append(Delta("", int(content), kind, None, raw))
        return chunk.model_copy(update={"choices": mine}) if mine else None

    def _make_template(self, data: bytes, chunk: ChatCompletionChunk) -> None:
        if self.tokens - self._template_made_at <= _REPAID_AFTER:
            self._templates_left -= 1
        self._template = ChunkTemplate.of(data, chunk)
        self._template_made_at = self.tokens

    def _read_other(self, chunk: ChatCompletionChunk, deltas: list[Delta]) -> None:
        """Read a chunk that holds more than plain text: reasoning, tools, refusals, roles, or several of them."""
        if chunk.choices[0].delta.tool_calls:
            self._calls.place(chunk.choices[0].delta.tool_calls)
            self._template = None  # it may be of a call that does not go on
        self.has_notes = self.has_notes or has_notes(chunk.choices[0].delta)
        parts = parts_of(chunk)
        raws = [chunk] if len(parts) == 1 else divided(chunk, [fields for _, fields in parts])
        for (delta, _), raw in zip(parts, raws, strict=True):
            if delta.kind is _TOOL:
                self._implied = _reason_of_calls(chunk) or self._implied
            delta.raw = raw
            self.tokens += delta.tokens
            deltas.append(delta)

    def _read_counted(self, chunk: ChatCompletionChunk, logprobs: Any, deltas: list[Delta]) -> None:
        """Read a chunk with log probabilities, which show how many tokens the chunk holds."""
        first_at = len(deltas)
        self._read_other(chunk, deltas)
        first, entries = deltas[first_at], logprob_entries(logprobs)
        if not entries:
            return
        self.tokens += len(entries) - first.tokens
        first.tokens = len(entries)
        first.logp = log_probabilities([getattr(entry, "logprob", None) for entry in entries])
        if self._classes and first.text.strip():
            # Spaces before the answer decide nothing, and only the first token does.
            first.label_scores = label_scores(_alternatives(entries), self._classes)
            self._classes = ()
        if not self._hides_logprobs:
            first.logprobs = logprobs.model_dump(warnings=False)

    def _read_last(self, chunk: ChatCompletionChunk, reason: str, logprobs: Any, deltas: list[Delta]) -> None:
        """Read a chunk with a finish reason. What else it holds is passed on without the reason."""
        before, is_first = self.tokens, self.finish_reason is None
        if is_bare(chunk.choices[0].delta):
            self.has_notes = self.has_notes or has_notes(chunk.choices[0].delta)
            if is_first:
                self.finish_raw = chunk
            else:
                self._add_to_last(chunk)
        else:
            if is_first:
                self.finish_raw = finish_only(chunk)
            chunk = without_finish(chunk)
            if logprobs is None:
                self._read_other(chunk, deltas)
            else:
                self._read_counted(chunk, logprobs, deltas)
        self._ended(reason, self.tokens - before)
        self._show_usage()

    def _read_opaque(self, chunk: ChatCompletionChunk, deltas: list[Delta]) -> None:
        before, is_first = self.tokens, self.finish_reason is None
        reasons = [c.finish_reason for c in chunk.choices if c.finish_reason is not None]
        self._finished.update(c.index for c in chunk.choices if c.finish_reason is not None)
        ends = bool(reasons) and len(self._finished) >= self._choices
        has_content = any(not is_bare(c.delta) for c in chunk.choices)
        if ends and is_first:
            self.finish_raw = finish_only(chunk) if has_content else chunk
        if not ends or has_content:
            self.tokens += has_content
            kind = _TOOL if has_content else DeltaKind.ROLE
            shown = without_finish(chunk) if ends else chunk
            deltas.append(Delta("", int(has_content), kind, None, shown))
            self._implied = _reason_of_calls(chunk) or next(iter(reasons), None) or self._implied
        if ends:
            self._ended(reasons[-1], self.tokens - before)
            self._show_usage()

    def _add_to_last(self, chunk: ChatCompletionChunk) -> None:
        """Add what a provider says after the finish reason to the chunk with the finish reason."""
        if getattr(chunk, "moderation", None) is not None:
            self.finish_raw.moderation = chunk.moderation
        for name, value in (chunk.model_extra or {}).items():
            self.finish_raw.__pydantic_extra__[name] = value

    def _note_usage(self, chunk: ChatCompletionChunk) -> None:
        counted = usage_in(chunk)
        if counted is not None:
            self.usage = with_greatest(self.usage, counted)
        if chunk.usage is not None and (counted is not None or self.usage is None):
            self._usage_given = chunk.usage
        if self.finish_raw is not None:
            self._show_usage()

    def _show_usage(self) -> None:
        """Put the server's usage, with all its details, into `finish_raw`; a made one where that lacks a count."""
        shown, counted = self._usage_given, self.usage
        if counted is not None and (shown is None or usage_from(shown) != counted):
            prompt, completion = counted.prompt_tokens, counted.completion_tokens
            shown = CompletionUsage(
                prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
            )
            if counted.cached_tokens:
                shown.prompt_tokens_details = PromptTokensDetails(cached_tokens=counted.cached_tokens)
        self.finish_raw.usage = shown

    def _mended(self, data: bytes) -> ChatCompletionChunk | None:
        """Return the repaired chunk in data that strict validation rejected; None for data that may be ignored."""
        # Of one choice, the text beside its error comes first.
        body = self._json(data, in_choices=self._choices > 1)
        if body is None:
            return None
        body = presentable(body, data)
        choices = body.get("choices")
        if not isinstance(choices, list) and not isinstance(body.get("usage"), dict):
            return None  # another kind of event, such as a ping
        listed = [choice for choice in choices or [] if isinstance(choice, dict)]
        if not self.tokens:
            self._in_messages = not all(map(_ends, listed)) and any(map(_has_message, listed))
        if not self.tokens or self._in_messages:  # else a message repeats what has come (MiniMax)
            listed = list(map(as_chunk, listed))
        body["choices"] = [mended_choice(choice, index, self._halves) for index, choice in enumerate(listed)]
        for name, default in (("id", ""), ("created", 0), ("model", "")):
            if body.get(name) is None:
                body[name] = default
        body["object"] = "chat.completion.chunk"
        return ChatCompletionChunk.construct(**body)


def _ends(choice: dict[str, Any]) -> bool:
    return reason_in(choice.get("finish_reason")) is not None


def _has_message(choice: dict[str, Any]) -> bool:
    message = choice.get("message")
    return isinstance(message, dict) and any(value for name, value in message.items() if name != "role")


def _reason_of_calls(chunk: ChatCompletionChunk) -> str | None:
    """Return the reason of an answer that ends with the calls in a chunk; None where there are none."""
    deltas = [choice.delta for choice in chunk.choices]
    if any(delta.tool_calls for delta in deltas):
        return "tool_calls"
    return "function_call" if any(delta.function_call for delta in deltas) else None


def _alternatives(entries: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield the alternatives to the first token that is not blank, that token among them."""
    for entry in entries:
        token = getattr(entry, "token", None)
        if not isinstance(token, str) or not token.strip():
            continue
        yield token, _number(getattr(entry, "logprob", None))
        for other in getattr(entry, "top_logprobs", None) or ():
            if isinstance(other.token, str) and other.token != token:
                yield other.token, _number(other.logprob)
        return


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


class CompletionReader(ChunkReader):
    """Reads `text_completion` events of `/completions`; its deltas have no `raw`."""

    __slots__ = ()

    def _read(self, events: list[bytes], deltas: list[Delta]) -> None:
        for data in events:
            body = self._json(data)
            if body is None:
                break
            if (counted := usage_in(body)) is not None:
                self.usage = with_greatest(self.usage, counted)
            choices = body.get("choices")
            if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
                continue
            text, reason = choices[0].get("text"), reason_in(choices[0].get("finish_reason"))
            before = self.tokens
            given = {"text": text} if isinstance(text, str) else {}
            whole = self._halves.joined(given, 0, ends=reason is not None).get("text")
            if text or whole:
                logp = log_probabilities(_token_logprobs(choices[0].get("logprobs")))
                tokens = len(logp) if logp else 1
                self.tokens += tokens
                deltas.append(Delta(whole or "", tokens, _TEXT if whole else DeltaKind.ROLE, logp=logp))
            if reason is not None:
                self._ended(reason, self.tokens - before)


def _token_logprobs(logprobs: object) -> list[Any]:
    """Return the log probabilities of a completion's tokens, in the API's form or in llama-server's."""
    if not isinstance(logprobs, dict):
        return []
    values, entries = logprobs.get("token_logprobs"), logprobs.get("content")
    if isinstance(values, list):
        return values
    listed = entries if isinstance(entries, list) else []
    return [entry.get("logprob") if isinstance(entry, dict) else None for entry in listed]
