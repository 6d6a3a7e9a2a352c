"""`disco split check`: what a layer server has, how fast the way to it is, what that makes of prompts and drafts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import openai

from disco.cli.console import Screen
from disco.cli.serving.serve_setup import KEY_VARIABLE, callers_key
from disco.cli.speculation.check import base_url_of, read_prompts
from disco.cli.speculation.check_report import Pace
from disco.cli.split.split_check_report import ChunkRow, SplitCheck, Written, chunk_rows
from disco.endpoints.host.host_split import HostSplit
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_facts import SplitFacts
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from disco.errors import ConfigurationError, EndpointFailure, FailureKind
from disco.events import Ended
from disco.request import Request

__all__ = ["run_check"]

_LEAST_TOKENS: Final = 8
_SEED: Final = 1


async def run_check(screen: Screen, arguments: argparse.Namespace) -> int:
    """Check a split; return the exit status.

    Raises:
        ConfigurationError: an option is not usable, or the server cannot be used with this file.
        DiscoError: a file, or the model, fails.
    """
    if arguments.tokens < _LEAST_TOKENS:
        raise ConfigurationError(f"--tokens must be at least {_LEAST_TOKENS}, not {arguments.tokens}")
    if arguments.threads < 1:
        raise ConfigurationError(f"--threads must be at least 1, not {arguments.threads}")
    url, prompts, key = (
        base_url_of(arguments.base_url),
        read_prompts(arguments.prompts),
        callers_key(arguments.key_file),
    )
    if arguments.json:
        screen = Screen(sys.stderr)
    dtype = Dtype.F32 if arguments.wire == "float32" else Dtype.F16
    server = LayerServer(base_url=url, api_key=key, dtype=dtype)
    endpoint = HostSplit(Path(arguments.device), server, SplitOptions(always=True), threads=arguments.threads)
    try:
        with screen.step("Loading the device's part, connecting and measuring"):
            found = await endpoint.measured()
        result = await _measure(screen, endpoint, found, prompts, arguments.tokens)
    except EndpointFailure as failure:
        raise _explained(failure, url) from failure
    finally:
        await endpoint.aclose()
    result.show(screen)
    if arguments.json:
        print(json.dumps(result.to_json(), indent=2))
    return 0


async def _measure(
    screen: Screen, endpoint: HostSplit, found: SplitFacts, prompts: Sequence[str], tokens: int
) -> SplitCheck:
    path, drafts = found.path, found.has_adapter
    context_tokens = endpoint.capabilities().context_tokens or 0
    rows: list[ChunkRow] = chunk_rows(path, most=found.batch_tokens, context_tokens=context_tokens)
    result = SplitCheck(found.server, path, rows, drafts)
    await _written(endpoint, prompts[0], _LEAST_TOKENS, drafts=0)  # the first answer is slower than others
    with screen.bar(
        f"{len(prompts)} answers" + (", each with and without drafts" if drafts else "")
    ) as so_far:
        for number, prompt in enumerate(prompts, 1):
            plain = await _written(endpoint, prompt, tokens, drafts=0)
            result.alone += plain.pace
            result.first_s.append(plain.first_s)
            if drafts:
                drafted = await _written(endpoint, prompt, tokens, drafts=None)
                result.drafted += drafted.pace
                result.judged += drafted.judged
                result.accepted += drafted.accepted
                result.alike += drafted.text == plain.text
            result.asked += 1
            so_far(number, len(prompts))
    return result


async def _written(endpoint: HostSplit, prompt: str, tokens: int, *, drafts: int | None) -> Written:
    """Let one answer be written; `drafts` as in `Request`."""
    params = {"temperature": 0.0, "seed": _SEED, "max_tokens": tokens}
    request = Request([{"role": "user", "content": prompt}], endpoint.name, params, drafts=drafts)
    began_at = time.perf_counter()
    text, times, count = "", [], 0
    attempt = endpoint.open(request)
    try:
        async for event in attempt:
            if isinstance(event, Ended):
                break
            if isinstance(event, list):
                text += "".join(delta.text for delta in event)
                count += sum(delta.tokens for delta in event)
                times.append((time.perf_counter(), count))
    finally:
        await attempt.aclose()
    report = attempt.speculation
    if not times:
        return Written(text, 0.0, Pace(), 0, 0)
    (first_at, first), (last_at, last) = times[0], times[-1]
    pace = Pace(last - first, last_at - first_at)
    judged, accepted = (0, 0) if report is None else (report.judged, report.accepted)
    return Written(text, first_at - began_at, pace, judged, accepted)


def _explained(failure: EndpointFailure, url: str) -> Exception:
    host = urlsplit(url).netloc
    if failure.kind is FailureKind.ACCOUNT:
        return ConfigurationError(
            f"The server at {host} refuses the key. Put its key into {KEY_VARIABLE} or into a file named by --key-file."
        )
    if isinstance(failure.error, openai.APIConnectionError):
        return ConfigurationError(
            f"No layer server answers at {host}. Start one with `disco serve --layers NAME.cloud.gguf`, or correct "
            "--base-url."
        )
    return failure.error
