"""Which files count as announcements of running servers of this user, and which are left alone."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from attached.made import announcement, written
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.attached.announcement import Announcement, announce, live_announcements, serve_folder
from disco.endpoints.attached.process_identity import is_running, process_start

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")


def test_it_is_for_its_user_only_and_the_newest_of_a_server_counts(folder):
    first, second = announcement(), announcement()
    assert announce(first, folder) == announce(second, folder)
    assert live_announcements(folder) == [second]
    (file,) = folder.iterdir()  # no draft is left
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert second.key not in repr(second) + str(second)


@posix
@pytest.mark.parametrize("how", ["readable", "folder", "link", "linked folder", "pipe", "owner"])
def test_what_others_could_have_written_does_not_count(folder, how, tmp_path):
    file = written(folder, announcement())
    assert len(live_announcements(folder)) == 1
    asked = folder
    if how == "readable":
        file.chmod(0o640)
    elif how == "folder":
        folder.chmod(0o711)
    elif how == "link":
        file.symlink_to(file.rename(tmp_path / "elsewhere.json"))
    elif how == "linked folder":
        asked = tmp_path / "link"
        asked.symlink_to(folder)
    elif how == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)
    elif os.getuid() == 0:
        os.chown(file, 12345, -1)
    else:
        pytest.skip("only root can give a file away")
    assert live_announcements(asked) == []


def test_a_folder_that_is_open_to_others_is_not_used(folder, caplog):
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert announce(announcement(), folder) is None
    assert "cannot be used" in caplog.text
    assert list(folder.iterdir()) == []


def test_a_disk_that_is_full_costs_a_warning_and_leaves_nothing(folder, caplog, monkeypatch):
    def full(path, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    assert announce(announcement(), folder) is None
    assert "No space left" in caplog.text
    assert list(folder.iterdir()) == []


@posix
@pytest.mark.parametrize("how", ["as it is", "open folder", "a file", "gone", "foreign"])
def test_a_socket_counts_only_in_a_folder_that_nobody_else_can_open(folder, how):
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place, socket.socket(socket.AF_UNIX) as one:
        path = Path(place) / "s.sock"
        one.bind(str(path))
        written(folder, announcement(socket=str(path), port=None))
        if how == "open folder":
            path.parent.chmod(0o711)
        elif how in ("a file", "gone"):
            path.unlink()
            if how == "a file":
                path.write_text("")
        elif how == "foreign":
            if os.getuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(place, 12345, -1)
        assert len(live_announcements(folder)) == (how == "as it is")


@pytest.mark.parametrize("name", ["1", "on", "TRUE", "auto"])
def test_a_word_that_means_on_is_not_taken_for_a_folder(monkeypatch, name):
    monkeypatch.setenv("DISCO_ATTACH", name)
    assert serve_folder().parts[-2:] == ("disco", "serve")


def test_a_process_that_has_ended_is_not_announced_and_swept_away_by_the_next(folder):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = process_start(process.pid)
        file = written(folder, announcement(pid=process.pid, process_start=start))
        assert len(live_announcements(folder)) == 1
        process.stdin.close()
        os.waitid(
            os.P_PID, process.pid, os.WEXITED | os.WNOWAIT
        )  # it is a zombie: its parent has not noticed
        assert live_announcements(folder) == []
        mine = announcement(serve_port=10)
        announce(mine, folder)
        assert not file.exists()
        assert live_announcements(folder) == [mine]


def test_an_id_that_is_used_again_is_another_process():
    pid = os.getpid()
    assert is_running(pid, process_start(pid))
    assert not is_running(pid, process_start(pid) + "0")
    assert is_running(pid, None)  # nothing is known: the connection decides


def test_the_server_that_has_served_longest_comes_first(folder):
    for number, started_s in enumerate((30.0, 10.0, 20.0)):
        written(folder, announcement(started_s=started_s), f"{number}.json")
    assert [one.started_s for one in live_announcements(folder)] == [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 1},
        {"socket": "/tmp/s.sock"},  # beside a port
        {"port": None},
        {"port": None, "socket": "s.sock"},  # of any folder
        {"program": "other"},
        {"key": "abc"},
        {"port": 0},
        {"pid": -1},
        {"model": {}},
    ],
    ids=str,
)
def test_what_is_not_quite_an_announcement_is_left_alone(folder, wrong):
    written(folder, json.dumps(announcement().model_dump(mode="json") | wrong))
    assert live_announcements(folder) == []


@settings(max_examples=20)
@given(content=st.one_of(st.binary(max_size=200), st.integers(0, 400)))
def test_half_a_file_or_rubbish_is_left_alone(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rubbish")
    folder.chmod(0o700)
    whole = announcement().model_dump_json().encode()
    file = written(folder, "")
    file.write_bytes(whole[:content] if isinstance(content, int) else content)
    expected = 1 if isinstance(content, int) and content >= len(whole) else 0
    assert len(live_announcements(folder)) == expected


def test_it_is_switched_off_by_the_environment(monkeypatch):
    monkeypatch.setenv("DISCO_ATTACH", "off")
    assert serve_folder() is None
    monkeypatch.delenv("DISCO_ATTACH")
    assert serve_folder().parts[-2:] == ("disco", "serve")


def test_the_file_says_it_all():
    one = announcement()
    assert Announcement.model_validate_json(one.model_dump_json()) == one
