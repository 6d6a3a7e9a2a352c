"""What a reader got of one streamed answer. Needs nothing but Python: litellm's environment has no more."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any


async def read(create: Callable[..., Any], **asked: Any) -> dict[str, Any]:
    """Text, arguments of a tool call, how it ended, the longest wait in seconds."""
    text, arguments, finish, error, stream = "", "", None, None, None
    times = [time.monotonic()]
    try:
        stream = await create(stream=True, temperature=0, **asked)
        async for chunk in stream:
            for choice in chunk.choices:
                piece = choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    arguments += call.function.arguments or ""
                    piece = piece or call.function.arguments
                text += choice.delta.content or ""
                if piece:
                    times.append(time.monotonic())
                finish = choice.finish_reason or finish
    except Exception as raised:  # noqa: BLE001 - whatever it is, the answer is broken
        error = type(raised).__name__
    times.append(time.monotonic())
    waited_s = max(b - a for a, b in itertools.pairwise(times))
    return {
        "text": text,
        "arguments": arguments,
        "finish": finish,
        "error": error,
        "first_s": times[1] - times[0] if len(times) > 2 else None,
        "waited_s": waited_s,
    }
