"""Certificates are checked: a server that cannot prove its name is sent nothing."""

from __future__ import annotations

import functools
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import httpx2
import openai
import pytest
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Tell me about the sea."}]}
KEY = "sk-canary-0123456789"
NOWHERE = "http://127.0.0.1:9/v1"


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, *arguments, asked: list[str]):
        self.asked = asked
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(sse(chunk("The sea."), chunk(finish="stop")))

    def log_message(self, *_) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_) -> None:
        """A client that does not like the certificate hangs up in the handshake."""


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """base_url; trust, a context; asked, the paths it could read. Nobody vouches for its certificate of 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the command openssl, which is not installed here")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", "/CN=disco test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", made], check=True, capture_output=True)
    asked: list[str] = []
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, asked=asked))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    # The handshake takes place in the thread of its connection, when that is first read.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    base_url = f"https://127.0.0.1:{server.server_address[1]}/v1"
    trust = ssl.create_default_context(cafile=str(made))
    yield SimpleNamespace(base_url=base_url, trust=trust, asked=asked)
    server.shutdown()
    server.server_close()
    thread.join(60)


def causes(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {causes(error.__cause__ or error.__context__)}"


async def refused(client: AsyncDisco, says: str) -> None:
    async with client:
        await client.warm_up()
        with pytest.raises(openai.APIConnectionError) as caught:
            await client.chat.completions.create(**HELLO)
        assert says in causes(caught.value)
        with pytest.raises(openai.APIConnectionError):
            await client.embeddings.create(model="m", input="hello")


@pytest.mark.anyio
async def test_a_certificate_that_does_not_prove_the_name_is_refused(tls_server):
    tls_server.asked.clear()
    given = {"api_key": KEY, "base_url": tls_server.base_url, "max_retries": 0}
    await refused(AsyncDisco(**given), "CERTIFICATE_VERIFY_FAILED")
    backup = Backup(base_url=tls_server.base_url, api_key=KEY, model="m")
    await refused(AsyncDisco(**{**given, "base_url": NOWHERE}, backups=[backup]), "")
    # It is for 127.0.0.1, and trusted, but this asks for localhost.
    elsewhere = {**given, "base_url": tls_server.base_url.replace("127.0.0.1", "localhost")}
    trusting = httpx2.AsyncClient(verify=tls_server.trust)
    await refused(AsyncDisco(**elsewhere, http_client=trusting), "ostname mismatch")
    assert tls_server.asked == []


@pytest.mark.anyio
async def test_the_device_answers_in_its_place_and_a_client_that_trusts_it_works(tls_server):
    tls_server.asked.clear()
    given = {"api_key": KEY, "base_url": tls_server.base_url, "max_retries": 0}
    profile = SimulatedProfile(gap_s=0.001, answer="From the device.")
    device = SimulatedEndpoint("device", profile, place="device")
    first = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
    async with AsyncDisco(local=device, policy=first, **given) as client:
        answer = await client.chat.completions.create(**HELLO)
    assert answer.choices[0].message.content == "From the device."
    tried = [(t.endpoint, t.failure) for t in answer.route.attempts]
    assert tried == [("server", "connection"), ("device", None)]
    assert tls_server.asked == []
    async with AsyncDisco(**given, http_client=httpx2.AsyncClient(verify=tls_server.trust)) as client:
        answer = await client.chat.completions.create(**HELLO)
    assert answer.choices[0].message.content == "The sea."
    assert tls_server.asked == ["/v1/chat/completions"]


def test_the_same_without_an_event_loop(tls_server):
    tls_server.asked.clear()
    given = {"api_key": KEY, "base_url": tls_server.base_url, "max_retries": 0}
    with Disco(**given) as client, pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**HELLO)
    assert tls_server.asked == []
    with Disco(**given, http_client=httpx2.Client(verify=tls_server.trust)) as client:
        assert client.chat.completions.create(**HELLO).choices[0].message.content == "The sea."
