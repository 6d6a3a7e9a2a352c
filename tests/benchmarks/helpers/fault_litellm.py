"""`litellm.Router` under faults, for `bench_faults.py`, in an environment of its own: its pins conflict with ours.

Run as `python fault_litellm.py PROXY SPARE MODEL CONNECT_S SILENCE_S`. One line of JSON in (prompt, limit), one out
(what came, and when); "warm" takes stock of resources, "close" closes everything and says what is left.
"""

import asyncio
import dataclasses
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # litellm prints

import httpx  # noqa: E402
import litellm  # noqa: E402
from fault_answers import asked, stock  # noqa: E402 - lies beside this file

litellm.suppress_debug_info = True


async def main():
    proxy, spare, model, connect_s, silence_s = sys.argv[1:]
    clocks = httpx.Timeout(float(silence_s), connect=float(connect_s))

    def deployment(name, base_url):
        params = {"model": f"openai/{model}", "api_base": base_url, "api_key": "none"}
        return {"model_name": name, "litellm_params": params}

    deployments = [deployment("main", proxy), deployment("spare", spare)]
    router = litellm.Router(model_list=deployments, fallbacks=[{"main": ["spare"]}], num_retries=2)
    lines, before = asyncio.StreamReader(), {}
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().strip():
        answer = {}
        if line == "warm":
            before = stock()
        elif line == "close":
            await litellm.close_litellm_async_clients()
            await asyncio.sleep(1)
            answer = stock() - before
        else:
            got, _ = await asked(router.acompletion, **json.loads(line), model="main", timeout=clocks)
            answer = dataclasses.asdict(got)
        print(json.dumps(answer), file=out, flush=True)


asyncio.run(main())
