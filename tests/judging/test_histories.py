"""Histories by task and model, and the file that keeps them: numbers only, and no file costs an answer."""

from __future__ import annotations

import json
import logging
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.judging import (
    MOST_TASKS,
    FileStore,
    HistoryKey,
    JudgeBook,
    LabelPrior,
    StoredHistory,
    class_confidence,
)

KEY = HistoryKey("triage", "device/smol", "weakest")
CLASSES = HistoryKey("triage", "device/smol", "class")


def test_a_book_goes_on_where_the_last_one_ended(tmp_path):
    path = tmp_path / "folder" / "histories.json"
    store = FileStore(path)
    book = JudgeBook(store)
    for number in range(120):
        book.history(KEY, 100).push(number / 7)
        book.history(CLASSES, 100).push(0.5)
        book.prior(CLASSES, ("ham", "spam"), 100).push((number, -number))
        if changed := book.unsaved(often=True):
            assert number >= 49, "two histories have a hundred new scores then"
            store.save(changed)
    assert path.exists(), "it is saved on the way"
    store.save(book.unsaved())
    assert book.unsaved() == {}
    again = JudgeBook(FileStore(path))
    history, prior = again.history(KEY, 100), again.prior(CLASSES, ("ham", "spam"), 100)
    assert list(history) == [number / 7 for number in range(20, 120)]
    assert history.seen == 120
    assert list(prior) == list(book.prior(CLASSES, ("ham", "spam"), 100))
    assert len(again.prior(CLASSES, ("eggs", "spam"), 100)) == 0, "the task has other classes now"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(path.read_text()) <= set(
        '{}[]",:.-+e0123456789 versionhistoriestaskmodelkindseenscoreslabelsrgdcmw/'
    )


BROKEN = {
    "empty": "",
    "no json": "{",
    "another version": '{"version": 9, "histories": []}',
    "no histories": "[1, 2]",
    "a score that is no number": json.dumps(
        {"version": 1, "histories": [{"task": "a", "model": "b", "kind": "c", "seen": 1, "scores": ["x"]}]}
    ),
    "an infinite score": '{"version": 1, "histories": [{"task": "a", "model": "b", "kind": "c", "seen": 1, '
    '"scores": [1e999]}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_read_costs_a_warning(tmp_path, caplog, content):
    path = tmp_path / "histories.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING, "disco"):
        store = FileStore(path)
        assert len(JudgeBook(store).history(KEY, 10)) == 0
        store.save({KEY: StoredHistory((0.5,), 1)})
    assert str(path) in caplog.text
    assert path.read_text() == content, "it may be a file of the user's that is something else"


def test_a_file_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    name = "n" * 250  # with the ending of the new file, longer than a file's name may be
    with caplog.at_level(logging.WARNING, "disco"):
        FileStore(tmp_path / name).save({KEY: StoredHistory((0.5,), 1)})
    assert f"could not be written to {tmp_path / name} (File name too long)" in caplog.text


def test_clients_with_one_file_keep_each_others_histories(tmp_path):
    path = tmp_path / "histories.json"

    def save(name: str) -> None:
        store = FileStore(path)
        for n in range(20):
            store.save({HistoryKey(name, "m", "sum"): StoredHistory((float(n),) * 50, n)})

    threads = [threading.Thread(target=save, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = StoredHistory((19.0,) * 50, 19)
    assert FileStore(path).load() == {HistoryKey(name, "m", "sum"): last for name in "abcd"}
    assert [path.name for path in tmp_path.iterdir()] == ["histories.json"]


def test_a_task_for_each_request_is_refused():
    book = JudgeBook()
    for number in range(MOST_TASKS):
        book.history(HistoryKey(f"task{number}", "m", "sum"), 10)
    book.history(HistoryKey("task0", "another model", "sum"), 10)
    with pytest.raises(ValueError, match=r"256 tasks already.*'one-more'"):
        book.history(HistoryKey("one-more", "m", "sum"), 10)


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0), st.floats(-50, 0)), min_size=1, max_size=30))
def test_a_prior_takes_off_what_does_not_depend_on_the_text(rows):
    """A constant that a model adds to one label changes nothing once every score of the window has it."""
    plain, biased = LabelPrior(3, 4), LabelPrior(3, 4)
    for row in rows:
        plain.push(row)
        biased.push((row[0] + 7.0, row[1], row[2] - 2.0))
    one, other = (
        plain.removed_from(rows[-1]),
        biased.removed_from((rows[-1][0] + 7.0, rows[-1][1], rows[-1][2] - 2.0)),
    )
    assert class_confidence(one) == pytest.approx(class_confidence(other), abs=1e-9)
