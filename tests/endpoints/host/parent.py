"""A program with a model in a host: prints the id of the model's process, then answers until it is killed."""

import sys

import anyio

from disco.endpoints.host import HostEndpoint
from disco.request import Request


async def main() -> None:
    endpoint = HostEndpoint(runtime=sys.argv[1], context_tokens=512, threads=1)
    await endpoint.warm_up()
    print(endpoint.process_id, flush=True)
    while True:
        async with endpoint.open(Request([{"role": "user", "content": "Tell a story."}], "m", {})) as attempt:
            async for _ in attempt:
                pass


if __name__ == "__main__":
    sys.exit(anyio.run(main))
