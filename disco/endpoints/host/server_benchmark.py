"""Measures how fast this machine runs the model in its server: the numbers that a device profile is fitted on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx2
import openai

from disco.endpoints.host.host_process import Serving
from disco.endpoints.llamacpp.runtime.energy_counter import EnergyCounter
from disco.endpoints.llamacpp.runtime.speed_benchmark import (
    DecodeRate,
    Measurement,
    PrefillTime,
    joules,
    joules_since,
)
from disco.endpoints.openai_api.error_mapping import failure_from
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["measure_server"]

_LIMIT_S: Final = 600.0


async def measure_server(
    client: openai.AsyncOpenAI,
    serving: Serving,
    *,
    prompt_tokens: Sequence[int],
    depths: Sequence[int],
    decode_tokens: int,
    repeats: int,
    progress: Callable[[int, int], None] | None,
) -> Measurement:
    """Let the server read and write made-up tokens; see `HostEndpoint.measure` for the arguments.

    A prefill is timed from the request to its first token. A decode rate is the server's own figure.

    Raises:
        EndpointFailure: the server is gone, or its reply holds no times.
    """
    settings = serving.settings
    context = settings.context_tokens or 0
    lengths = [n for n in prompt_tokens if 0 < n < context]
    behind = [n for n in depths if 0 < n <= context - decode_tokens]
    done, total = 0, (len(lengths) + len(behind)) * repeats
    # The time does not depend on which tokens these are; they are still the same each time.
    draw = random.Random(0)
    vocabulary = await _vocabulary_tokens(client)
    ids = [draw.randrange(vocabulary) for _ in range(context)]
    prefill: list[PrefillTime] = []
    decode: list[DecodeRate] = []
    counter = EnergyCounter.find()
    for _ in range(repeats):
        for length in lengths:
            before_j, began_at = joules(counter), time.perf_counter()
            await _complete(client, ids[:length], 1)
            took_s = time.perf_counter() - began_at
            prefill.append(PrefillTime(length, took_s, joules_since(counter, before_j)))
            done += 1
            if progress is not None:
                progress(done, total)
        for depth in behind:
            # The energy of a token cannot be told from that of the prompt before it, which one request holds.
            tps = await _complete(client, ids[:depth], decode_tokens)
            decode.append(DecodeRate(depth, tps))
            done += 1
            if progress is not None:
                progress(done, total)
    return Measurement(
        load_s=serving.load_s,
        prefill=tuple(prefill),
        decode=tuple(decode),
        context_tokens=context,
        threads=settings.threads,
        batch_tokens=settings.batch_tokens,
    )


async def _complete(client: openai.AsyncOpenAI, ids: Sequence[int], tokens: int) -> float:
    """Let the server read these tokens and write so many; return its decode rate, tokens/s."""
    body = {
        "prompt": ids,
        "n_predict": tokens,
        "cache_prompt": False,
        "ignore_eos": True,
        "temperature": 0.0,
    }
    answer = await _ask(
        client.post(_root(client, "/completion"), body=body, cast_to=object, options=_options())
    )
    times = answer.get("timings")
    if not isinstance(times, Mapping):
        error = LocalModelError("llama-server's reply holds no times: another version of xllamacpp may help.")
        raise EndpointFailure(FailureKind.GARBAGE, error)
    # The first token comes of the prompt's own logits.
    return float((times["predicted_n"] - 1) / max(1e-6, times["predicted_ms"] / 1e3))


async def _vocabulary_tokens(client: openai.AsyncOpenAI) -> int:
    answer = await _ask(client.get("/models", cast_to=object, options=_options()))
    models = answer.get("data")
    assert isinstance(models, list)
    return int(models[0]["meta"]["n_vocab"])


async def _ask(reply: Any) -> Mapping[str, Any]:
    try:
        answer = await reply
    except (openai.OpenAIError, httpx2.HTTPError) as error:
        raise failure_from(error, name="llama-server") from error
    return answer if isinstance(answer, Mapping) else {}


def _options() -> Any:
    return {"max_retries": 0, "timeout": _LIMIT_S}


def _root(client: openai.AsyncOpenAI, path: str) -> str:
    return str(client.base_url).rstrip("/").removesuffix("/v1") + path
