"""Policies of other packages: what their factories take, and a check of what they return.

A factory is called with those of disco's arguments that it names (`GIVEN`). Every other keyword that it names is an
option of its own: the user sets it in `[dispatch.options]` of a preset, or as "NAME:KEY=VALUE" in a replay.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from disco._plugins import Installed
from disco.candidate import Candidate
from disco.dispatch.policies.policy import FittedPolicy, Policy, VectorPolicy
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError, DiscoError, nearest
from disco.plan import Start
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["GIVEN", "PluggedPolicy", "check_plugged", "make_plugged", "policy_spec", "takes"]

GIVEN: Final = ("lengths", "ttft", "device", "budget", "tail", "rng")
"""The arguments that disco gives to a factory that names them; see `PolicyFactory`."""

# On these a policy is made once where a preset is read, so that a wrong option shows there, not in the first request.
_TRIAL_TOKENS = (20, 200, 2000)
_TRIAL_TTFT_S = (0.3, 0.6, 1.2)


def policy_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Parse "NAME" or "NAME:KEY=VALUE,KEY=VALUE" into the policy's name and its options.

    A value is read as TOML reads it; what TOML does not know is text.

    Raises:
        ConfigurationError: a part behind the colon is no KEY=VALUE, or a key comes twice.
    """
    name, colon, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in options:
            raise ConfigurationError(
                f"{text!r} is not a policy with options: write NAME:KEY=VALUE,KEY=VALUE with each key once"
            )
        options[key] = _value(value)
    return name, options


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def takes(found: Installed) -> tuple[frozenset[str], frozenset[str] | None]:
    """Return which of `GIVEN` a factory takes, and the names of its options; None: any.

    Raises:
        ConfigurationError: it cannot be imported, or has no signature.
    """
    factory = found.load()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{found.label} has no signature, so its options are not known.") from error
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(GIVEN), None
    return frozenset(GIVEN) & names, frozenset(names.difference(GIVEN))


def check_plugged(found: Installed, options: Mapping[str, Any]) -> Policy:
    """Make the policy on made-up figures, so that a mistake in its options shows before the first request.

    Raises:
        ConfigurationError: the package is at fault, or an option is unknown or refused.
    """
    return make_plugged(
        found,
        options,
        lengths=Lengths.from_samples(_TRIAL_TOKENS),
        ttft=Empirical.from_samples(_TRIAL_TTFT_S),
        device=Candidate("device", "device", prefill_tps=200.0, overhead_s=0.1),
        budget=0.5,
        tail=0.05,
        rng=np.random.default_rng(0),
    )


def make_plugged(found: Installed, options: Mapping[str, Any], **given: Any) -> Policy:
    """Make a policy of another package.

    Args:
        found: its entry point.
        options: the user's settings of the policy's own options.
        given: the values of all of `GIVEN`.

    Raises:
        ConfigurationError: the package is at fault, or an option is unknown or refused.
    """
    factory: Callable[..., object] = found.load()
    taken, known = takes(found)
    for key in options:
        if key in GIVEN:
            raise ConfigurationError(f"{found.label}: {key!r} is given by disco, and is no option.")
        if known is not None and key not in known:
            hint = nearest(key, known) if known else "It has no options."
            raise ConfigurationError(f"{found.label} has no option {key!r}. {hint}")
    try:
        made = factory(**{name: given[name] for name in taken}, **options)
    except DiscoError as error:
        raise ConfigurationError(f"{found.label}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{found.label} cannot be made: {error}") from error
    if not (callable(getattr(made, "starts", None)) and isinstance(getattr(made, "name", None), str)):
        raise ConfigurationError(
            f"{found.label} makes a {type(made).__name__}, which is no policy: it needs `name`, a text, and `starts`."
        )
    return PluggedPolicy(made, found)  # type: ignore[arg-type] # checked just now


class PluggedPolicy:
    """A policy of another package, whose every decision is checked: a wrong one would be a fault of the session.

    `refit` and `delays` are attributes where the policy has them, so that `FittedPolicy` and `VectorPolicy` see them.
    """

    def __init__(self, policy: Policy, found: Installed) -> None:
        self._policy = policy
        self._found = found
        if isinstance(policy, FittedPolicy):
            self.refit = policy.refit
        if isinstance(policy, VectorPolicy):
            self.delays = policy.delays

    @property
    def name(self) -> str:
        """The name that route records use."""
        return self._policy.name

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        """See `Policy`.

        Raises:
            ConfigurationError: the policy's decision is no decision; the message names the package.
        """
        starts = tuple(self._policy.starts(features, device, server))
        able = {side.name for side in (device, server) if side is not None}
        if not starts:
            raise ConfigurationError(
                f"{self._found.label} starts nothing: an answer needs one start at least."
            )
        for start in starts:
            if not isinstance(start, Start):
                raise ConfigurationError(
                    f"{self._found.label} returns a {type(start).__name__} where a disco.plan.Start must be."
                )
            if start.endpoint not in able:
                raise ConfigurationError(
                    f"{self._found.label} starts {start.endpoint!r}; this request has only "
                    f"{' and '.join(repr(name) for name in sorted(able))}."
                )
            if not 0.0 <= start.after_s < math.inf:
                raise ConfigurationError(
                    f"{self._found.label} starts {start.endpoint!r} after {start.after_s} s. To start it never, leave "
                    "its start out."
                )
        return starts
