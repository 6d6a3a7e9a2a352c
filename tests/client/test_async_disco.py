"""The clients as an application has them: wrong configurations, errors."""

from __future__ import annotations

import subprocess
import sys

import openai
import pytest
from defects.asking import create, device
from watched import virtually

import disco
from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint, SimulatedProfile
from disco.endpoints.simulation.simulated_script import Fault


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"local": "smollm2-135m", "policy": "balnced"}, "balanced"),
        ({"policy": "private", "api_key": "x"}, "local"),
        ({"policy": "balanced", "api_key": "x", "server_profile": "gpt-4o-mni-2024"}, "gpt-4o-mini-2024"),
        ({"policy": "fast", "local": "smollm2-135m"}, "api_key"),
        ({"api_key": "x", "continuation": "flag"}, "flags"),
    ],
)
def test_a_wrong_configuration_says_what_to_write_instead(arguments, says):
    with pytest.raises(disco.DiscoError, match=says):
        AsyncDisco(**arguments)


def test_errors_of_the_synchronous_client_are_those_of_the_sdk_and_keep_what_was_written():
    dies = device(answer_tokens=9, decode_tps=1000.0, fault=Fault(after_tokens=3))
    with Disco(local=dies, policy="private", max_retries=0) as one:
        with pytest.raises(openai.APIConnectionError) as caught, create(one, stream=True) as stream:
            for _ in stream:
                pass
        assert len(caught.value.partial_text.split()) == 3
        with pytest.raises(disco.NoEndpointError, match="needs a server"):
            one.files.list()
        with pytest.raises(TypeError, match="messages"):
            one.chat.completions.create(model="m")


def test_tokens_that_came_together_or_are_held_for_a_steady_pace_are_counted_down_as_they_are_read():
    slow = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": 20, "max_hold_s": 0.4})

    async def main(local, policy):
        async with AsyncDisco(local=local, policy=policy) as client:
            stream = await create(client, stream=True)
            return [stream.buffered_tokens, *[stream.buffered_tokens async for c in stream if c.choices]]

    burst = virtually(main, device(answer_tokens=12, packet_tokens=12), "private")
    assert burst[0] == 12
    assert sorted(set(burst), reverse=True) == list(range(12, -1, -1))
    held = virtually(main, device(answer_tokens=40, decode_tps=200.0), slow)
    assert 5 < max(held) <= 40
    assert held[-1] == 0
    settings = {"local": device(answer_tokens=12, packet_tokens=12), "policy": "private"}
    with Disco(**settings) as client, create(client, stream=True) as stream:
        assert stream.buffered_tokens == 12


def test_the_progress_of_an_answer_says_who_writes_what_waits_and_what_it_has_cost():
    """The bank in tokens and seconds, and at the end the cost of the record."""
    slow = Preset(dispatch={"policy": "race"}, playback={"pace_tps": 20, "max_hold_s": 0.4})
    server = SimulatedEndpoint("server", SimulatedProfile(answer_tokens=40, prefill_tps=5.0))

    async def main():
        seen = []
        local = device(answer_tokens=40, decode_tps=200.0)
        async with AsyncDisco(local=local, tiers=[server], policy=slow) as client:
            stream = await create(client, stream=True)
            async for _ in stream:
                seen.append(stream.progress)
                assert seen[-1].buffered_tokens == stream.buffered_tokens
            return seen, stream.route

    seen, route = virtually(main)
    assert {progress.writer for progress in seen} == {"device"}
    assert seen[0].running == ("device",)  # the server has lost
    assert seen[-1].running == ()
    fullest = max(seen, key=lambda progress: progress.buffered_tokens)
    assert fullest.buffered_s == fullest.buffered_tokens / 20 > 0.25
    assert [p.tokens for p in seen] == sorted(p.tokens for p in seen)
    assert seen[-1].tokens == 40
    assert seen[-1].bill_usd == pytest.approx(route.bill_usd)
    assert min(progress.bill_usd for progress in seen) > 0
    with (
        Disco(local=device(answer_tokens=3), policy="private") as client,
        create(client, stream=True) as stream,
    ):
        assert stream.progress.writer == "device"
        list(stream)
        assert (stream.progress.buffered_tokens, stream.progress.running) == (0, ())


FORGETS = """
from disco import Disco
client = Disco(local="smollm2-135m", policy="private")
messages = [{"role": "user", "content": "Hi."}]
stream = client.chat.completions.create(model="m", messages=messages, stream=True, max_tokens=300)
print(next(iter(stream)).object)
"""


@pytest.mark.real
def test_a_program_that_forgets_to_close_it_still_ends():
    program = [sys.executable, "-c", FORGETS]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("chat.completion.chunk", 0), done.stderr
