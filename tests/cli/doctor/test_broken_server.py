"""Servers, keys and networks that are broken for real: the report names the cause and what to type."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import closing, contextmanager

import pytest
from servers import free_port

from tests.cli.doctor.keyed_api import KEY, SECRET, api

pytestmark = pytest.mark.real


def test_a_healthy_server_works_and_its_questions_cost_nothing_unless_asked(doctor, server):
    asked = []

    def answer(path, key):
        asked.append(path)
        return api(path, key)

    with server(answer):
        report = doctor()
    assert report.document["status"] == 0
    assert report.of("key accepted")["verdict"] == "works"
    assert "gpt-4o-mini" in report.of("model")["what"]
    assert report.of("answer")["verdict"] == "not checked"
    assert " $ at the price of " in report.of("answer")["what"]
    assert "--ask" in report.of("answer")["remedy"]
    assert set(asked) == {"/v1/models"}


def test_a_refused_key_is_named_and_the_servers_quotation_of_it_is_not_shown(doctor, server, monkeypatch):
    with server(api):
        monkeypatch.setenv("OPENAI_API_KEY", f"sk-proj-{SECRET[::-1]}{SECRET}")
        report = doctor()
    report.fault("key accepted", "refuses the key (401)", remedy="OPENAI_API_KEY")
    assert SECRET[:5] not in report.text
    assert "get answers from the server" in report.document["cannot"]


def test_what_a_server_says_is_shown_without_any_part_of_a_key(doctor, server):
    said = f"Project of key {KEY[:12]} ({KEY}), sk-p****{SECRET[-4:]}: no access from here"

    def answer(path, key):
        return 403, "application/json", {"error": {"message": said}}

    with server(answer):
        report = doctor()
    report.fault("key accepted", "(403)", "no access from here", "[key]", remedy="permissions")


@pytest.mark.parametrize(
    ("around", "told"),
    [(f"{KEY}\n", "a line break"), (f'"{KEY}"', "quotes"), (f" Bearer {KEY}", "Bearer")],
)
def test_a_key_with_something_around_it_is_told_and_tried_without(doctor, server, monkeypatch, around, told):
    with server(api):
        monkeypatch.setenv("OPENAI_API_KEY", around)
        report = doctor()
    report.fault("key", "holds more than the key", told, remedy="the key alone")
    assert report.of("key accepted")["verdict"] == "works"


def test_a_key_with_a_letter_that_no_key_has(doctor, server, monkeypatch):
    with server(api):
        monkeypatch.setenv("OPENAI_API_KEY", f"{KEY[:12]}é{KEY[12:]}")
        report = doctor()
    report.fault("key", "no key has", remedy="Copy the key again")


def test_a_key_in_a_variable_that_nothing_reads(doctor, monkeypatch):
    monkeypatch.setenv("OPENAI_KEY", KEY)
    told, typed = "OPENAI_KEY is set, but nothing reads it", 'export OPENAI_API_KEY="$OPENAI_KEY"'
    doctor(has_server=False).fault("key", told, remedy=typed, also=("settings",))


def test_another_providers_key_is_a_hint_with_its_address(doctor, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    found = doctor(has_server=False).of("key")
    assert found["verdict"] == "not checked"
    assert found["remedy"] == (
        'export OPENAI_API_KEY="$OPENROUTER_API_KEY" and export OPENAI_BASE_URL=https://openrouter.ai/api/v1'
    )


def test_a_server_without_a_key_is_not_asked(doctor, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    told = "OPENAI_BASE_URL names a server, but OPENAI_API_KEY is not set"
    doctor().fault("key", told, remedy="any text", also=("settings",))


def test_a_key_in_the_variable_of_the_address(doctor, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    doctor().fault("address", "holds a key", remedy="OPENAI_BASE_URL=https://HOST/v1")


def test_an_address_with_a_line_break(doctor, server, monkeypatch):
    with server(api) as base_url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{base_url}\n")
        doctor().fault("address", "a line break", remedy=f"export OPENAI_BASE_URL={base_url}")


def test_a_key_of_another_provider_than_the_address(doctor, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-or-v1-{SECRET}\n")
    monkeypatch.setenv(
        "HTTPS_PROXY", f"http://127.0.0.1:{free_port()}"
    )  # so that nothing leaves this machine
    report = doctor(has_server=False)
    found = report.of("key")
    assert "a key of OpenRouter" in found["what"]
    assert not report.subjects() & {"connection", "proxy", "server"}
    assert found["remedy"] == "export OPENAI_BASE_URL=https://openrouter.ai/api/v1"


def test_a_web_page_in_place_of_an_api(doctor, server):
    with server(lambda path, key: (200, "text/html", "<!doctype html><title>nginx</title>")) as base_url:
        doctor().fault("server", base_url, "a web page, not with JSON", remedy="/v1")


@pytest.mark.parametrize("path", ["", "/v1/chat/completions", "/api"])
def test_an_address_that_does_not_end_where_the_api_begins(doctor, server, path):
    with server(api, path=path) as base_url:
        right = f"export OPENAI_BASE_URL={base_url.removesuffix(path)}/v1"
        doctor().fault("address", "the API begins at another path", remedy=right)


def test_no_machine_of_that_name(doctor, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://no-such-host.invalid/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = doctor().of("connection")
    assert found["verdict"] == "does not"
    assert any(word in found["what"] for word in ("no-such-host.invalid", "no network"))
    assert found["remedy"]


def test_nothing_listens(doctor, monkeypatch):
    port = free_port()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    doctor().fault("connection", f"nothing listens on port {port}", remedy="Start the server there")


def test_https_to_a_server_that_speaks_http(doctor, server, monkeypatch):
    with server(api) as base_url:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url.replace("http://", "https://"))
        doctor().fault("server", "it speaks http, not https", remedy=f"export OPENAI_BASE_URL={base_url}")


@contextmanager
def accepting(serve):
    """A TCP server that hands every connection to `serve`, in a thread."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_certificate_that_nobody_vouches_for(doctor, monkeypatch, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the command openssl, which is not installed here")
    made, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)

    def serve(connection):
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(1000)

    with accepting(serve) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"https://127.0.0.1:{port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        doctor().fault("server", "its certificate is not accepted", remedy="SSL_CERT_FILE")


