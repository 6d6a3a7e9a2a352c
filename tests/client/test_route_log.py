"""Records on disk: one whole line per answer whoever writes, and never an answer that fails for it."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import disco
from disco import AsyncDisco, RouteLog
from disco.cost import Ledger, Rates
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind
from disco.session.records.route_record import CandidateRecord, LatencyRecord, RouteRecord

ROOT = Path(__file__).parent.parent.parent
CANARY = "canary-7f3a"


def record(created_s: float = 1.0, *, tokens: int = 5) -> RouteRecord:
    timeline = tuple((i / 100, 1) for i in range(tokens))
    return RouteRecord(
        created_s=created_s,
        preset="test",
        finish_reason="stop",
        prompt_tokens=3,
        answer_tokens=tokens,
        max_tokens=None,
        endpoints=(CandidateRecord("device", "device", 1e-9, 1e-9, 0.0, continues=True),),
        starts=(("device", 0.0),),
        attempts=(),
        segments=(),
        migrations=(),
        pace=LatencyRecord(0.0, 0.0, 0.01, 0.01, 0.01, 0.01, 0, None),
        ledger=Ledger({"device": Rates(1e-9, 1e-9)}),
        duration_s=0.1,
        generated=timeline,
        released=timeline,
    )


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def times(path: Path) -> list[object]:
    """Which records are there: `record` tells them apart by their time."""
    return [line["created_s"] for line in lines(path)]


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
    log = RouteLog(tmp_path / "new" / "folders" / "routes.jsonl")
    assert not log.path.exists(), "nothing is made before there is something to write"
    log(record(1.0))
    assert times(log.path) == [1.0]
    log(record(2.0))
    assert times(log.path) == [1.0, 2.0]
    assert lines(log.path)[0] == record(1.0).to_dict(timelines=True)
    log.close()


def test_timelines_can_be_left_out(tmp_path):
    with RouteLog(tmp_path / "r.jsonl", timelines=False) as log:
        log(record())
    assert lines(log.path) == [record().to_dict()]


def test_it_appends_and_goes_on_after_close(tmp_path):
    path = tmp_path / "r.jsonl"
    for created_s in (1.0, 2.0):
        with RouteLog(path) as log:
            log(record(created_s))
    log(record(3.0))
    log.close()
    log.close()
    assert times(path) == [1.0, 2.0, 3.0]


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
def test_only_its_owner_can_read_it(tmp_path):
    with RouteLog(tmp_path / "r.jsonl") as log:
        log(record())
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_threads_and_logs_that_share_a_file_do_not_mix_lines(tmp_path):
    path = tmp_path / "r.jsonl"
    logs = [RouteLog(path) for _ in range(3)]

    def write(thread: int) -> None:
        for i in range(50):
            logs[thread % 3](record(thread * 100 + i, tokens=1 + i * 13))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    seen = times(path)
    assert sorted(seen) == sorted(n * 100 + i for n in range(6) for i in range(50))
    for n in range(6):
        mine = [c for c in seen if n * 100 <= c < n * 100 + 50]
        assert mine == sorted(mine)


PROCESS = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_route_log import RouteLog, record
log = RouteLog(sys.argv[3])
for i in range(100):
    log(record(int(sys.argv[4]) + i, tokens=1 + i * 13))
"""


def test_processes_that_share_a_file_do_not_mix_lines(tmp_path):
    path = tmp_path / "r.jsonl"
    where = [str(ROOT), str(Path(__file__).parent), str(path)]
    writers = [subprocess.Popen([sys.executable, "-c", PROCESS, *where, str(n)]) for n in (0, 1000)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    seen = sorted(times(path))
    assert seen == [*range(100), *range(1000, 1100)]


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"is a folder; .*routes\.jsonl"):
        RouteLog(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be made"):
        RouteLog(tmp_path / "file" / "r.jsonl")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="no permission"):
        RouteLog(tmp_path / "r.jsonl")


def test_permission_is_asked_for_before_the_first_record(tmp_path, monkeypatch):
    """The same, for the root user whom the test above has to leave out."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigurationError, match="no permission"):
        RouteLog(tmp_path / "r.jsonl")


def test_what_cannot_be_written_is_said_once_and_never_raised(tmp_path, caplog):
    log = RouteLog(tmp_path / "r.jsonl")
    log.path.mkdir()  # after the check: the disk may change at any time
    with caplog.at_level(logging.WARNING, logger="disco"):
        for _ in range(3):
            log(record())
    assert log.failed == 3
    (said,) = caplog.messages
    assert "r.jsonl" in said
    assert "directory" in said
    log.path.rmdir()
    log(record(4.0))
    log.close()
    assert times(log.path) == [4.0]


def test_a_disk_that_was_full_leaves_one_broken_line(tmp_path, monkeypatch):
    log = RouteLog(tmp_path / "r.jsonl")
    log(record(1.0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:40]))
    log(record(2.0))
    monkeypatch.setattr(os, "write", lambda file, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    log(record(3.0))
    monkeypatch.setattr(os, "write", write)
    log(record(4.0))
    log.close()
    found = log.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["created_s"] for line in (found[0], found[2])] == [1.0, 4.0]
    assert len(found) == 3
    assert log.failed == 2


# ---------------------------------------------------------------------- behind a client


def ask(**more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": f"What is {CANARY}?"}]
    return {"model": "m", "messages": messages, "stream": True, **more}


def simulated(**more: object) -> SimulatedEndpoint:
    profile = {"ttft_s": 0.01, "decode_tps": 1000.0, "answer": f"It is {CANARY}. " * 4, **more}
    return SimulatedEndpoint("device", SimulatedProfile(**profile), place="device")


@pytest.mark.real
@pytest.mark.anyio
async def test_prompts_answers_and_keys_are_not_in_it(tmp_path):
    with RouteLog(tmp_path / "r.jsonl") as log:
        async with AsyncDisco(local=simulated(), policy="private", api_key=CANARY, on_route=log) as client:
            stream = await client.chat.completions.create(**ask())
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            assert CANARY in text
            answer = await client.chat.completions.create(**ask(stream=False, user=CANARY))
            assert CANARY in answer.choices[0].message.content
            async with await client.chat.completions.create(**ask()) as left_early:
                await anext(aiter(left_early))
    written = log.path.read_text(encoding="utf-8")
    assert CANARY not in written
    assert len(lines(log.path)) == 3
    assert min(times(log.path)) > 1.6e9
    assert lines(log.path)[0]["generated"]


@pytest.mark.anyio
async def test_an_answer_that_fails_is_recorded_without_its_error(tmp_path):
    dying = simulated(fault=Fault(3, kind=FailureKind.CRASHED))
    with RouteLog(tmp_path / "r.jsonl") as log:
        async with AsyncDisco(local=dying, policy="private", max_retries=0, on_route=log) as client:
            with pytest.raises(disco.LocalModelError):
                await client.chat.completions.create(**ask(stream=False))
    (written,) = lines(log.path)
    assert written["finish_reason"] is None
    assert written["attempts"][0]["failure"] == "crashed"
    assert CANARY not in json.dumps(written)


@pytest.mark.anyio
async def test_an_answer_does_not_fail_because_it_cannot_be_recorded(tmp_path, caplog):
    log = RouteLog(tmp_path / "r.jsonl")
    log.path.mkdir()
    async with AsyncDisco(local=simulated(), policy="private", on_route=log) as client:
        for _ in range(2):
            stream = await client.chat.completions.create(**ask())
            assert [chunk async for chunk in stream]
            assert stream.route.finish_reason == "stop"
    assert log.failed == 2
    assert CANARY not in caplog.text
