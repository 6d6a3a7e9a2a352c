"""What the sections of a preset have in common: they are frozen, and explain every mistake."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from disco.errors import ConfigurationError, nearest, shown

__all__ = ["Section", "explain"]


class Section(BaseModel):
    """A frozen section of a preset; refuses unknown keys and explains every mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(explain(type(self), error)) from None


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Return one sentence per mistake: where it is, what is wrong, and what to write instead."""
    sentences = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            key = str(detail["loc"][-1])
            sentences.append(f"unknown key {where}. {nearest(key, _keys_at(model, detail['loc'][:-1]))}")
            continue
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] != "value_error":
            message = f"{message}, not {shown(detail['input'])}"
        sentences.append(f"{where}: {message}" if where else message)
    return "; ".join(sentences)


def _keys_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            break
        model = field.annotation
    return list(model.model_fields)
