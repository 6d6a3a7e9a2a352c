"""What may be written for a server as the local side, and what is said where it may not."""

from __future__ import annotations

import httpx2
import pytest

import disco
from disco import AsyncDisco, ConfigurationError, LocalServer
from disco.client.endpoint_catalog.local_servers import is_address
from disco.endpoints.local_server import LocalServerEndpoint


def test_an_address_is_short_for_the_object_and_told_from_a_model():
    short = LocalServer.at("http://localhost:11434/v1#qwen3:4b")
    assert short == LocalServer(base_url="http://localhost:11434/v1", model="qwen3:4b")
    assert LocalServer.at("http://127.0.0.1:1234/v1").model is None
    assert LocalServer.at("http://[::1]:8080/v1#a/b#c").model == "a/b#c"
    addresses = ["http://localhost:11434/v1#qwen3:4b", "localhost:11434/v1", "localhost:11434"]
    models = ["smollm2-135m", "hf:owner/repo/file.gguf", "/models/a.gguf", "C:\\models\\a.gguf"]
    assert [given for given in (*addresses, *models) if is_address(given)] == addresses


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("localhost:11434/v1#qwen3:4b", 'local="http://localhost:11434/v1#qwen3:4b"'),
        ("http://localhost:11434", 'write "http://localhost:11434/v1"'),
        ("http://localhost:11434/api#qwen3:4b", 'write "http://localhost:11434/v1"'),
        ("http://localhost:8000/v1/chat/completions", 'write "http://localhost:8000/v1"'),
        ("http://localhost:99999/v1", "is not an address"),
        ("http:///v1", "names no host"),
        ("ftp://localhost/v1", "http:// or https://"),
        ("http://me:secret@localhost:1/v1", "api_key"),
        ("http://localhost:1/v1?key=secret", "must not contain ? or #"),
        ("http://192.168.1.20:11434/v1#a", 'reach="own"'),
        ("http://localhost.example.com/v1#a", 'reach="own"'),
        ("http://0.0.0.0:11434/v1#a", 'reach="own"'),
        ("http://localhost:11434/v1#gpt-oss:120b-cloud", "would leave this machine"),
    ],
)
def test_a_wrong_address_says_what_to_write(address, remedy):
    with pytest.raises(ConfigurationError) as caught:
        AsyncDisco(local=address)
    assert remedy in str(caught.value)
    assert "secret" not in str(caught.value)


WRONG = [{"reach": "far"}, {"model": " "}, {"context_tokens": 0}, {"at_once": 0}, {"max_queue": 0}]


@pytest.mark.parametrize("given", [*WRONG, {"parameters": 0}, {"continuation": "nonsense"}], ids=str)
def test_a_wrong_setting_is_refused(given):
    with pytest.raises(ConfigurationError):
        AsyncDisco(local=LocalServer(**{"base_url": "http://localhost:1/v1", **given}))


@pytest.mark.anyio
async def test_what_is_this_machine_and_what_is_not():
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]", "models.localhost"):
        here = LocalServer(base_url=f"http://{host}:1/v1", model="a")
        assert here.reach == "device"
    made = [here, LocalServer(base_url="http://192.168.1.20:11434/v1", model="a", reach="own")]
    seen = [(one.reach, one.place, one.name) for one in (each.endpoint() for each in made)]
    assert seen == [("device", "device", "device"), ("own", "server", "local")]
    async with httpx2.AsyncClient() as http:  # it may lead anywhere
        with pytest.raises(ConfigurationError, match="directly"):
            LocalServer(base_url="http://localhost:1/v1", http_client=http)
        LocalServer(base_url="https://desk.example/v1", reach="own", http_client=http)


def test_no_key_shows_and_what_the_environment_holds_is_for_others(monkeypatch):
    assert "sk-hidden" not in repr(LocalServer(base_url="http://localhost:1/v1", api_key="sk-hidden"))
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "sk-of-somebody-else")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    client = LocalServer(base_url="http://localhost:1/v1").endpoint()._own
    assert "sk-of-somebody-else" not in str(client.default_headers | client.auth_headers)
    assert not client._client.follow_redirects
    assert not client._client.trust_env


def test_the_client_makes_it_of_an_address():
    with disco.Disco(local="http://localhost:9/v1#m") as sync:
        assert isinstance(sync.router.local, LocalServerEndpoint)
        assert sync.router.local.model == "m"
    with pytest.raises(ConfigurationError, match="runtime"):  # is for models that this program starts
        AsyncDisco(local="http://localhost:9/v1", runtime="engine")
