"""What disco adds to a request by itself, and takes back where a server refuses it.

These are: `stream`, where the application waits for the whole answer; `stream_options`, by which the server counts the
tokens of a stream; log probabilities that only disco uses; and a limit on the answer where the application set none.
A refusal of what the application asked for itself is the application's.

A refusal is recognised by what the error names. Where it says nothing at all ("Bad request"), the request is sent once
more without each addition in turn. So an addition costs at most one more request, and is left out of later requests
for the model once a request without it was answered. What may have any other cause - a status of 500, a stream in which
nothing can be read, words at a status that blames no request - is a doubt: only the first try of a request to a server
that is not known to take the addition is sent again, once, and the second time teaches. All other failures are left to
the session, and the last try of a request goes without what disco adds, where the server is not known to take it. There
is such a try of a whole answer where the application wants no retries, too (with the SDK, it would have been the first)
but not where the stream broke off after a piece of the answer: then the server streams. A stream that came to its end
and is no answer is another matter: half a call, a finish reason that says failure, and behind text garbage or an error
about the key or the model. Where nobody else answers, the very next try goes without the stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import httpx2
import openai

from disco.endpoints.continuation.methods import RESPONSES, Call
from disco.endpoints.openai_api.chunk_repair import ServerReportedError
from disco.endpoints.openai_api.error_mapping import kind_of, stream_error
from disco.endpoints.openai_api.label_scores import ALTERNATIVES
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import OVER_CAP_TOKENS
from disco.request import Request

__all__ = [
    "Addition",
    "AnswerLimit",
    "AnswerLimits",
    "LogprobsRequest",
    "LogprobsSupport",
    "Recent",
    "Refusal",
    "StreamAdditions",
]

Key = tuple[str, str]  # base_url and model
K = TypeVar("K")
V = TypeVar("V")
_MOST_MODELS: Final = 256  # callers of `disco serve` may send any model name


class Recent(dict[K, V]):
    """Keeps the entries that were set last, `_MOST_MODELS` of them."""

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        if len(self) >= _MOST_MODELS:
            del self[next(iter(self))]
        super().__setitem__(key, value)


# ------------------------------------------------------------------ refusals


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that may refuse an addition.

    Attributes:
        status: the response's; 200 for a stream without anything in it, 0 for one that cannot be read.
        said: all that the error says, in lower case; empty for such streams.
        is_of_request: the status and the error blame the request, and not its length.
        says_nothing: so does an error that has no words but those that any refusal of a request has, and what may have
            any other cause.
    """

    status: int
    said: str = field(default="", repr=False)
    is_of_request: bool = False
    says_nothing: bool = False

    @classmethod
    def of(cls, error: openai.APIStatusError) -> Refusal:
        """Return the refusal that an error stands for."""
        status, kind = error.status_code, kind_of(error)
        if kind in _OF_THE_PROMPT:
            return cls(status)
        said = f"{error} {_words(error.body)}".lower()
        is_vague = status in _VAGUE and kind in (FailureKind.BAD_REQUEST, FailureKind.SERVER)
        is_vague = is_vague and error.response.headers.get("x-should-retry") != "false"
        says_nothing = status == _UNCLEAR or _EMPTY_WORDS.issuperset(_WORD.findall(said))
        if status in _OF_THE_FORMAT:
            said += " streaming"
        return cls(status, said, status in _REFUSED, is_vague and says_nothing)

    @classmethod
    def within(cls, error: Exception, response: httpx2.Response) -> Refusal:
        """Return the refusal that what was read instead of an answer may stand for; it has no status of its own."""
        if not isinstance(error, ServerReportedError):
            return cls(_UNREADABLE, says_nothing=True)
        reported = stream_error(error.body, response.request)
        kind = kind_of(reported)
        # The SDK's own words for an error without words speak of streaming.
        return cls(400, "" if kind in _OF_THE_PROMPT else _words(error.body), kind in _OF_THE_REQUEST)


def _words(body: object) -> str:
    return json.dumps(body, default=str, ensure_ascii=False).lower()


