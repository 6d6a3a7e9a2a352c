"""The tokens of a conversation, as a model of the engine reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer, build_prompt
from disco.request import Prefix

__all__ = ["prompt_ids"]


def prompt_ids(model: Any, messages: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """Return them as the model's own chat template writes them; `name`: for messages."""
    text = Renderer(model, None)(messages).text
    return build_prompt(model, text, Prefix(), opening="", name=name).ids
