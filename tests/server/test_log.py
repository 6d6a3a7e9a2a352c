"""What the server's owner is told of failures, in the log: also of those that callers never see."""

from __future__ import annotations

import gc
import logging

import pytest
import scripted_server as scripted
from serving import HELLO, serving, upstream

from disco import AsyncDisco
from disco.cli import serve as command
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

pytestmark = pytest.mark.real

SERVER_FIRST = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
CHAT = {"model": "m", "messages": [*HELLO, {"role": "user", "content": "CANARYPROMPT"}]}
QUOTE = '{"error":{"message":"CANARYPROMPT by upstream-key","code":"CANARYPROMPT","type":"upstream-key"}}'
BREAKS = [
    scripted.STREAM_HEAD,
    scripted.piece(scripted.sse(scripted.chunk("Salt"), done=False)),
    scripted.RESET,
]


@pytest.mark.parametrize(
    ("script", "with_device", "more", "says"),
    [
        ("401 Unauthorized", True, {}, {"endpoint server failed: authentication", "refuses its key"}),
        ("500 Oops", True, {}, {"endpoint server failed: server"}),
        (
            "500 Oops",
            False,
            {},
            {
                "endpoint server failed: server",
                "/v1/chat/completions: refused with 500 (InternalServerError)",
            },
        ),
        ("503 Busy", False, {"n": 2}, {"/v1/chat/completions: refused with 503 (InternalServerError)"}),
        (
            BREAKS,
            False,
            {"stream": True},
            {"endpoint server failed: connection", "refused in mid-answer, with 502 (connection_failed)"},
        ),
        ("400 Bad Request", False, {}, set()),  # the caller's mistake
    ],
    ids=["hidden 401", "hidden 500", "500", "passed through", "broken stream", "400"],
)
def test_failures_are_logged_whoever_answers(caplog, script, with_device, more, says):
    def make(**given):
        device = SimulatedEndpoint("device", SimulatedProfile(gap_s=0.001, answer_tokens=4), place="device")
        settings = {"base_url": server.base_url, "api_key": "upstream-key", "max_retries": 0, "price": (1, 2)}
        return AsyncDisco(
            local=device if with_device else None,
            policy=SERVER_FIRST,
            continuation="none",
            **settings,
            **given,
        )

    caplog.set_level("INFO", logger="disco")
    plays = scripted.answer(QUOTE.encode(), status=script) if isinstance(script, str) else script
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


def test_serving_leaves_the_garbage_collector_of_its_host_alone():
    before = gc.get_freeze_count()
    device = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=4), place="device")
    with serving(lambda **given: AsyncDisco(local=device, policy="private", **given)):
        assert gc.get_freeze_count() == before