_OF_THE_PROMPT: Final = (FailureKind.CONTEXT_LENGTH, FailureKind.CONTENT_FILTER)
_OF_THE_REQUEST: Final = (FailureKind.BAD_REQUEST, FailureKind.UNSERVED)
_REFUSED: Final = (400, 403, 404, 405, 422, 501)
_OF_THE_FORMAT: Final = (406, 415)  # of the answer; only a stream has another
_UNCLEAR: Final = 500  # which may have any other cause
_UNREADABLE: Final = 0
_DOUBTFUL: Final = (_UNCLEAR, 200, _UNREADABLE)
_VAGUE: Final = (400, 422, 500, 501)
_WORD: Final = re.compile(r"[a-z]+")
# Only what is said in no other words of English says nothing. A word that may be meant of one field is not among them.
_EMPTY_WORDS: Final = frozenset(
    word
    for line in (
        # The fields of errors, and what the SDK writes around them: OpenAI, vLLM, FastAPI, NestJS, Cloudflare.
        "code detail details error errors false message msg none null object param status statuscode success true type",
        # HTTP's phrases for 400 and 422, and the types of OpenAI and vLLM.
        "bad badrequest badrequesterror content entity invalid request unprocessable",
        # What pydantic says of a field (Mistral, Fireworks, Azure) and OpenAI of a parameter, where neither is named.
        "argument arguments body extra failed field fields forbidden input inputs json missing parameter parameters",
        "permitted supported unexpected unknown unrecognized unsupported validation value values",
        # Google: "Request contains an invalid argument."; xAI: "Client specified an invalid argument".
        "client contains specified",
        # Grammar.
        "a an and are check in is it no not of or please the this was with your",
    )
    for word in line.split()
)


class Addition(Protocol):
    """What disco adds to a request of one attempt."""

    def without(self, call: Call, refusal: Refusal, *, guesses: bool) -> Call | None:
        """Return the call without the addition; None where the refusal has another cause, or nothing was added.

        `guesses`: the refusal names no addition, so it may be of any.
        """
        ...

    def is_doubted_in(self, call: Call) -> bool:
        """Whether the call has it, the server is not known to take it, and the last try goes without it."""
        ...

    def answered(self, call: Call) -> None:
        """Learn from a complete answer; `call`: as it was answered."""
        ...


# ------------------------------------------------------------------ streaming


class StreamAdditions:
    """Which models of a server take `stream` and `stream_options`. Mutable: what requests have shown."""

    def __init__(self) -> None:
        self._takes: Recent[tuple[Key, str], bool | None] = Recent()  # None: perhaps not

    def of(self, request: Request, key: Key, *, continues: bool) -> list[_StreamAddition]:
        """Return what disco adds to a request that the application did not ask for.

        `continues`: an answer that has begun.
        """
        options = request.params.get("stream_options")
        own = dict(options) if isinstance(options, Mapping) else {}
        made = []
        is_first, is_last = not (request.retries or continues), request.is_last and not continues
        if not request.counts:
            doubts = _DOUBTFUL[:1] if request.streams else ()
            made.append(_StreamAddition("stream_options", own, key, self._takes, doubts, is_first=is_first))
        if not request.streams:
            made.append(_StreamAddition("stream", {}, key, self._takes, _DOUBTFUL, is_first=is_first))
        if is_last and made:
            made[-1].leave_out()
        return made


# Wherever it stands in a name ("STREAM_NOT_SUPPORTED", "streamingDisabled", Bedrock's "ConverseStream"), and beside
# Chinese; but not within words of another meaning.
_NOT_OF: Final = r"(?<!up)(?<!down)(?<!main)"
_STREAMING: Final = rf"{_NOT_OF}streaming|(?<![a-z])sse(?![a-z])|\u6d41\u5f0f|\u4e32\u6d41"  # in Chinese
_NAMES_OF: Final = {
    "stream_options": re.compile(
        r"stream[_ -]?options?|include[_ ]?usage|usage (?:\w+ )?(?:in|for|of|with|while) (?:a |the )?stream"
    ),
    # As gateways word it: Alibaba names its own field, HTTP has "chunked".
    "stream": re.compile(rf"{_NOT_OF}stream|{_STREAMING}|incremental_output|\bchunked\b"),
}
# Where the request is not blamed, "stream" may be the one that broke.
_DOUBTED_NAMES_OF: Final = {**_NAMES_OF, "stream": re.compile(_STREAMING)}
_SAID_WITHIN: Final = 600  # characters of an error, its fields included; what follows may quote the request


