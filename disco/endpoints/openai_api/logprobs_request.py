"""Asking a server for log probabilities that only disco uses; servers that refuse them are asked without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from disco.endpoints.continuation.methods import Call
from disco.endpoints.openai_api.label_scores import ALTERNATIVES

__all__ = ["LogprobsRequest", "LogprobsSupport"]

# Status codes of servers that are asked for log probabilities and cannot give them.
_REFUSED = (400, 422, 501)
# It may have another cause. So it counts only of a server that has not given them yet, and only the second time.
_UNCLEAR = 500


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
        return replace(call, body=body, without_logprobs=call.body if self.asks_again else None)

    def dropped_from(self, call: Call, status: int) -> Call | None:
        """Return the call without the request, if the status may refuse it; None otherwise. 200: an empty stream."""
        refuses = status in _REFUSED or (self.gives is not True and status in (200, _UNCLEAR))
        if call.without_logprobs is None or not refuses:
            return None
        self.refusal = status
        return replace(call, body=call.without_logprobs, without_logprobs=None)

    def answered(self) -> None:
        """Learn from a complete answer."""
        self.note(self.refusal)


class LogprobsSupport:
    """Which models of a server give log probabilities. Mutable: what requests have shown.

    Args:
        given: what the application has said; None: requests find out.
    """

    def __init__(self, *, given: bool | None) -> None:
        self.given = given
        # By (base_url, model) and number of alternatives; None: `_UNCLEAR` has come once.
        self._found: dict[tuple[tuple[str, str], int], bool | None] = {}

    def request(self, key: tuple[str, str], classes: tuple[str, ...]) -> LogprobsRequest | None:
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
