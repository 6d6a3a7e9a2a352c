"""An application uses local models in every way and never has llama.cpp in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
import pytest

from disco.endpoints.llamacpp.model.model_files import resolve_model
from tests.endpoints.host.processes import llama_cpp_in, needs_proc
from tests.endpoints.split.conftest import stand_in, tiny  # noqa: F401 - fixtures
from tests.server.command_process import KEY, ROOT, running

pytestmark = [pytest.mark.real, needs_proc]

PROGRAM = """
import json, sys
import anyio
from disco import AsyncDisco, Split
from tests.endpoints.host.processes import llama_cpp_in

way, options = sys.argv[1], json.loads(sys.argv[2])

def made():
    if way in ("local", "attach"):
        attach = "auto" if way == "attach" else False
        return AsyncDisco(local=options["model"], preset="private", attach=attach)
    if way == "verify":
        policy = {"dispatch": {"policy": "server_only"}, "speculate": {"window": 4, "drafter": "local"}}
        policy |= {"playback": {"pace_tps": "off"}}
        return AsyncDisco(
            local=options["model"], attach=False, base_url=options["base_url"], api_key=options["key"],
            speculate="always", preset=policy, price=(1.0, 2.0),
        )
    device = {"device": options["device"], "base_url": options["base_url"], "window": 4, "context_tokens": 1024}
    return AsyncDisco(tiers=[Split(**device)], policy="cascade")

async def main():
    async with made() as client:
        await client.warm_up()
        answer = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": options["text"]}], max_tokens=options["most"],
            temperature=0, extra_body={"disco": {"migrate": False}},
        )
        attempt = answer.route.attempts[0]
        drafted = 0 if attempt.speculation is None else attempt.speculation.drafted
        print(json.dumps([llama_cpp_in("self"), answer.usage.completion_tokens > 0, attempt.endpoint, drafted]))

anyio.run(main)
"""


def program(way: str, folder, text: str = "Hello.", most: int = 16, **options) -> list:
    """What a program of its own found in its memory, whether it was answered, by whom, and how much was drafted."""
    options |= {"text": text, "most": most}
    command = [sys.executable, "-c", PROGRAM, way, json.dumps(options)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "DISCO_"))}
    environment |= {"PYTHONPATH": str(ROOT), "DISCO_ATTACH": str(folder), "DISCO_STATE": "off"}
    done = subprocess.run(  # what it said is read first
        command, check=False, env=environment, capture_output=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def model() -> str:
    return str(resolve_model("smollm2-135m"))


def test_what_is_looked_for_is_there_where_the_engine_runs(engine_host):
    anyio.run(engine_host.warm_up)
    assert llama_cpp_in(engine_host.process_id)


def test_a_local_model(model, tmp_path):
    assert program("local", tmp_path, model=model) == [[], True, "device", 0]


def test_a_verify_server_and_the_device_that_drafts_for_it(model, tmp_path):
    options = ("--verify", model, "--slots", "2", "--context", "512", "--threads", "1", "--preset", "private")
    with running(*options, DISCO_SERVER_KEY=KEY) as (server, (host, port)):
        address = {"base_url": f"http://{host}:{port}/v1", "key": KEY}
        # long enough: the server writes alone while the drafter reads the prompt, here on the same cores
        found = program("verify", tmp_path, "Count from one to fifty.", 160, model=model, **address)
        assert llama_cpp_in(server.pid) == []
    assert found[:3] == [[], True, "server"]
    assert found[3] > 0


def test_a_host_of_another_program(model, tmp_path):
    options = ("--preset", "private", "--local", model)
    with running(*options, DISCO_ATTACH=str(tmp_path), DISCO_STATE="off") as (server, _):
        assert program("attach", tmp_path, model=model) == [[], True, "device", 0]
        assert llama_cpp_in(server.pid) == []


def test_a_split_model(tiny, stand_in, tmp_path):  # noqa: F811 - as above
    found = program("split", tmp_path, device=str(tiny.device), base_url=stand_in.base_url)
    assert found[:3] == [[], True, "tier-1"]