class _StreamAddition:
    """`stream` or `stream_options` of one attempt. Mutable: `_is_guess`, `_is_left_out`.

    Args:
        name: the field.
        own: what the application has in it.
        key: base_url and model.
        takes: whether models take the fields, as far as it is known.
        doubts: statuses that may have another cause, by which it is left out all the same.
        is_first: whether this is the first try; at no other one is it left out by a doubt.
    """

    __slots__ = ("_doubts", "_is_first", "_is_guess", "_is_left_out", "_key", "_name", "_own", "_takes")

    def __init__(
        self,
        name: str,
        own: dict[str, Any],
        key: Key,
        takes: Recent[tuple[Key, str], bool | None],
        doubts: tuple[int, ...],
        *,
        is_first: bool,
    ) -> None:
        self._name, self._own, self._key, self._takes = name, own, (key, name), takes
        self._is_first, self._doubts = is_first, doubts
        self._is_left_out = takes.get(self._key) is False
        self._is_guess = False

    def without(self, call: Call, refusal: Refusal, *, guesses: bool) -> Call | None:
        if self._is_left_out or self._name not in call.body:
            return None
        is_open = not self._takes.get(self._key)
        if guesses:
            is_doubt = refusal.status in _DOUBTFUL
            may_doubt = self._is_first and refusal.status in self._doubts
            refuses = is_open and (may_doubt or not is_doubt) and refusal.says_nothing
        else:
            is_doubt = not refusal.is_of_request
            names = (_DOUBTED_NAMES_OF if is_doubt else _NAMES_OF)[self._name]
            named = names.search(refusal.said[:_SAID_WITHIN])
            refuses = named is not None and (not is_doubt or (is_open and self._is_first))
        if not refuses:
            return None
        self._is_left_out, self._is_guess = True, is_doubt
        return self.left_out_of(call)

    def is_doubted_in(self, call: Call) -> bool:
        return self._name in call.body and not (self._is_left_out or self._takes.get(self._key))

    def leave_out(self) -> None:
        """Leave it out from the beginning, unless the server is known to take it."""
        if not (self._is_left_out or self._takes.get(self._key)):
            self._is_left_out = self._is_guess = True

    def left_out_of(self, call: Call) -> Call:
        """Return the call as the server takes it, as far as that is known."""
        if not self._is_left_out:
            return call
        body = {name: value for name, value in call.body.items() if name != self._name}
        if self._name == "stream":
            body.pop("stream_options", None)  # is only taken with a stream
        elif self._own:
            body[self._name] = self._own
        otherwise = None if call.otherwise is None else self.left_out_of(call.otherwise)
        return replace(call, body=body, otherwise=otherwise)

    def answered(self, call: Call) -> None:
        takes: bool | None = not self._is_left_out
        if takes and self._name not in call.body:
            return  # it went with `stream`, of which it says nothing
        if self._is_guess and self._key not in self._takes:
            takes = None
        if self._takes.get(self._key, self) is not takes:
            self._takes[self._key] = takes


# ------------------------------------------------------------------ log probabilities

# Status codes of servers that are asked for log probabilities and cannot give them.
_WITHOUT_LOGPROBS: Final = (400, 422, 501)
# `_UNCLEAR` counts only of a server that has not given them yet, and only the second time.
_OF_LOGPROBS: Final = ("logprobs", "top_logprobs")


@dataclass(slots=True)
class LogprobsRequest:
    """What an attempt asks for besides the answer. Mutable: `refusal`.

    Attributes:
        classes: the classes that the reply's first token scores; empty: none.
        gives: whether the server is known to give log probabilities; None: that is not known.
        asks_again: whether a refused request is sent again without them.
        note: called when the answer is complete: with None, or with the status by which the server had refused the
            request before.
        refusal: that status.
    """

    classes: tuple[str, ...]
    gives: bool | None
    asks_again: bool
    note: Callable[[int | None], None]
    refusal: int | None = None

    def added_to(self, call: Call) -> Call:
        """Return the call with the request for log probabilities."""
        body = dict(call.body)
        if call.path == "/completions":
            # The older API takes a number of alternatives; some servers take 0 to mean no log probabilities.
            body["logprobs"] = 1
        else:
            # Without a number llama-cpp-python's server gives none, and llama-server lists 20 alternatives.
            body["logprobs"], body["top_logprobs"] = True, _alternatives(self.classes)
        return replace(call, body=body)

    def without(self, call: Call, refusal: Refusal, *, guesses: bool) -> Call | None:
        status = refusal.status
        refuses = status in _WITHOUT_LOGPROBS or (self.gives is not True and status in (200, _UNCLEAR))
        if not (guesses and self.asks_again and refuses and "logprobs" in call.body):
            return None
        self.refusal = status
        return replace(call, body={n: value for n, value in call.body.items() if n not in _OF_LOGPROBS})

    def is_doubted_in(self, call: Call) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def answered(self, call: Call) -> None:  # noqa: ARG002 - the protocol's
        self.note(self.refusal)


