"""Which endpoints may serve a request: checks a pin, then privacy, then features, then context length."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from disco.candidate import Candidate, Reach
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError, ContextLengthError, NoEndpointError, nearest, shown
from disco.plan import LeftOut, Why

__all__ = ["ANSWER_RESERVE_TOKENS", "eligible", "is_within", "known_names", "left_out"]

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
_MOST_WORDS = 120  # characters of a list of needs in a record: callers choose the names of parameters
_UNEXPLAINED: Mapping[str, Mapping[str, str]] = {}
_SERVES_IT = "configure an endpoint that serves what the request needs, or leave it out"
_SHORTEN = "shorten the conversation, lower max_tokens, or configure a longer context"
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


def known_names(names: Collection[str], known: Collection[str], option: str) -> None:
    """Check that endpoints which an option names exist.

    Args:
        names: the names.
        known: those of every configured endpoint.
        option: where the names stand, for the message.

    Raises:
        ConfigurationError: one does not.
    """
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{option} names {shown(name)}, and no endpoint is called so. {nearest(name, known)}"
            )


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
        ConfigurationError: the request is pinned to an endpoint that does not exist.
        ContextLengthError: no endpoint may serve the request, and at least one of them would serve a shorter prompt.
        NoEndpointError: no endpoint may serve the request, for another reason. Both messages list every endpoint with
            its reason.
    """
    wanted_tokens = _wanted_tokens(features)
    needs, pinned = features.needs, features.endpoint
    if pinned is not None:
        known_names((pinned,), [candidate.name for candidate in candidates], 'The option "endpoint"')
    too_far = _FARTHER[features.reach]
    left = []
    for candidate in candidates:
        if pinned is not None and candidate.name != pinned:
            continue
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
        raise _refusal(features, candidates, served, lacks)
    return left


def left_out(
    features: Features,
    candidates: Sequence[Candidate],
    served: Mapping[str, frozenset[str] | None],
) -> tuple[LeftOut, ...]:
    """Return the candidates that may not serve the request, each with its first reason; the arguments of `eligible`."""
    reasons = ((c.name, _reasons(features, c, served)) for c in candidates)
    return tuple(LeftOut(name, why[0]) for name, why in reasons if why)


def _wanted_tokens(features: Features) -> int:
    answer_tokens = ANSWER_RESERVE_TOKENS if features.max_tokens is None else features.max_tokens
    return features.prompt_tokens + answer_tokens


def _reasons(
    features: Features, candidate: Candidate, served: Mapping[str, frozenset[str] | None]
) -> list[Why]:
    """Return why an endpoint may not serve the request; empty: it may."""
    reasons = []
    if features.endpoint not in (None, candidate.name):
        reasons.append(Why("pinned", source="request", what=str(features.endpoint)))
    if candidate.reach in _FARTHER[features.reach]:
        reasons.append(Why("too_far", source="request", what=features.reach))
    if missing := _missing(features, candidate, served):
        reasons.append(Why("not_served", source="request", what=", ".join(missing)[:_MOST_WORDS]))
    limit, wanted_tokens = candidate.context_tokens, _wanted_tokens(features)
    if limit is not None and wanted_tokens > limit:
        reasons.append(Why("context", wanted_tokens, limit, "profile"))
    return reasons


def _missing(
    features: Features, candidate: Candidate, served: Mapping[str, frozenset[str] | None]
) -> list[str]:
    """Return what the request needs and the endpoint does not serve, sorted."""
    serves = served.get(candidate.name, _NOTHING)
    return [] if serves is None else sorted(features.needs - serves)


def _refusal(
    features: Features,
    candidates: Sequence[Candidate],
    served: Mapping[str, frozenset[str] | None],
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
        whys = _reasons(features, candidate, served)
        for why in whys:
            match why.code:
                case "pinned":
                    reasons.append(f"the request is pinned to {why.what!r}")
                    remedies['leave the option "endpoint" out of the request'] = None
                case "too_far":
                    reason, remedy = _TOO_FAR[features.reach]
                    reasons.append(reason)
                    remedies[remedy] = None
                case "not_served":
                    missing = _missing(features, candidate, served)
                    known = lacks.get(candidate.name, {})
                    notes = sorted({known[name] for name in missing if name in known})
                    said = [f"it does not serve {', '.join(missing)}", *(f"({one})" for one in notes)]
                    reasons.append(" ".join(said))
                    param = param or _PARAMS.get(missing[0], missing[0])
                    remedies[_SERVES_IT] = None
                case _:
                    only_context = only_context or len(whys) == 1
                    reasons.append(_context_reason(features, candidate.context_tokens or 0))
                    remedies[_SHORTEN] = None
        lines.append(f"{candidate.name} ({candidate.place}): {'; '.join(reasons)}")
    message = (
        "No endpoint may serve this request. "
        + ". ".join(lines)
        + ". To go on: "
        + "; or ".join(remedies)
        + "."
    )
    return ContextLengthError(message) if only_context else NoEndpointError(message, param=param)


def _context_reason(features: Features, limit: int) -> str:
    wanted_tokens = _wanted_tokens(features)
    answer = wanted_tokens - features.prompt_tokens
    return (
        f"its context holds {limit} tokens, and the prompt's {features.prompt_tokens} with "
        f"{answer} for the answer are {wanted_tokens}"
    )
