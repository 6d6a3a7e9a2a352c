"""Asks a server with `litellm.acompletion`, in an environment of its own: its pins conflict with ours.

Run as `python litellm_program.py BASE_URL`. It prints litellm's version. Then one line in (the model, and "stream" or
"whole"), one line of JSON out: seconds to the first content and to the end, CPU seconds, chunks with content, or the
text of a whole answer.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # litellm prints

import litellm  # noqa: E402

litellm.suppress_debug_info = True


async def asked(model, stream):
    at, cpu_at = time.perf_counter(), time.process_time()
    first_s, chunks, text = None, 0, ""
    answer = await litellm.acompletion(
        model=f"openai/{model}",
        api_base=sys.argv[1],
        api_key="none",
        stream=stream,
        max_retries=0,
        messages=[{"role": "user", "content": "Say something long."}],
    )
    if not stream:
        text = answer.choices[0].message.content
    else:
        async for chunk in answer:
            if chunk.choices and chunk.choices[0].delta.content:
                first_s = first_s or time.perf_counter() - at
                chunks += 1
    took_s, cpu_s = time.perf_counter() - at, time.process_time() - cpu_at
    return {"first_s": first_s, "took_s": took_s, "cpu_s": cpu_s, "chunks": chunks, "text": text}


async def main():
    print(version("litellm"), file=out, flush=True)
    while line := sys.stdin.readline():
        model, kind = line.split()
        print(json.dumps(await asked(model, kind == "stream")), file=out, flush=True)


asyncio.run(main())
