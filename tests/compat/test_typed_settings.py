"""The dictionaries and names that type checkers see are those that the client takes."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import get_args

import openai
import pytest

import disco
from disco import AsyncAzureDisco, AzureDisco, Disco
from disco.client.request_options import RequestOptions
from disco.client.settings import AsyncAzureArguments, AzureArguments, ClientSettings, OwnArguments
from disco.dispatch import available_presets
from disco.dispatch.presets import LimitsSection
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile


def test_every_name_is_on_both_sides():
    assert set(disco.Options.__annotations__) == set(RequestOptions.model_fields)
    assert set(disco.Budget.__annotations__) >= set(LimitsSection.model_fields) - {"local_only"}
    assert set(disco.Budget.__annotations__) <= {*LimitsSection.model_fields, "usd", "per"}
    assert set(OwnArguments.__annotations__) == {field.name for field in fields(ClientSettings)}
    assert set(get_args(disco.PresetName)) == set(available_presets())


@pytest.mark.parametrize(
    ("kind", "ours", "sdks"),
    [
        (AzureArguments, AzureDisco, openai.AzureOpenAI),
        (AsyncAzureArguments, AsyncAzureDisco, openai.AsyncAzureOpenAI),
    ],
)
def test_what_the_clients_for_azure_take_is_typed(kind, ours, sdks):
    given = {name for name in signature(sdks.__init__).parameters if not name.startswith("_")} - {"self"}
    assert kind.__required_keys__ == frozenset()
    assert kind.__optional_keys__ == given | set(OwnArguments.__annotations__)
    assert kind.__optional_keys__ <= set(signature(ours.__init__).parameters)


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "path"])
def test_a_preset_of_ones_own_is_named_by_its_path_for_a_client_and_for_a_request(tmp_path, as_text):
    path = tmp_path / "mine.toml"
    path.write_text('[dispatch]\npolicy = "device_only"\n', encoding="utf-8")
    mine = str(path) if as_text else path
    local = SimulatedEndpoint("device", SimulatedProfile(answer="Here."), place="device")
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    with Disco(local=local, preset=mine) as client:
        assert client.chat.completions.create(**asked).route.preset == "mine"
    with Disco(local=local, preset="private") as client:
        own = disco.Options(preset=mine)
        assert client.chat.completions.create(**asked, extra_body={"disco": own}).route.preset == "mine"
        with client.with_options(default_options=own) as copy:
            assert copy.chat.completions.create(**asked).route.preset == "mine"
