"""What an application may say per request, in `extra_body={"disco": {...}}`, and for a client in `default_options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from disco.errors import ConfigurationError, nearest

__all__ = ["NO_OPTIONS", "RequestOptions", "chosen_preset", "merge_options", "take_options"]


class RequestOptions(BaseModel):
    """Options of one request; what is not given, or None, is as in the client's preset.

    Attributes:
        preset: its name, or the path of a preset file, for this request only. `policy` is its former name.
        local_only: True keeps the prompt on this machine, whatever fails.
        pace_tps: reading pace in tokens/s, above 0, or "off" to hand text on as it comes.
        migrate: False forbids moving this answer in mid-sentence (failover stays).
        deadline_s: the whole answer is complete so many seconds after the request, or the request fails with an
            `AnswerTimeoutError` that keeps what was written; above 0. Takes the place of `timeouts.total_s`.
        budget_class: "background" spends nothing of the budget: the side that is not constrained answers alone,
            unless it fails; "standard" is what the preset says; "urgent" starts both sides at once, whatever share
            the preset's budget gives it. An absolute budget (`[limits]`) holds for it, too: it may take what is kept
            for need there, down to the last of it, and no more.
    """

    # Strict: "5" is no pace, and True is not 1.0.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    preset: str | None = None
    local_only: bool | None = None
    pace_tps: float | Literal["off"] | None = None
    migrate: bool | None = None
    deadline_s: float | None = Field(default=None, gt=0.0)
    budget_class: Literal["background", "standard", "urgent"] | None = None

    @field_validator("pace_tps", mode="before")
    @classmethod
    def _is_a_pace(cls, value: object) -> object:
        if value in (None, "off"):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return value
        raise ValueError('must be above 0 tokens per second, or "off"')


Named = TypeVar("Named")

NO_OPTIONS = RequestOptions()
"""Nothing said: everything is as the client's preset has it."""


def chosen_preset(preset: Named, policy: Named | None) -> Named:
    """The preset of a client that is given `preset` or, under its former name, `policy`.

    Raises:
        ConfigurationError: both are given.
    """
    if policy is None:
        return preset
    if preset != "balanced":
        raise ConfigurationError("preset and policy, its former name, are both given; give preset only.")
    return policy


def merge_options(
    options: RequestOptions, given: object, *, where: str = 'extra_body["disco"]'
) -> RequestOptions:
    """`options` with those `given` in their place; None there goes back to the client's preset.

    Args:
        options: what holds where nothing is given.
        given: a mapping of options, checked here.
        where: where the caller wrote them, for the message.

    Raises:
        ConfigurationError: an unknown option (the nearest names are suggested) or a wrong value.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{where} must be a dict of options, such as {{"local_only": True}}; got {type(given).__name__}.'
        )
    given = dict(given)
    if "policy" in given:
        if "preset" in given:
            raise ConfigurationError(
                f'{where} has "preset" and "policy", its former name; give "preset" only.'
            )
        given["preset"] = given.pop("policy")
    for key in given:
        if key not in RequestOptions.model_fields:
            hint = nearest(str(key), RequestOptions.model_fields)
            raise ConfigurationError(f"Unknown option {key!r} in {where}. {hint}")
    try:
        return RequestOptions.model_validate({**options.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        says = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{where}: option {first['loc'][0]!r}: {says}.") from None


def take_options(
    extra_body: object, defaults: RequestOptions = NO_OPTIONS
) -> tuple[RequestOptions, dict[str, Any] | None]:
    """Split `extra_body` into disco's part, validated, over `defaults`, and the rest, which goes to the server.

    Raises:
        ConfigurationError: as `merge_options`.
    """
    if not isinstance(extra_body, Mapping) or "disco" not in extra_body:
        return defaults, extra_body  # type: ignore[return-value] # what it is, the SDK checks
    rest = {key: value for key, value in extra_body.items() if key != "disco"}
    return merge_options(defaults, extra_body["disco"]), rest or None
