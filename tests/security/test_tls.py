"""Certificates are checked: a server that cannot prove its name is sent nothing."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
from types import SimpleNamespace

import anyio.to_thread
import httpx2
import openai
import pytest
from defects.asking import create, device, preset, tried
from scripted_server import as_document, chunk, sse, stream

from disco import AsyncDisco, Backup, Disco

pytestmark = [pytest.mark.real, pytest.mark.anyio]

NEW_KEY = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


@pytest.fixture
def anyio_backend() -> str:
    """Certificates do not depend on the event loop."""
    return "asyncio"


@pytest.fixture
async def server(tmp_path):
    """given, a client's settings; trust, a context; asked, the paths it could read. It is for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the command openssl, which is not installed here")
    made, key, asked = tmp_path / "certificate.pem", tmp_path / "key.pem", []
    name = ["-subj", "/CN=disco test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made]
    await anyio.run_process([*NEW_KEY.split(), *name])

    async def write(reader, writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1])
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))
        writer.write(b"".join(as_document(stream(sse(chunk("The sea."), chunk(finish="stop"))))))
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    listener = await asyncio.start_server(write, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    given = {"api_key": "sk-canary-0123456789", "base_url": url, "max_retries": 0}
    yield SimpleNamespace(given=given, trust=ssl.create_default_context(cafile=str(made)), asked=asked)
    listener.close()


def causes(error: BaseException | None) -> str:
    return "" if error is None else f"{error} {causes(error.__cause__ or error.__context__)}"


async def test_a_certificate_that_does_not_prove_the_name_is_refused_and_the_device_answers(server):
    given = server.given
    backup = Backup(base_url=given["base_url"], api_key="sk-canary", model="m")
    elsewhere = {"base_url": given["base_url"].replace("127.0.0.1", "localhost")}
    for more, says in (
        ({}, "CERTIFICATE_VERIFY_FAILED"),
        ({"base_url": "http://127.0.0.1:9/v1", "backups": [backup]}, ""),
        ({**elsewhere, "http_client": httpx2.AsyncClient(verify=server.trust)}, "ostname mismatch"),
    ):
        async with AsyncDisco(**{**given, **more}) as client:
            await client.warm_up()
            with pytest.raises(openai.APIConnectionError) as caught:
                await create(client)
            assert says in causes(caught.value)
            with pytest.raises(openai.APIConnectionError):
                await client.embeddings.create(model="m", input="hello")
    with Disco(**given) as client, pytest.raises(openai.APIConnectionError):
        await anyio.to_thread.run_sync(create, client)
    local = device(gap_s=0.001, answer="From the device.")
    async with AsyncDisco(local=local, policy=preset("server_only"), **given) as client:
        answer = await create(client)
    assert answer.choices[0].message.content == "From the device."
    assert tried(answer) == [("server", "connection"), ("device", None)]
    assert server.asked == []


async def test_an_http_client_of_the_application_that_trusts_it_is_used(server):
    async with AsyncDisco(**server.given, http_client=httpx2.AsyncClient(verify=server.trust)) as client:
        answers = [await create(client)]
    with Disco(**server.given, http_client=httpx2.Client(verify=server.trust)) as client:
        answers.append(await anyio.to_thread.run_sync(create, client))
    assert [answer.choices[0].message.content for answer in answers] == ["The sea."] * 2
    assert server.asked == [b"/v1/chat/completions"] * 2
