"""Why a plan is as it is, endpoint by endpoint, in numbers and in words: the only place that has the words.

A policy gives each start its reason (`plan.Why`). `reasons_of` completes them to one for every endpoint of a request,
and `sentence` says one. Records keep the numbers; the log, `disco show`, the live page and summaries say the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from typing import Literal

from disco.amounts import plural
from disco.candidate import Candidate
from disco.plan import Plan, Source, Why

__all__ = ["CODES", "Does", "Reason", "reasons_of", "rule_words", "sentence"]

Does = Literal["starts", "stands_by", "rests", "left_out"]
"""What an endpoint does in a plan: it starts (at once or later), it may take over, it may take over last because it
cools down or is spared, or it takes no part."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one endpoint does what it does in a plan.

    Attributes:
        endpoint: its name.
        does: "starts" (at once or later), "stands_by" (it may take over), "rests" (it may take over last), or
            "left_out".
        after_s: of one that starts, how long after the request, s.
        code: the rule; docs/concepts/why.md has all of them.
        value, limit: the number that decided and what it was compared with, in the unit of the code; None: there is
            none.
        source, seen: where the number is from, and how many observations that are; see `plan.Source`.
        what: a name or word that belongs to it: another endpoint, what a request needs.
    """

    endpoint: str
    does: Does
    code: str
    after_s: float = 0.0
    value: float | None = None
    limit: float | None = None
    source: Source = "preset"
    seen: int = 0
    what: str = ""


_REFUSALS = ("account", "model")  # `FailureKind`s that one refusal shows


def reasons_of(plan: Plan, candidates: Mapping[str, Candidate]) -> tuple[Reason, ...]:
    """Return why each endpoint starts, stands by, rests or is left out, in this order.

    Args:
        plan: as it is carried out.
        candidates: by name, every endpoint of the request.
    """
    reasons = [_reason(start.endpoint, "starts", start.why, start.after_s) for start in plan.starts]
    resting = {rest.endpoint: rest for rest in plan.deprioritised}
    cuts = {cut.endpoint: cut for cut in plan.budget_cuts if cut.what != "move"}
    rule = plan.starts[0].why
    first = candidates.get(plan.starts[0].endpoint)
    for name in plan.fallbacks:
        if (rest := resting.get(name)) is not None:
            refused = rest.reason == "failures" and rest.failure in _REFUSALS
            code = rest.failure if refused and rest.failure else rest.reason
            why = Why(code, rest.for_s, None, "own", rest.failures, rest.failure or "")
            reasons.append(_reason(name, "rests", why))
        elif (cut := cuts.get(name)) is not None:
            reasons.append(_reason(name, "stands_by", Why(f"budget_{cut.why}", what=cut.what)))
        elif rule.code == "server_first" and first is not None:
            reasons.append(_reason(name, "stands_by", _reserve(plan, name, first, rule)))
        else:
            reasons.append(_reason(name, "stands_by", rule))
    reasons += [_reason(name, "left_out", why) for name, why in plan.left_out]
    return tuple([reason for reason in reasons if reason.code])  # a plan that was made by hand says nothing


def _reserve(plan: Plan, name: str, first: Candidate, rule: Why) -> Why:
    """Return why an endpoint is in reserve: from which wait on it starts, where that is known."""
    late_s = first.slow_first_token_s(0)
    known = late_s < float("inf") and name in plan.heirs
    return Why("reserve", rule.value, late_s if known else None, rule.source, rule.seen, first.name)


def _reason(name: str, does: Does, why: Why, after_s: float = 0.0) -> Reason:
    value, limit = (None if number is None or isinf(number) else number for number in (why.value, why.limit))
    return Reason(name, does, why.code, after_s, value, limit, why.source, why.seen, why.what)


_STARTS: Mapping[str, str] = {
    "alone": ("{endpoint} starts: no other endpoint takes part, and its first word usually takes {value_s}"),
    "server_first": "{endpoint} starts: it is asked first, and its first word usually takes {value_s}",
    "device_only": "{endpoint} starts: only this machine is asked, and its first word takes {value_s}",
    "race": "{endpoint} starts: all race for every prompt, and its first word usually takes {value_s}",
    "urgent": "{endpoint} starts: the request is urgent, and its first word usually takes {value_s}",
    "background": "{endpoint} starts alone: the request is in the background; first word after {value_s}",
    "short": (
        "{endpoint} starts: prompts below {limit_tokens} stay on the device, and this one has {value_tokens}"
    ),
    "long": "{endpoint} starts: prompts from {limit_tokens} on race, and this one has {value_tokens}",
    "none_race": "{endpoint} starts: all prompts stay on the device, for the budget is {limit_share}",
    "busy": (
        "{endpoint} starts, too: {what} has other answers to write first, so that its first word "
        "would take {value_s}, and that of {endpoint} {limit_s}"
    ),
    "slow_reader": (
        "{endpoint} starts, too: {what} would read this prompt for {value_s}, the first word of "
        "{endpoint} takes {limit_s}, and the budget has room"
    ),
    "server_and_wait": "{endpoint} starts: the device is spared, and its first word usually takes {value_s}",
    "no_device": (
        "{endpoint} starts alone: the device's budget leaves nothing for a prompt of {value_tokens}"
    ),
    "wait": ("{endpoint} starts if nothing has come after {value_s}; a first word usually takes {limit_s}"),
    "drawn": ("{endpoint} starts: it was drawn at random ({value_share} against a budget of {limit_share})"),
    "budget_used": (
        "{endpoint} starts alone: the policy's budget of {limit_share} of the prompt tokens is "
        "used up (room for {value:.2f} of a longest prompt)"
    ),
    "budget_low": (
        "{endpoint} starts in the place of others: {value_share} of the budget is left, and "
        "answers begin only above {limit_share}"
    ),
    "budget_short": (
        "{endpoint} starts in the place of others: the {value_share} that is left of their "
        "budget does not cover this request"
    ),
    "loading": (
        "{endpoint} starts, too: the model of {what} takes {value_s} more to load, and its own "
        "first word {limit_s}"
    ),
    "beside_probe": (
        "{endpoint} starts if {what}, which had failed and is tried again, has written nothing "
        "after {value_s}"
    ),
    "lowest_tier": (
        "{endpoint} starts: the smallest model answers first, and its first word usually takes {value_s}"
    ),
    "lowest_in_time": (
        "{endpoint} starts: it is the smallest model that keeps the deadline of {limit_s} "
        "(expected: {value_s})"
    ),
    "soonest": ("{endpoint} starts: none keeps the deadline of {limit_s}, and it is done first ({value_s})"),
    "divided_writer": "{endpoint} starts: it writes at most {value_tokens}, while {what} reads",
    "divided_heir": "{endpoint} starts: it reads the prompt ({value_s}), then goes on from {what}",
    "dearer_divided": (
        "{endpoint} starts alone: to divide this answer would be dearer; first word after {value_s}"
    ),
    "plugin": "{endpoint} starts{after}: the policy {what} decides",
}
_STANDS_BY: Mapping[str, str] = {
    "reserve": "{endpoint} stands by: it takes over if {what} fails, refuses or {late}",
    "short": (
        "{endpoint} is not asked: prompts below {limit_tokens} stay on the device, and this one "
        "has {value_tokens}"
    ),
    "none_race": "{endpoint} is not asked: all prompts stay on the device, for the budget is {limit_share}",
    "budget_used": (
        "{endpoint} is not asked: the policy's budget of {limit_share} of the prompt tokens is used up"
    ),
    "budget_spent": "{endpoint} is not asked: what is left of its budget does not cover this request",
    "budget_low": (
        "{endpoint} is not asked beside another: what is left of its budget is kept for answers that need it"
    ),
    "budget_unknown": (
        "{endpoint} is not asked beside another: its budget allows that only once its times are known"
    ),
    "no_device": "{endpoint} is not asked: its budget leaves nothing for a prompt of {value_tokens}",
    "device_only": "{endpoint} stands by: only this machine is asked first",
    "background": "{endpoint} is not asked: requests in the background spend nothing of its budget",
    "drawn": ("{endpoint} is not asked: the other was drawn at random ({value_share} against {limit_share})"),
    "lowest_tier": "{endpoint} stands by: it is asked when the answer of the tier below is doubted or fails",
    "lowest_in_time": (
        "{endpoint} stands by: it is above the tier that starts, or too slow for the deadline of {limit_s}"
    ),
    "soonest": "{endpoint} stands by: it would be done later than the one that starts ({value_s})",
    "plugin": "{endpoint} stands by: the policy {what} does not start it",
}
_RESTS: Mapping[str, str] = {
    "failures": "{endpoint} rests{rest_s}: it failed {seen} times ({what})",
    "account": "{endpoint} rests{rest_s}: it refuses its key or its account",
    "model": "{endpoint} rests{rest_s}: it does not have the model",
    "rate_limit": "{endpoint} rests{rest_s}: it asked for fewer requests",
    "probed": "{endpoint} rests: it had failed ({what}), and another request tries it now",
    "offline": "{endpoint} rests: this machine has no route to it",
    "low": "{endpoint} is spared: the battery is low",
    "throttled": "{endpoint} is spared: the processor is hot and runs slower",
    "loaded": "{endpoint} is spared: other programs keep the machine busy",
    "metered": "{endpoint} is spared: the network is metered",
    "short_context": "{endpoint} is spared: its context may be too short for the prompt and the answer",
}
_LEFT_OUT: Mapping[str, str] = {
    "pinned": "{endpoint} is left out: the request is pinned to {what}",
    "too_far": '{endpoint} is left out: the request may travel only as far as "{what}"',
    "not_served": "{endpoint} is left out: it does not serve {what}",
    "context": (
        "{endpoint} is left out: the prompt takes at least {value_tokens}, and its context holds {limit_tokens}"
    ),
}
CODES: Mapping[tuple[Does, str], str] = {
    **{("starts", code): text for code, text in _STARTS.items()},
    **{("stands_by", code): text for code, text in _STANDS_BY.items()},
    **{("rests", code): text for code, text in _RESTS.items()},
    **{("left_out", code): text for code, text in _LEFT_OUT.items()},
}
"""The sentence of each rule, by what the endpoint does and the rule's code. Times are in s, lengths in tokens, shares
in percent."""

_OTHERWISE: Mapping[Does, str] = {
    "starts": "{endpoint} starts{after}",
    "stands_by": "{endpoint} stands by: it takes over if those that start fail, refuse or are late",
    "rests": "{endpoint} rests ({code})",
    "left_out": "{endpoint} is left out ({code})",
}


def sentence(reason: Reason) -> str:
    """Return one reason as a sentence without a full stop, with where its number is from in brackets at the end."""
    text = CODES.get((reason.does, reason.code), _OTHERWISE[reason.does])
    value, limit = reason.value, reason.limit
    words = {
        "endpoint": reason.endpoint,
        "code": reason.code,
        "what": reason.what,
        "seen": reason.seen,
        "value": 0.0 if value is None else value,
        "value_s": _seconds(value),
        "limit_s": _seconds(limit),
        "value_tokens": _tokens(value),
        "limit_tokens": _tokens(limit),
        "value_share": _share(value),
        "limit_share": _share(limit),
        "after": f" after {_seconds(reason.after_s)}" if reason.after_s else "",
        "late": "is late" if limit is None else f"is silent for {_seconds(limit)}, which it hardly ever is",
        "rest_s": "" if value is None else f" for {_seconds(value)}",
    }
    said = text.format_map(words)
    return (
        f"{said} ({_from(reason)})" if value is not None and reason.does in ("starts", "stands_by") else said
    )


_RULES: Mapping[str, str] = {
    "alone": "no other endpoint took part",
    "server_first": "it is asked first",
    "device_only": "only this machine is asked",
    "race": "all race for every prompt",
    "urgent": "the request was urgent",
    "background": "requests in the background spare the other side",
    "short": "prompts below {limit} tokens stay on the device",
    "long": "prompts from {limit} tokens on race",
    "none_race": "all prompts stay on the device",
    "busy": "the device had other answers to write first",
    "slow_reader": "the device would have read the prompt for longer than the server's first word takes",
    "server_and_wait": "the device is spared",
    "no_device": "the device's budget left nothing for it",
    "wait": "it starts if nothing has come after {value} s",
    "drawn": "drawn at random",
    "budget_used": "the policy's share of the prompt tokens was used up",
    "budget_low": "little of a budget was left",
    "budget_spent": "what was left of its budget did not cover the request",
    "budget_short": "what was left of a budget did not cover the request",
    "budget_unknown": "its budget allows a second start only once its times are known",
    "loading": "the other model had to be loaded",
    "beside_probe": "beside an endpoint that had failed and was tried again",
    "lowest_tier": "the smallest model answers first",
    "lowest_in_time": "of those that keep the deadline, the smallest answers first",
    "soonest": "none kept the deadline, and the soonest answers",
    "divided_writer": "it writes the beginning while the device reads",
    "divided_heir": "it reads, and goes on from the server's beginning",
    "dearer_divided": "to divide the answer would be dearer",
    "plugin": "the policy of a package decides",
    "reserve": "it is the reserve",
    "failures": "it rested after failures",
    "account": "it rested, for it refused its key or its account",
    "model": "it rested, for it does not have the model",
    "rate_limit": "it rested after a rate limit",
    "probed": "another request tried it after failures",
    "offline": "this machine had no route to it",
    "low": "the battery was low",
    "throttled": "the processor was hot",
    "loaded": "the machine was busy",
    "metered": "the network was metered",
    "pinned": "the request was pinned to another endpoint",
    "too_far": "the request had to stay nearer",
    "not_served": "it does not serve what the request needs",
    "short_context": "its context might have been too short",
    "context": "the prompt was longer than its context",
}


def rule_words(code: str, value: str, limit: str) -> str:
    """Return a rule in words for many requests at once.

    Args:
        code: the rule.
        value: the number, or range of numbers, that decided, as people read it.
        limit: what it was compared with, alike.
    """
    rule = _RULES.get(code)
    if rule is None:  # a file may hold any text
        return code.replace("_", " ")
    return rule.format(value=value or "some", limit=limit or "some")


def _from(reason: Reason) -> str:
    """Return where the number of a reason is from."""
    match reason.source:
        case "own":
            return f"as seen in {plural(reason.seen, 'request')}"
        case "told":
            return "as the server says of itself"
        case "profile":
            return "from the profile"
        case "prior":
            return "assumed, until a few requests were seen"
        case "request":
            return "from the request"
        case _:
            return "from the preset"


def _seconds(value: float | None) -> str:
    if value is None:
        return "an unknown time"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _tokens(value: float | None) -> str:
    if value is None:
        return "unknown tokens"
    return f"{value:,.0f} tokens"


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{100 * value:.3g} %"
