"""Records on disk: one whole line per answer whoever writes, and never an answer that fails for it."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from defects.asking import create, device

from disco import Disco, RouteLog
from disco.errors import ConfigurationError
from disco.session.records.route_record import RouteRecord


@functools.cache
def an_answer() -> RouteRecord:
    with Disco(local=device(decode_tps=1000.0), policy="private") as client:
        return create(client).route


def record(created_s: float = 1.0, *, tokens: int = 5) -> RouteRecord:
    return replace(an_answer(), created_s=created_s, generated=tuple((i / 100, 1) for i in range(tokens)))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def times(path: Path) -> list[object]:
    return [line["created_s"] for line in lines(path)]


def test_a_record_is_on_disk_as_soon_as_it_is_written_and_what_follows_is_appended(tmp_path):
    path = tmp_path / "new" / "folders" / "routes.jsonl"
    log = RouteLog(path)
    assert not path.exists(), "nothing is made before there is something to write"
    log(record(1.0))
    assert times(path) == [1.0]
    log(record(2.0))
    assert lines(path) == [record(1.0).to_dict(timelines=True), record(2.0).to_dict(timelines=True)]
    log.close()
    with RouteLog(path, timelines=False) as other:
        other(record(3.0))
    assert lines(path)[2] == record(3.0).to_dict()
    log(record(4.0))
    log.close()
    log.close()
    assert times(path) == [1.0, 2.0, 3.0, 4.0]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "only its owner can read it"


PROCESS = """
import sys
from disco import RouteLog
class Record:
    def __init__(self, number):
        self.number = number
    def to_json(self, timelines):
        return '{"created_s": %d, "padding": "%s"}' % (self.number, "x" * 100 * (self.number % 100))
log = RouteLog(sys.argv[1])
for i in range(200):
    log(Record(int(sys.argv[2]) + i))
"""


def test_processes_that_share_a_file_do_not_mix_lines(tmp_path):
    path = tmp_path / "r.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", PROCESS, str(path), str(n)]) for n in (0, 1000)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert sorted(times(path)) == [*range(200), *range(1000, 1200)]


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"is a folder; .*routes\.jsonl"):
        RouteLog(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be made"):
        RouteLog(tmp_path / "file" / "r.jsonl")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
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
    log, write = RouteLog(tmp_path / "r.jsonl"), os.write

    def full(file, data):
        raise OSError(errno.ENOSPC, "full")

    for created_s, way in (
        (1.0, write),
        (2.0, lambda file, data: write(file, data[:40])),
        (3.0, full),
        (4.0, write),
    ):
        monkeypatch.setattr(os, "write", way)
        log(record(created_s))
    log.close()
    whole, _, last = log.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["created_s"] for line in (whole, last)] == [1.0, 4.0]
    assert log.failed == 2
