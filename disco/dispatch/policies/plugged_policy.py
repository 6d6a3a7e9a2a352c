"""Policies of other packages: what their factories take, and a check of what they return.

A factory is called with those of disco's arguments that it names (`GIVEN`). Every other keyword that it names is an
option of its own: the user sets it in `[dispatch.options]` of a preset, or as "NAME:KEY=VALUE" in a replay.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from disco._plugins import Installed
from disco.candidate import Candidate
from disco.dispatch.policies.policy import Delays, FittedPolicy, Policy, VectorPolicy
from disco.dispatch.request_features import Features
from disco.errors import ConfigurationError, DiscoError, nearest
from disco.plan import Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["GIVEN", "PluggedPolicy", "check_plugged", "make_plugged", "policy_spec", "takes"]

GIVEN: Final = ("lengths", "ttft", "device", "budget", "tail", "rng")
"""The arguments that disco gives to a factory that names them; see `PolicyFactory`."""

_T = TypeVar("_T")

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
    except Exception as error:
        raise _failed(found, "it was made", error) from error
    if not (callable(getattr(made, "starts", None)) and isinstance(getattr(made, "name", None), str)):
        raise ConfigurationError(
            f"{found.label} makes a {type(made).__name__}, which is no policy: it needs `name`, a text, and `starts`."
        )
    return PluggedPolicy(made, found)  # type: ignore[arg-type] # checked just now


def _failed(found: Installed, when: str, error: Exception) -> ConfigurationError:
    # Its text may quote anything, so only its type is told; the traceback has the rest.
    return ConfigurationError(
        f"{found.label} failed ({type(error).__name__}) when {when}. Update that package, or choose another policy."
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float | np.number) and 0.0 <= float(value) < math.inf


class PluggedPolicy:
    """A policy of another package, whose every decision is checked: a wrong one would be a fault of the session.

    `refit` and `delays` are attributes where the policy has them, so that `FittedPolicy` and `VectorPolicy` see them.
    Where the policy fails or decides nothing, ConfigurationError names the package. That of `refit`, which is called
    when an answer is over, is raised by the next decision. Mutable: `_unfitted`, that error.
    """

    def __init__(self, policy: Policy, found: Installed) -> None:
        self._policy = policy
        self._found = found
        self._unfitted: ConfigurationError | None = None
        if isinstance(policy, FittedPolicy):
            self.refit = partial(self._refit, policy)
        if isinstance(policy, VectorPolicy):
            self.delays = partial(self._delays, policy)

    @property
    def name(self) -> str:
        """The name that route records use."""
        return self._policy.name

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        """See `Policy`."""
        starts = self._ask(lambda: tuple(self._policy.starts(features, device, server)))
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
            if not _is_time(start.after_s):
                raise ConfigurationError(
                    f"{self._found.label} starts {start.endpoint!r} after {start.after_s!r} s. To start it never, "
                    "leave its start out."
                )
        why = Why("plugin", what=self.name)
        return tuple([start if start.why.code else replace(start, why=why) for start in starts])

    def _refit(self, policy: FittedPolicy, lengths: Lengths, ttft: Empirical) -> None:
        self._unfitted = None
        try:
            policy.refit(lengths, ttft)
        except Exception as error:  # noqa: BLE001 - raised by the next decision
            self._unfitted = _failed(self._found, "it was fitted", error)
            self._unfitted.__cause__ = error

    def _delays(self, policy: VectorPolicy, prompt_tokens: NDArray[np.int64]) -> Delays:
        made = self._ask(policy.delays, prompt_tokens)
        try:
            device_s, server_s = (np.asarray(side_s, dtype=np.float64) for side_s in made)
            right = device_s.shape == server_s.shape == prompt_tokens.shape
            # What is no number is not >= 0.
            right = right and bool(
                ((device_s >= 0) & (server_s >= 0) & np.isfinite(np.minimum(device_s, server_s))).all()
            )
        except (TypeError, ValueError):
            right = False
        if not right:
            raise ConfigurationError(
                f"{self._found.label}: `delays` must return two times for each request, in seconds, 0 or more; inf is "
                "never, and stands on one side at most."
            )
        return Delays(device_s, server_s)

    def _ask(self, what: Callable[..., _T], *given: object) -> _T:
        if self._unfitted is not None:
            raise self._unfitted
        try:
            return what(*given)
        except Exception as error:
            raise _failed(self._found, "it decided", error) from error
