"""The contract of an endpoint as checks that anybody can run on their own one: `disco/endpoints/contract.py` as code.

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
from disco.testing.subject import Check, Subject

__all__ = ["CHECKS", "Check", "Subject"]
