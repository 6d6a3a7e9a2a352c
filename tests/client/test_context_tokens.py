"""The context that a client asks for, and what it gets where it asks for none. No model is loaded."""

from __future__ import annotations

import pytest

from disco import AsyncDisco, Disco, LocalServer
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import ConfigurationError

MODEL = "smollm2-135m"
TRAINED = 8192


@pytest.mark.parametrize("runtime", ["engine", "llama-server"])
@pytest.mark.parametrize(("asked", "gets"), [(None, TRAINED), (512, 512), (TRAINED, TRAINED)])
def test_a_local_model_has_its_own_context_or_the_one_that_is_asked_for(runtime, asked, gets):
    with Disco(local=MODEL, preset="private", runtime=runtime, context_tokens=asked) as client:
        local = client.router.local
        assert local.capabilities().context_tokens == gets
        # Another program's copy of the model need not have more than this one would be sure to get.
        assert local.least_context_tokens == (4096 if asked is None else asked)


@pytest.mark.parametrize(
    ("local", "says"),
    [
        (None, "pass local="),
        ("http://127.0.0.1:9/v1#m", r"LocalServer\(context_tokens"),
        (LocalServer(base_url="http://127.0.0.1:9/v1"), r"LocalServer\(context_tokens"),
        (SimulatedEndpoint("device", SimulatedProfile(), place="device"), "give it to that object"),
    ],
    ids=["none", "an address", "a server", "an endpoint"],
)
def test_it_is_refused_where_the_model_is_not_disco_s_to_load(local, says):
    with pytest.raises(ConfigurationError, match=f"context_tokens is for a .*{says}"):
        AsyncDisco(local=local, api_key="k", context_tokens=512)


@pytest.mark.parametrize(("option", "value"), [("lora", ["a.gguf"]), ("mmproj", "eyes.gguf")])
@pytest.mark.parametrize(
    ("local", "says"),
    [
        (None, "pass local="),
        ("http://127.0.0.1:9/v1#m", "llama-server --lora, --mmproj"),
        (SimulatedEndpoint("device", SimulatedProfile(), place="device"), "has its own"),
    ],
    ids=["none", "a server", "an endpoint"],
)
def test_files_beside_a_model_are_refused_there_too(local, says, option, value):
    with pytest.raises(ConfigurationError, match=f"{option} is for a .*{says}.* leave {option} out"):
        AsyncDisco(local=local, api_key="k", **{option: value})
