"""A redacted endpoint keeps the contract of every endpoint (`disco.testing`)."""

import anyio
import moved_clock
import pytest

from disco.endpoints.redaction import RedactingEndpoint, Redaction
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.testing import CHECKS, Subject

PROFILE = SimulatedProfile(
    context_tokens=2048, answer_tokens=2000, prefill_tps=5000.0, overhead_s=0.002, decode_tps=400.0
)


def first_word(text):
    """So every request has a placeholder."""
    return dict.fromkeys(text.split()[:1], "WORD")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_redacted(check, backend):
    async def main():
        inner = SimulatedEndpoint("server", PROFILE, place="server")
        with anyio.fail_after(300):
            await check(
                Subject(exact=False, within_s=1.0, work_s=lambda: 0.0),
                RedactingEndpoint(inner, Redaction(first_word)),
            )

    name, options = moved_clock.virtual(backend)
    anyio.run(main, backend=name, backend_options=options)