class LogprobsSupport:
    """Which models of a server give log probabilities. Mutable: what requests have shown.

    Args:
        given: what the application has said; None: requests find out.
    """

    def __init__(self, *, given: bool | None) -> None:
        self.given = given
        # By model and number of alternatives; None: `_UNCLEAR` has come once.
        self._found: Recent[tuple[Key, int], bool | None] = Recent()

    def request(self, key: Key, classes: tuple[str, ...]) -> LogprobsRequest | None:
        """Return the request for a model's log probabilities; None where it gives none.

        Args:
            key: base_url and model.
            classes: those to score; empty: the log probabilities of a free answer are asked for.
        """
        asked = key, _alternatives(classes)
        gives = self._found.get(asked) if self.given is None else self.given
        if gives is False:
            return None

        def note(refusal: int | None) -> None:
            is_first = refusal == _UNCLEAR and asked not in self._found
            self._found[asked] = None if is_first else refusal is None

        return LogprobsRequest(classes, gives, self.given is None, note)


def _alternatives(classes: tuple[str, ...]) -> int:
    """Return how many alternatives to each token are asked for. Some servers list a few only, or none."""
    return ALTERNATIVES if classes else 1


# ------------------------------------------------------------------ a limit

# The older name is tried first. Nearly every server keeps to it, and one that does not take it says so, which costs a
# round trip once. A server that does not know the newer name often ignores it, which costs an answer of full length.
_NAMES: Final = ("max_tokens", "max_completion_tokens")
_OF_RESPONSES: Final = "max_output_tokens"
_LEAST_OF_RESPONSES: Final = 16  # OpenAI's API refuses a lower limit under that name


class AnswerLimits:
    """How the models of a server take a limit. Mutable: what requests have shown.

    A server that takes no name is sent no limit: the session stops it, and its later answers are not divided.
    """

    def __init__(self) -> None:
        self._names: Recent[Key, str] = Recent()
        self._useless: Recent[Key, bool] = Recent()

    def works(self, key: Key) -> bool:
        """Return whether a limit may divide an answer of this model; True where nothing is known."""
        return key not in self._useless

    def of(self, request: Request, key: Key) -> tuple[Request, AnswerLimit | None]:
        """Return the request as it is to be sent, with disco's own limit on its answer, and what to learn from it."""
        if request.cap is None:
            return request, None
        if any(request.params.get(name) is not None for name in _NAMES):
            return request, None  # the application's limit, lowered
        limit = AnswerLimit(self, key, request.cap, self._names.get(key, _NAMES[0]))
        params = {**request.params, limit.name: request.cap}
        responses = request.responses
        if responses is not None:
            responses = {**responses, _OF_RESPONSES: max(request.cap, _LEAST_OF_RESPONSES)}
        return replace(request, params=params, responses=responses), limit

    def refused(self, key: Key, name: str) -> str | None:
        """Store that a model does not take this name, or ignores it; return the next name, None where there is none."""
        left = _NAMES[_NAMES.index(name) + 1 :]
        if not left:
            self._useless[key] = True
            return None
        self._names[key] = left[0]
        return left[0]

    def cannot_divide(self, key: Key) -> None:
        """Store that a limit is of no use for this model: it spends its tokens on thoughts."""
        self._useless[key] = True


@dataclass(slots=True)
class AnswerLimit:
    """The limit of one attempt. Mutable: `name`, `written`.

    Attributes:
        limits: what is known of the server.
        key: base_url and model.
        tokens: the limit.
        name: the name that the server is sent.
        written: tokens that have come.
    """

    limits: AnswerLimits
    key: Key
    tokens: int
    name: str
    written: int = 0

    def without(self, call: Call, refusal: Refusal, *, guesses: bool) -> Call | None:
        """Return the call with the limit under another name, at last without it, if the server does not take this name.

        A prompt that is too long is another cause, though its error may name the limit.
        """
        of_responses = call.path == RESPONSES
        name = _OF_RESPONSES if of_responses else self.name
        if guesses or not refusal.is_of_request or name not in refusal.said or name not in call.body:
            return None
        body = {given: value for given, value in call.body.items() if given != name}
        if of_responses:
            self.limits.cannot_divide(self.key)
        elif (other := self.limits.refused(self.key, name)) is not None:
            self.name = other
            body[other] = self.tokens
        return replace(call, body=body)

    def is_doubted_in(self, call: Call) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def answered(self, call: Call) -> None:
        pass

    def read(self, deltas: list[Delta]) -> None:
        """Learn from what has come."""
        limit = self.tokens + OVER_CAP_TOKENS
        was_within = self.written < limit
        self.written += sum([delta.tokens for delta in deltas])
        if was_within and self.written >= limit:
            self.limits.refused(self.key, self.name)
        if any(delta.kind is DeltaKind.REASONING for delta in deltas):
            self.limits.cannot_divide(self.key)

    def ended(self, finish_reason: str) -> None:
        """Learn from the end: a model whose tokens were used up without any text spends them on hidden thoughts."""
        if finish_reason == "length" and not self.written:
            self.limits.cannot_divide(self.key)
