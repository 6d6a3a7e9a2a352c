"""For tests and examples: a real server to ask and to kill, and the contract of an endpoint as checks.

`ModelServer` is a real OpenAI-compatible server with a small real model, in a process of its own; `shape` puts it far
away:

```python
with ModelServer() as server:
    async with shape(server.port, delay=0.4) as far, AsyncDisco(base_url=far.base_url, ...) as client:
        ...
        server.kill()
```

The contract of an endpoint (`disco/endpoints/contract.py`) as checks that anybody can run on their own one:

```python
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_my_endpoint_keeps_the_contract(check):
    async def main():
        endpoint = MyEndpoint(...)
        try:
            await check(Subject(), endpoint)
        finally:
            await endpoint.aclose()

    anyio.run(main)
```

A check raises AssertionError. The checks are what disco's own endpoints are tested with; they need neither pytest nor a
model. What an endpoint does not claim in its capabilities is not asked of it.
"""

from disco.testing.checks import CHECKS
from disco.testing.model_server import ModelServer
from disco.testing.shaping_proxy import Shaper, shape
from disco.testing.subject import Check, Subject

__all__ = ["CHECKS", "Check", "ModelServer", "Shaper", "Subject", "shape"]
