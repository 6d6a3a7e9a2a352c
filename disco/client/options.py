"""What an application may say per request, in `extra_body={"disco": {...}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from disco.errors import ConfigurationError, nearest

__all__ = ["RequestOptions", "take_options"]


class RequestOptions(BaseModel):
    """Options of one request; what is not given comes from the client's policy.

    Attributes:
        policy: a preset's name or the path of a preset file, for this request only.
        local_only: True keeps the prompt on this machine, whatever fails.
        pace_tps: reading pace in tokens/s, or "off" to hand text on as it comes.
        migrate: False forbids moving this answer in mid-sentence (failover stays).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str | None = None
    local_only: bool | None = None
    pace_tps: float | Literal["off"] | None = Field(default=None)
    migrate: bool | None = None


def take_options(extra_body: object) -> tuple[RequestOptions, dict[str, Any] | None]:
    """Split `extra_body` into disco's part, validated, and the rest, which goes to the server.

    Raises:
        ConfigurationError: an unknown option (the nearest names are suggested) or a wrong value.
    """
    if extra_body is None:
        return RequestOptions(), None
    if not isinstance(extra_body, Mapping) or "disco" not in extra_body:
        return RequestOptions(), extra_body  # type: ignore[return-value]
    rest = {key: value for key, value in extra_body.items() if key != "disco"}
    given = extra_body["disco"]
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            'extra_body["disco"] must be a dict of options, such as {"local_only": True}; '
            f"got {type(given).__name__}."
        )
    for key in given:
        if key not in RequestOptions.model_fields:
            hint = nearest(str(key), RequestOptions.model_fields)
            raise ConfigurationError(f'Unknown option {key!r} in extra_body["disco"]. {hint}')
    try:
        options = RequestOptions.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f'extra_body["disco"]: option {name!r}: {first["msg"]}.') from None
    if options.pace_tps is not None and options.pace_tps != "off" and not options.pace_tps > 0:
        raise ConfigurationError('extra_body["disco"]: option \'pace_tps\' must be above 0, or "off".')
    return options, rest or None
