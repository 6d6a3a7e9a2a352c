"""Which endpoints may serve a request: checks a pin, then privacy, then features, then context length.

The limit of an answer (`max_tokens`) is an upper limit: it decides nothing here. Only the prompt has to fit, with one
token of an answer. Its length is an estimate unless an endpoint has counted it (`Features.counted`), so an endpoint is
left out only where no tokenizer could make the prompt short enough; otherwise the endpoint decides, and another one
takes over where it refuses. `cramped` says which endpoints had better leave the request to others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from disco.candidate import Candidate, Reach
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError, ContextLengthError, NoEndpointError, nearest, shown
from disco.plan import LeftOut, Why

__all__ = ["cramped", "eligible", "is_doubtful", "is_within", "known_names", "left_out"]

# The longest token of any known tokenizer has 128 characters (spaces), and the estimate counts one for each four.
_MOST_OVERESTIMATED = 32
_MOST_UNDERESTIMATED = 4  # a character, or a byte, each

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
_SHORTEN = "shorten the messages, or configure a longer context (context_tokens)"
# The parameter by which a request asks for a feature, where it has another name.
_PARAMS = {
    "json_schema": "response_format",
    "images": "messages",
    "audio": "messages",
    "reasoning": "reasoning_effort",
    "web_search": "web_search_options",
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
            every feature that it is not known to lack. An endpoint that is missing here serves plain text only:
            features are never assumed.
        lacks: by endpoint name, the features that it is known not to serve, and why (`Capabilities.lacks`).

    Raises:
        ConfigurationError: the request is pinned to an endpoint that does not exist.
        ContextLengthError: no endpoint may serve the request, and at least one of them would serve a shorter prompt.
        NoEndpointError: no endpoint may serve the request, for another reason. Both messages list every endpoint with
            its reason.
    """
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
        if needs and _missing(features, candidate, served, lacks):
            continue
        if (
            candidate.context_tokens is not None
            and _least_tokens(features, candidate) >= candidate.context_tokens
        ):
            continue
        left.append(candidate)
    if not left:
        raise _refusal(features, candidates, served, lacks)
    return left


def left_out(
    features: Features,
    candidates: Sequence[Candidate],
    served: Mapping[str, frozenset[str] | None],
    lacks: Mapping[str, Mapping[str, str]] = _UNEXPLAINED,
) -> tuple[LeftOut, ...]:
    """Return the candidates that may not serve the request, each with its first reason; the arguments of `eligible`."""
    reasons = ((c.name, _reasons(features, c, served, lacks)) for c in candidates)
    return tuple(LeftOut(name, why[0]) for name, why in reasons if why)


def cramped(features: Features, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates whose context would probably cut the answer off, or not hold the prompt.

    A typical answer counts (`Features.expected_tokens`), and not the limit that the caller set: many programs set one
    that is far above what they get.
    """
    return [
        c
        for c in candidates
        if c.context_tokens is not None
        and features.prompt_tokens_at(c.name) + features.expected_tokens > c.context_tokens
    ]


def is_doubtful(features: Features, context_tokens: int) -> bool:
    """Return whether an estimate does not tell if such a context has room for the prompt and a typical answer."""
    least = features.prompt_tokens // _MOST_OVERESTIMATED
    most = features.prompt_tokens * _MOST_UNDERESTIMATED + features.expected_tokens
    return least < context_tokens < most


def _least_tokens(features: Features, candidate: Candidate) -> int:
    """Return the least tokens that the prompt may have at an endpoint; its own count, where it has counted."""
    counted = features.counted.get(candidate.name)
    return features.prompt_tokens // _MOST_OVERESTIMATED if counted is None else counted


def _reasons(
    features: Features,
    candidate: Candidate,
    served: Mapping[str, frozenset[str] | None],
    lacks: Mapping[str, Mapping[str, str]],
) -> list[Why]:
    """Return why an endpoint may not serve the request; empty: it may."""
    reasons = []
    if features.endpoint not in (None, candidate.name):
        reasons.append(Why("pinned", source="request", what=str(features.endpoint)))
    if candidate.reach in _FARTHER[features.reach]:
        reasons.append(Why("too_far", source="request", what=features.reach))
    if missing := _missing(features, candidate, served, lacks):
        reasons.append(Why("not_served", source="request", what=", ".join(missing)[:_MOST_WORDS]))
    limit, least = candidate.context_tokens, _least_tokens(features, candidate)
    if limit is not None and least >= limit:
        reasons.append(Why("context", least, limit, "profile"))
    return reasons


def _missing(
    features: Features,
    candidate: Candidate,
    served: Mapping[str, frozenset[str] | None],
    lacks: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return what the request needs and the endpoint does not serve, sorted."""
    serves = served.get(candidate.name, _NOTHING)
    if serves is None:
        return sorted(features.needs & lacks.get(candidate.name, {}).keys())
    return sorted(features.needs - serves)


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
    # Context and prompt, tokens, and whether that is an estimate, where the context is the only reason.
    longest: tuple[int, int, bool] | None = None
    param: str | None = None
    for candidate in candidates:
        reasons = []
        whys = _reasons(features, candidate, served, lacks)
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
                    missing = _missing(features, candidate, served, lacks)
                    known = lacks.get(candidate.name, {})
                    notes = sorted({known[name] for name in missing if name in known})
                    said = [f"it does not serve {', '.join(missing)}", *(f"({one})" for one in notes)]
                    reasons.append(" ".join(said))
                    param = param or _PARAMS.get(missing[0], missing[0])
                    remedies[f"configure a server that serves {', '.join(missing)}, or leave it out"] = None
                case _:
                    limit, least = int(why.limit or 0), int(why.value or 0)
                    if len(whys) == 1:
                        estimated = candidate.name not in features.counted
                        longest = max(longest or (0, 0, False), (limit, least, estimated))
                    reasons.append(f"its context holds {limit} tokens")
                    remedies[_SHORTEN] = None
        lines.append(f"{candidate.name} ({candidate.place}): {'; '.join(reasons)}")
    message = (
        "No endpoint may serve this request. "
        + ". ".join(lines)
        + ". To go on: "
        + "; or ".join(remedies)
        + "."
    )
    if longest is None:
        return NoEndpointError(message, param=param)
    limit, least, estimated = longest
    return ContextLengthError.of(limit, least, at_least=estimated, more=message)
