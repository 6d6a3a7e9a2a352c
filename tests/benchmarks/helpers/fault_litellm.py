"""`litellm.Router` under faults, for `bench_faults.py`, in an environment of its own: its pins conflict with ours.

Run as `python fault_litellm.py PROXY SPARE MODEL CONNECT_S SILENCE_S`. One line of JSON in (prompt, limit), one out
(what came, and when); "warm" takes stock of resources, "close" closes everything and says what is left.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # litellm prints

import httpx  # noqa: E402
import litellm  # noqa: E402

litellm.suppress_debug_info = True


def stock():
    """File descriptors, threads, tasks, children."""
    gc.collect()
    children = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children += process.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    return {
        "file descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "children": children,
    }


async def ask(router, clocks, prompt, limit):
    """One answer."""
    text, times, finish, error = "", [], None, None
    began = time.monotonic()
    try:
        stream = await router.acompletion(
            model="main",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=limit,
            temperature=0,
            stream=True,
            timeout=clocks,
        )
        async for chunk in stream:
            if chunk.choices:
                content = chunk.choices[0].delta.content
                if content:
                    text += content
                    times.append(time.monotonic() - began)
                finish = chunk.choices[0].finish_reason or finish
    except Exception as exc:  # noqa: BLE001 - whatever it is, the answer is broken
        error = type(exc).__name__
    return {"text": text, "times": times, "finish": finish, "error": error, "end": time.monotonic() - began}


async def main():
    proxy, spare, model, connect_s, silence_s = sys.argv[1:]
    clocks = httpx.Timeout(float(silence_s), connect=float(connect_s))

    def deployment(name, base_url):
        params = {"model": f"openai/{model}", "api_base": base_url, "api_key": "none"}
        return {"model_name": name, "litellm_params": params}

    router = litellm.Router(
        model_list=[deployment("main", proxy), deployment("spare", spare)],
        fallbacks=[{"main": ["spare"]}],
        num_retries=2,
    )
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    before = {}
    while line := (await lines.readline()).decode().strip():
        if line == "warm":
            before = stock()
            answer = {}
        elif line == "close":
            await litellm.close_litellm_async_clients()
            await asyncio.sleep(1)
            after = stock()
            answer = {name: after[name] - before[name] for name in after}
        else:
            answer = await ask(router, clocks, **json.loads(line))
        print(json.dumps(answer), file=out, flush=True)


asyncio.run(main())