def test_a_server_that_closes_the_connection(doctor, monkeypatch):
    with accepting(lambda connection: connection.recv(1000)) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        doctor().fault("server", "does not speak HTTP", remedy="https://")


def test_a_server_that_never_answers_costs_a_limited_time(doctor, monkeypatch):
    monkeypatch.setattr("disco.cli.doctor.model_list._LIMIT_S", 0.3)
    ends = threading.Event()
    with accepting(lambda connection: ends.wait(30)) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        doctor().fault("server", "nothing came within", remedy="hangs")
        ends.set()


def test_a_proxy_that_is_not_there(doctor, server, monkeypatch):
    port = free_port()
    with server(api):
        monkeypatch.setenv("HTTP_PROXY", f"http://user:{SECRET}@127.0.0.1:{port}")
        report = doctor()
    report.fault("proxy", "HTTP_PROXY", f"127.0.0.1:{port}", remedy="unset HTTP_PROXY")
    assert "NO_PROXY=127.0.0.1" in report.of("proxy")["remedy"]


def test_a_proxy_that_is_no_address(doctor, server, monkeypatch):
    with server(api):
        monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1080")
        found = doctor().of("proxy")
    assert found["verdict"] == "does not"
    assert "SOCKS" in found["what"]


def test_certificates_that_are_not_there(doctor, server, monkeypatch, tmp_path):
    with server(api):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        doctor().fault("certificates", "SSL_CERT_FILE", "does not exist", remedy="unset SSL_CERT_FILE")


def test_a_model_that_the_server_does_not_have(doctor, server):
    with server(api):
        report = doctor("--model", "gpt4o-mini")
    report.fault("model", "no model 'gpt4o-mini'", "'gpt-4o-mini'", remedy="--model gpt-4o-mini")


def test_an_account_without_credit(doctor, server):
    error = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    with server(lambda path, key: (429, "application/json", {"error": error})):
        doctor().fault("server", "no credit", "exceeded your current quota", remedy="bill")


def test_a_fault_of_the_servers_own(doctor, server):
    with server(lambda path, key: (503, "application/json", {"error": {"message": "overloaded"}})):
        doctor().fault("server", "(503)", "overloaded", remedy="Try again later")
