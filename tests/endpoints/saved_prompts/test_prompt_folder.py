"""The folder of saved prompts: whole files or none, bounded, and no file that is not its own is touched."""

from __future__ import annotations

import multiprocessing
import os
import stat
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import disco
from disco.endpoints.saved_prompts import PromptCache, forget_saved_prompts, saved_prompts
from disco.endpoints.saved_prompts.prompt_cache import default_folder
from disco.endpoints.saved_prompts.prompt_file import (
    PromptHead,
    UnusableFileError,
    read_all,
    read_head,
    write_file,
)
from disco.endpoints.saved_prompts.prompt_folder import PromptFolder
from disco.errors import ConfigurationError

MODEL, OTHER = bytes(range(16)), bytes(16)


def head_of(ids, path=Path(), model=MODEL):
    return PromptHead(path, model, "leading", array("i", ids), 0, 0.25, 1e9, 0)


def folder_at(path, model=MODEL, warnings=None, **bounds):
    warnings = [] if warnings is None else warnings
    return PromptFolder(PromptCache(folder=path, **bounds), model, warnings.append)


def add(folder, ids, state=b"state", keeps_going=lambda: True):
    return folder.add(head_of(ids), memoryview(state), keeps_going=keeps_going)


@given(
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
    state=st.binary(min_size=1, max_size=300),
    at=st.integers(0, 10_000),
    flip=st.integers(1, 255),
    cut=st.integers(1, 10_000),
)
def test_what_was_written_is_read_and_any_damage_is_found(tmp_path_factory, ids, state, at, flip, cut):
    path = tmp_path_factory.mktemp("one") / "x.kv"
    assert write_file(head_of(ids, path), memoryview(state), keeps_going=lambda: True)
    head = read_head(path)
    assert (list(head.ids), head.model, head.kind, head.read_s, head.saved_at) == (
        ids,
        MODEL,
        "leading",
        0.25,
        1e9,
    )
    assert read_all(path) == (head, state)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[at % len(whole)] ^= flip
    for damaged in (
        bytes(changed),
        whole[: -(cut % len(whole)) or len(whole)][: len(whole) - 1],
        whole + b"x",
    ):
        path.write_bytes(damaged)
        with pytest.raises(UnusableFileError):
            read_all(path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_the_user_may_read_it(tmp_path):
    folder = folder_at(tmp_path / "a" / "prompts")
    assert add(folder, [1, 2, 3])
    (file,) = (tmp_path / "a" / "prompts").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@given(
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=30),
    most=st.integers(200, 3000),
    entries=st.integers(1, 6),
)
def test_it_is_bounded_and_the_newest_stays(tmp_path_factory, sizes, most, entries):
    path = tmp_path_factory.mktemp("bounded")
    folder, total = folder_at(path, max_bytes=most, max_entries=entries), 0
    for number, size in enumerate(sizes):
        is_saved = add(folder, [number], bytes(size))
        files = [(one.stat().st_size, one.name) for one in path.iterdir()]
        total = sum(size for size, _ in files)
        assert total <= most
        assert len(files) <= entries
        assert is_saved == (size + 4 + 128 <= most)
        assert not is_saved or [number] in [list(head.ids) for head in folder.heads()]


def test_what_was_used_last_stays(tmp_path):
    folder = folder_at(tmp_path, max_entries=2)
    add(folder, [1])
    add(folder, [2])
    for number, head in enumerate(sorted(folder.heads(), key=lambda one: list(one.ids))):
        os.utime(head.path, (number, number))
    folder.used(next(head for head in folder.heads() if list(head.ids) == [1]))
    add(folder, [3])
    assert sorted(list(head.ids) for head in folder.heads()) == [[1], [3]]


def test_a_file_that_cannot_be_used_costs_one_warning_and_only_a_damaged_one_is_deleted(tmp_path):
    warnings = []
    folder = folder_at(tmp_path, warnings=warnings)
    for number in range(4):
        add(folder, [number] * 10)
    damaged, cut, later, foreign = sorted(tmp_path.iterdir())
    data = bytearray(damaged.read_bytes())
    data[20] ^= 1
    damaged.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-1])
    data = bytearray(later.read_bytes())
    data[8] = 2
    later.write_bytes(data)
    foreign.write_bytes(b"a shopping list")
    apart = tmp_path / "notes.txt"
    apart.write_text("mine")
    renamed = tmp_path / f"{MODEL.hex()[:16]}-{'0' * 24}.kv"
    add(folder_at(tmp_path / "elsewhere", OTHER), [7])
    renamed.write_bytes(next((tmp_path / "elsewhere").iterdir()).read_bytes())
    fresh = folder_at(tmp_path, warnings=warnings)
    assert (fresh.heads(), fresh.heads()) == ([], [])
    assert len(warnings) == 5
    for path, says in (
        (damaged, "damaged"),
        (cut, "damaged"),
        (later, "Update disco"),
        (foreign, "left alone"),
    ):
        (told,) = [line for line in warnings if str(path) in line]
        assert says in told
    left = {path for path in tmp_path.iterdir() if path.is_file()}
    assert left == {later, foreign, renamed, apart}
    assert [(one.tokens, one.saved_at) for one in saved_prompts(tmp_path)].count((None, None)) == 2
    assert forget_saved_prompts(tmp_path) == 3
    assert [path for path in tmp_path.iterdir() if path.is_file()] == [apart]


