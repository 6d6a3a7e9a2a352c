"""What the server's owner is told of failures, in the log: also of those that callers never see."""

from __future__ import annotations

import logging

import pytest
import scripted_server as scripted
from serving import HELLO, serving, upstream

from disco import AsyncDisco
from disco.cli import serve as command
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

SERVER_FIRST = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
CHAT = {"model": "m", "messages": [*HELLO, {"role": "user", "content": "CANARYPROMPT"}]}
QUOTE = b'{"error":{"message":"CANARYPROMPT by upstream-key","code":"CANARYPROMPT","type":"upstream-key"}}'
SALT = scripted.piece(scripted.sse(scripted.chunk("Salt"), done=False))
FAILED = "endpoint server failed: "
REFUSED = "/v1/chat/completions: refused with "
CUT = "refused in mid-answer, with 502 (connection_failed)"


@pytest.mark.real
@pytest.mark.parametrize(
    ("script", "with_device", "more", "says"),
    [
        ("401 Unauthorized", True, {}, {FAILED + "authentication", "refuses its key"}),
        ("500 Oops", True, {}, {FAILED + "server"}),
        ("500 Oops", False, {}, {FAILED + "server", REFUSED + "500 (InternalServerError)"}),
        ("503 Busy", False, {"n": 2}, {REFUSED + "503 (InternalServerError)"}),
        ([scripted.STREAM_HEAD, SALT, scripted.RESET], False, {"stream": True}, {FAILED + "connection", CUT}),
        ("400 Bad Request", False, {}, set()),  # the caller's mistake
    ],
    ids=["hidden 401", "hidden 500", "500", "passed through", "broken stream", "400"],
)
def test_failures_are_logged_whoever_answers(caplog, script, with_device, more, says):
    def make(**given):
        device = SimulatedEndpoint("device", SimulatedProfile(gap_s=0.001, answer_tokens=4), place="device")
        behind = {"base_url": server.base_url, "api_key": "upstream-key", "max_retries": 0, "price": (1, 2)}
        local = device if with_device else None
        return AsyncDisco(local=local, policy=SERVER_FIRST, continuation="none", **behind, **given)

    caplog.set_level("INFO", logger="disco")
    plays = scripted.answer(QUOTE, status=script) if isinstance(script, str) else script
    with upstream(plays) as server, serving(make) as served:
        answer = served.ask("/v1/chat/completions", {**CHAT, **more})
        assert (answer.status == 200) == (with_device or "stream" in more)
        served.until(lambda: "n" in more or bool(served.routes))
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    for words in says:
        assert any(words in line for line in warned), warned
    assert len(warned) == len(says)
    assert "CANARYPROMPT" not in caplog.text
    assert "upstream-key" not in caplog.text


def test_the_commands_lines_go_to_standard_error_from_the_level_on(capsys):
    for level, lines in (("warning", 1), ("info", 2), ("error", 0)):
        with command._logging(level):
            logging.getLogger("disco.route").warning("endpoint server failed: server")
            logging.getLogger("disco.route").info("answer finished")
            logging.getLogger("httpx2").warning("https://user:password@host")
        logging.getLogger("disco").warning("after the end")
        said = capsys.readouterr().err
        assert len(said.splitlines()) == lines, said
        assert lines == 0 or "WARNING disco.route: endpoint server failed: server" in said
