"""Which endpoints may serve a request: checks privacy, then features, then context length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disco.candidate import Candidate, Reach
from disco.dispatch.request_features import Features
from disco.errors import ContextLengthError, NoEndpointError

__all__ = ["ANSWER_RESERVE_TOKENS", "eligible", "is_within"]

ANSWER_RESERVE_TOKENS = 64
"""Room that an endpoint's context must have for an answer whose length the caller did not limit, tokens."""

_FARTHER: Mapping[Reach, frozenset[Reach]] = {
    "device": frozenset(("own", "any")),
    "own": frozenset(("any",)),
    "any": frozenset(),
}
_TOO_FAR: Mapping[Reach, tuple[str, str]] = {
    "device": (
        "it is a server and the request is local-only",
        'allow servers for this request (local_only = false, and no reach "device")',
    ),
    "own": (
        'it is not one of the user\'s own machines and the request is limited to them (reach "own")',
        'allow other machines for this request (reach "any")',
    ),
}

_NOTHING: frozenset[str] = frozenset()
_UNEXPLAINED: Mapping[str, Mapping[str, str]] = {}
# The parameter by which a request asks for a feature, where it has another name.
_PARAMS = {
    "json_schema": "response_format",
    "images": "messages",
    "audio": "messages",
    "reasoning": "reasoning_effort",
}


def is_within(reach: Reach, bound: Reach) -> bool:
    """Return whether a prompt that may travel as far as `bound` may be sent to an endpoint of this reach."""
    return reach not in _FARTHER[bound]


def eligible(
    features: Features,
    candidates: Sequence[Candidate],
    served: Mapping[str, frozenset[str] | None],
    lacks: Mapping[str, Mapping[str, str]] = _UNEXPLAINED,
) -> list[Candidate]:
    """Return the candidates that may serve the request, in their given order.

    Args:
        features: what the request needs.
        candidates: every configured endpoint.
        served: by endpoint name, the features that the endpoint serves (`Capabilities.features`); None: it serves
            every feature. An endpoint that is missing here serves plain text only: features are never assumed.
        lacks: by endpoint name, why it does not serve a feature, for the message (`Capabilities.lacks`).

    Raises:
        ContextLengthError: no endpoint may serve the request, and at least one of them would serve a shorter prompt.
        NoEndpointError: no endpoint may serve the request, for another reason. Both messages list every endpoint with
            its reason.
    """
    wanted_tokens = features.prompt_tokens + (
        ANSWER_RESERVE_TOKENS if features.max_tokens is None else features.max_tokens
    )
    needs = features.needs
    too_far = _FARTHER[features.reach]
    left = []
    for candidate in candidates:
        if candidate.reach in too_far:
            continue
        if needs:
            serves = served.get(candidate.name, _NOTHING)
            if serves is not None and not needs <= serves:
                continue
        if candidate.context_tokens is not None and wanted_tokens > candidate.context_tokens:
            continue
        left.append(candidate)
    if not left:
        raise _refusal(features, candidates, served, wanted_tokens, lacks)
    return left


def _refusal(
    features: Features,
    candidates: Sequence[Candidate],
    served: Mapping[str, frozenset[str] | None],
    wanted_tokens: int,
    lacks: Mapping[str, Mapping[str, str]],
) -> NoEndpointError:
    if not candidates:
        return NoEndpointError(
            "No endpoint is configured. Give disco a model file for this machine, a server, or both."
        )
    lines: list[str] = []
    remedies: dict[str, None] = {}  # ordered and without repeats
    only_context = False
    param: str | None = None
    for candidate in candidates:
        reasons = []
        if candidate.reach in _FARTHER[features.reach]:
            reason, remedy = _TOO_FAR[features.reach]
            reasons.append(reason)
            remedies[remedy] = None
        serves = served.get(candidate.name, _NOTHING)
        missing = sorted(features.needs - serves) if serves is not None else []
        if missing:
            known = lacks.get(candidate.name, {})
            why = sorted({known[name] for name in missing if name in known})
            reasons.append(
                " ".join([f"it does not serve {', '.join(missing)}", *(f"({one})" for one in why)])
            )
            param = param or _PARAMS.get(missing[0], missing[0])
            remedies["configure an endpoint that serves what the request needs, or leave it out"] = None
        limit = candidate.context_tokens
        if limit is not None and wanted_tokens > limit:
            only_context = only_context or not reasons
            reasons.append(_context_reason(features, wanted_tokens, limit))
            remedies["shorten the conversation, lower max_tokens, or configure a longer context"] = None
        lines.append(f"{candidate.name} ({candidate.place}): {'; '.join(reasons)}")
    message = (
        "No endpoint may serve this request. "
        + ". ".join(lines)
        + ". To go on: "
        + "; or ".join(remedies)
        + "."
    )
    return ContextLengthError(message) if only_context else NoEndpointError(message, param=param)


def _context_reason(features: Features, wanted_tokens: int, limit: int) -> str:
    answer = wanted_tokens - features.prompt_tokens
    return (
        f"its context holds {limit} tokens, and the prompt's {features.prompt_tokens} with "
        f"{answer} for the answer are {wanted_tokens}"
    )