@pytest.mark.parametrize(
    ("ids", "state", "numbers"),
    [
        ([], b"state", {}),
        ([1], b"", {}),
        ([1], b"state", {"read_s": float("nan")}),
        ([1], b"state", {"read_s": -1.0}),
        ([1], b"state", {"saved_at": float("inf")}),
    ],
)
def test_numbers_that_disco_never_writes_are_damage_whatever_the_checksums_say(tmp_path, ids, state, numbers):
    path = tmp_path / "x.kv"
    write_file(replace(head_of(ids, path), **numbers), memoryview(state), keeps_going=lambda: True)
    for read in (read_head, read_all):
        with pytest.raises(UnusableFileError, match="damaged"):
            read(path)


def test_a_file_that_is_longer_than_all_may_be_is_not_read(tmp_path):
    """It may say that it is a terabyte long, and have no block on the disk."""
    warnings = []
    add(folder_at(tmp_path, warnings=warnings), [1], bytes(1000))
    assert len(folder_at(tmp_path).heads()) == 1
    assert folder_at(tmp_path, max_bytes=500, warnings=warnings).heads() == []
    assert warnings == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX owners and permissions")
@pytest.mark.parametrize(
    "how", ["open", "owner", "link", "link at the last moment", "pipe at the last moment"]
)
def test_what_another_user_could_have_written_is_not_used(tmp_path, how):
    """Where the folder is one that others may write to: llama.cpp would read their state in C++."""
    folder = folder_at(tmp_path / "prompts")
    add(folder, [1, 2, 3])
    (head,) = folder.heads()
    if how == "open":
        head.path.chmod(0o666)
    elif "link" in how:
        head.path.symlink_to(head.path.rename(tmp_path / "elsewhere"))
    elif "pipe" in how:
        head.path.unlink()
        os.mkfifo(head.path, 0o600)
    elif os.getuid() == 0:
        os.chown(head.path, 12345, -1)
    else:
        pytest.skip("only root can give a file away")
    if "last moment" not in how:
        assert folder_at(tmp_path / "prompts").heads() == []
    assert len(saved_prompts(tmp_path / "prompts")) == (how == "open")  # the user may still delete it
    assert folder.read(head) is None
    assert head.path.lstat()  # it is left alone


def test_a_folder_that_another_process_makes_at_this_moment_is_used(tmp_path, monkeypatch):
    exists, warnings = Path.exists, []
    folder = folder_at(tmp_path, warnings=warnings)
    monkeypatch.setattr(Path, "exists", lambda path: path != tmp_path and exists(path))
    assert add(folder, [1])
    assert warnings == []


def test_a_saving_that_is_broken_off_or_cannot_be_leaves_nothing(tmp_path, monkeypatch):
    warnings = []
    folder = folder_at(tmp_path, warnings=warnings)
    assert not add(folder, [1], bytes(100), keeps_going=lambda: False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f".{'0' * 16}-{'1' * 24}.{'2' * 12}.part").touch()
    os.utime(tmp_path / f".{'0' * 16}-{'1' * 24}.{'2' * 12}.part", (0, 0))  # of a process that was killed
    assert add(folder, [1])
    assert [path.suffix for path in tmp_path.iterdir()] == [".kv"]
    barred = tmp_path / "barred"
    barred.touch()
    unwritable = PromptFolder(PromptCache(folder=tmp_path / "later"), MODEL, warnings.append)
    unwritable.path = barred / "x"
    assert not add(unwritable, [2])
    assert not add(unwritable, [2])
    (told,) = warnings
    assert str(barred) in told
    assert "name another one" in told


def test_the_list_says_how_much_and_not_what(tmp_path):
    assert saved_prompts(tmp_path / "none") == []
    assert forget_saved_prompts(tmp_path / "none") == 0
    add(folder_at(tmp_path), [11, 12, 13], bytes(50))
    (one,) = saved_prompts(tmp_path)
    assert (one.tokens, one.model, one.saved_at) == (3, MODEL.hex()[:16], 1e9)
    assert one.size_bytes == next(tmp_path.iterdir()).stat().st_size
    assert "11" not in repr(head_of([11, 12])).partition("read_s")[0].replace(MODEL.hex(), "")


def test_what_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for wrong in ({"max_bytes": 0}, {"max_entries": True}, {"folder": ""}, {"folder": tmp_path / "file"}):
        with pytest.raises(ConfigurationError, match="prompt_cache"):
            PromptCache(**wrong)
    with pytest.raises(ConfigurationError, match=r"disco\.PromptCache"):
        PromptCache.of(3)
    assert PromptCache.of(False) is PromptCache.of(None) is None
    assert PromptCache.of(True) == disco.PromptCache()
    assert PromptCache.of(True).path == default_folder()
    assert PromptCache.of(tmp_path).path == tmp_path
    for client in (disco.AsyncDisco, disco.Disco):
        with pytest.raises(ConfigurationError, match="for a local model, but none"):
            client(api_key="k", prompt_cache=True)
        with pytest.raises(ConfigurationError, match="a cache of its own"):
            client(local="http://localhost:1/v1#m", prompt_cache=True)


def _fill(path, first, barrier):
    warnings = []
    folder = folder_at(Path(path), warnings=warnings, max_bytes=20_000, max_entries=8)
    barrier.wait()
    for number in range(60):
        add(folder, [first + number % 12, *range(number % 5)], bytes([number]) * 1500)
        for head in folder.heads():
            state = folder.read(head)
            assert state is None or len(set(state)) == 1  # never half of one and half of another
            folder.used(head)
    assert warnings == []


@pytest.mark.real
def test_two_processes_share_a_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    both = [context.Process(target=_fill, args=(str(tmp_path), first, barrier)) for first in (0, 6)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    files = list(tmp_path.iterdir())
    assert sum(file.stat().st_size for file in files) <= 20_000
    assert {file.suffix for file in files} == {".kv"}
    assert len(saved_prompts(tmp_path)) == len(files) <= 8
