"""`litellm.Router` with a fallback, for `bench_litellm.py`, in an environment of its own.

Run as `python router_program.py`. The first line out has litellm's and openai's versions. Then one JSON line in (the
two servers, the options of the Router, the request), one JSON line out: what the reader got.
"""

import asyncio
import json
import os
import sys
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # litellm prints

import litellm  # noqa: E402
from router_answers import read  # noqa: E402 - lies beside this file

litellm.suppress_debug_info = True


def deployment(name, server, info):
    params = {"model": f"openai/{server['model']}", "api_base": server["base_url"], "api_key": "none"}
    return {"model_name": name, "litellm_params": params, "model_info": info}


async def answer(told, kept):
    """A new Router for each answer, so that nothing is known of its servers; with "keep", one for all."""
    if told.get("keep"):
        if not kept:
            kept.append(litellm.Router(model_list=[deployment("main", told["first"], {})], num_retries=0))
        return await read(kept[0].acompletion, model="main", **told["request"])
    info = {"supports_assistant_prefill": True} if told["prefill"] else {}
    router = litellm.Router(
        model_list=[deployment("main", told["first"], info), deployment("spare", told["second"], info)],
        fallbacks=[{"main": ["spare"]}],
        enable_mid_stream_fallback_continuation=told["continues"],
        num_retries=0,
    )
    clocks = {"timeout": told["silence_s"], "stream_timeout": told["silence_s"]}
    return await read(router.acompletion, model="main", **clocks, **told["request"])


async def main():
    print(json.dumps({name: version(name) for name in ("litellm", "openai")}), file=out, flush=True)
    lines, kept = asyncio.StreamReader(), []
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().strip():
        print(json.dumps(await answer(json.loads(line), kept)), file=out, flush=True)
    await litellm.close_litellm_async_clients()


asyncio.run(main())
