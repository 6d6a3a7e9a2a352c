"""`disco doctor` as a user runs it, on set-ups that are broken for real; its report never holds a part of the key."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from plain_server import listening
from servers import free_port

from disco.cli import main
from disco.cli.doctor import desk_servers
from tests.cli.doctor.keyed_api import KEY, SECRET, api


@dataclass(frozen=True)
class Report:
    """What a run has found; `text`: all that it printed."""

    document: dict[str, Any]
    text: str

    def of(self, subject: str) -> dict[str, str]:
        """The one finding of a subject."""
        (found,) = (one for one in self.document["findings"] if one["subject"] == subject)
        return found

    def subjects(self) -> set[str]:
        return {one["subject"] for one in self.document["findings"]}

    def fault(self, subject: str, *cause: str, remedy: str, also: tuple[str, ...] = ()) -> None:
        """Assert that the only fault is this one, that its lines name the cause and the remedy, and the exit status.

        `also`: what else is at fault because of it.
        """
        faults = [one for one in self.document["findings"] if one["verdict"] == "does not"]
        assert [one["subject"] for one in faults] == [subject, *also], faults
        for word in cause:
            assert word in faults[0]["what"], faults[0]
        assert remedy in faults[0]["remedy"], faults[0]
        assert self.document["status"] == 1


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """No folder, proxy, port or key of whoever runs the tests plays a part."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(desk_servers, "USUAL_PORTS", ())


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Run the command and return its report: with no local model, and a healthy server, unless others are named.

    `has_server=False`: with what the environment says alone.
    """

    def run(*arguments: str, has_server: bool = True) -> Report:
        if has_server and not os.environ.get("OPENAI_BASE_URL"):
            with serving(api) as base_url, monkeypatch.context() as patch:
                patch.setenv("OPENAI_BASE_URL", base_url)
                patch.setenv("OPENAI_API_KEY", KEY)
                return examined(*arguments)
        return examined(*arguments)

    def examined(*arguments: str) -> Report:
        given = list(arguments)
        given += [] if "--local" in given else ["--local", "none"]
        given += [] if "--port" in given else ["--port", str(free_port())]
        status = main(["doctor", *given, "--json"])
        printed = capsys.readouterr()
        text = printed.out + printed.err
        for at in range(len(SECRET) - 3):
            assert SECRET[at : at + 4] not in text
        document = json.loads(printed.out)
        assert document["status"] == status
        crashed = [one for one in document["findings"] if "check itself failed" in one["what"]]
        assert crashed == []
        return Report(document, text)

    return run


@contextlib.contextmanager
def serving(answer: Any) -> Iterator[str]:
    """A server on a loopback port; its base_url. `answer`: see `server`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self._answer()

        def _answer(self) -> None:
            sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, kind, body = answer(self.path, sent or None)
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    with listening(Handler) as base_url:
        yield base_url


@pytest.fixture
def server(monkeypatch):
    """`server(answer)` is a context with the base_url of a server, which the environment names together with its key.

    `answer(path, key)` returns a status, a content type and a body; `key` is what the request carried, None without.
    """

    @contextlib.contextmanager
    def named(answer: Any, path: str = "/v1") -> Iterator[str]:
        with serving(answer) as at:
            base_url = at.removesuffix("/v1") + path
            monkeypatch.setenv("OPENAI_BASE_URL", base_url)
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            yield base_url

    return named
