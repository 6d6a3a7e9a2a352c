"""Keys, servers and files that do not fit each other: refused by name, before anything is computed."""

import dataclasses
import socket
from contextlib import closing

import anyio
import openai
import pytest

from disco.endpoints.host.host_split import HostSplit
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.split.layer_link import LayerServer
from disco.errors import EndpointFailure, FailureKind, ModelFileError
from tests.endpoints.host.processes import told
from tests.endpoints.split.asking import ask, asked, running, split_of
from tests.endpoints.split.layer_stand_in import LayerStandIn

pytestmark = pytest.mark.real

QUESTION = ask("What is in the box?", temperature=0.8, seed=3, max_tokens=8)


def first_failure(endpoint):
    async def main():
        async with running(endpoint, warm=False) as split:
            with pytest.raises(EndpointFailure) as failed:
                await asked(split, QUESTION)
            return failed.value

    return anyio.run(main)


def test_the_key_is_sent_and_a_wrong_one_is_not_shown(tiny):
    with closing(LayerStandIn(tiny.cloud, key="sk-right")) as server:
        failure = first_failure(split_of(tiny, server, key="sk-wrong-and-long", made=HostSplit))
        assert failure.kind is FailureKind.ACCOUNT
        assert isinstance(failure.error, openai.AuthenticationError)
        assert "sk-wrong" not in str(failure.error)

        async def main():
            async with running(split_of(tiny, server, key="sk-right", made=HostSplit)) as split:
                assert b"sk-right" not in told(split.process_id)
                assert "sk-right" not in repr(split._host.host)
                return await asked(split, QUESTION)

        assert anyio.run(main).text


@pytest.mark.parametrize("facts", [{"fingerprint": "another"}, {"layers": 3}, {"hidden": 128}])
def test_a_server_with_layers_of_another_cut(tiny, facts):
    with closing(LayerStandIn(tiny.cloud, **facts)) as server:
        failure = first_failure(split_of(tiny, server, made=HostSplit))
    assert failure.kind is FailureKind.UNSERVED
    assert "use files of one cut" in str(failure.error)


def test_what_is_no_layer_server_or_is_not_there(tiny, stand_in):
    elsewhere = dataclasses.replace(split_of(tiny, stand_in)._server, base_url=stand_in.base_url + "/v2")
    failure = first_failure(HostSplit(tiny.undrafted, elsewhere))
    assert failure.kind is FailureKind.UNSERVED
    assert "disco serve --layers" in str(failure.error)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nowhere = LayerServer(base_url=f"http://127.0.0.1:{port}/v1")
    assert first_failure(HostSplit(tiny.undrafted, nowhere)).kind is FailureKind.CONNECTION


def test_files_that_do_not_belong_together(tiny, tmp_path):
    server = LayerServer(base_url="http://127.0.0.1:1/v1")
    for wrong, message in ((tiny.whole, "disco split cut"), (tiny.cloud, "'cloud'"), (tiny.head, "'head'")):
        with pytest.raises(ModelFileError, match=message):
            HostSplit(wrong, server)
    lonely = tmp_path / tiny.device.name
    lonely.write_bytes(tiny.device.read_bytes())
    with pytest.raises(ModelFileError, match=r"head\.gguf"):
        HostSplit(lonely, server)
    other = cut_model(tiny.whole, 3, tmp_path / "other")
    lonely.with_name(tiny.head.name).write_bytes(other["head"].read_bytes())
    with pytest.raises(ModelFileError, match="not behind the same layer"):
        HostSplit(lonely, server)
    renamed = tmp_path / "mine.gguf"
    renamed.write_bytes(tiny.device.read_bytes())
    with pytest.raises(ModelFileError, match="another name"):
        HostSplit(renamed, server)
