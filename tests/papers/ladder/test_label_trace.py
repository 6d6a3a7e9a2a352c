"""Traces of label scores: what is written is read back, and a damaged file is named with its line."""

import gzip

import numpy as np
import pytest
from papers.ladder.label_trace import LabelTrace, TraceTier, load_label_trace, save_label_trace

from disco.errors import ConfigurationError

TIERS = (TraceTier("lr", 8.0, 1e-5, 5e3, "logistic regression"), TraceTier("lm", 8.0, 0.2, 3e10))


def made(rows=5, seed=0):
    rng = np.random.default_rng(seed)
    return LabelTrace(
        name="made",
        source="a random generator",
        licence="none",
        labels=("bad", "good"),
        tiers=TIERS,
        gold=rng.integers(0, 2, rows),
        text_bytes=rng.integers(1, 300, rows),
        scores=rng.normal(size=(rows, 2, 2)),
        notes={"seed": "0"},
    )


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_trace_is_read_back_as_it_was_written(tmp_path, name, rows):
    trace, path = made(rows), tmp_path / name
    save_label_trace(trace, path)
    read = load_label_trace(path)
    assert (read.name, read.labels, read.tiers, read.notes) == ("made", ("bad", "good"), TIERS, {"seed": "0"})
    assert read.gold.tolist() == trace.gold.tolist()
    assert read.text_bytes.tolist() == trace.text_bytes.tolist()
    np.testing.assert_allclose(read.scores, trace.scores, atol=5.1e-5)
    again = tmp_path / f"again-{name}"
    save_label_trace(read, again)
    assert again.read_bytes() == path.read_bytes()
    assert read.tier("lm") == 1


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda lines: ["gold,text_bytes", *lines[1:]], "line 1"),
        (lambda lines: [lines[0].replace('"labels"', '"label"'), *lines[1:]], "'labels' is missing"),
        (lambda lines: [lines[0], "a,b", *lines[2:]], "line 2"),
        (lambda lines: [*lines[:3], "0,1,2", *lines[4:]], "line 4"),
        (lambda lines: [*lines[:4], lines[4].replace(".", "x", 1), *lines[5:]], "line 5"),
        (lambda lines: [*lines[:4], "7" + lines[4][1:], *lines[5:]], "line 5.*from 0 to 1"),
        (lambda lines: [*lines[:3], "0,9,nan,1,1,1", *lines[4:]], "line 4.*not finite"),
    ],
)
def test_a_damaged_trace_is_named_with_the_line(tmp_path, broken, says):
    path = tmp_path / "trace.csv"
    save_label_trace(made(), path)
    path.write_text("\n".join(broken(path.read_text().splitlines())))
    with pytest.raises(ConfigurationError, match=says) as raised:
        load_label_trace(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path):
    path = tmp_path / "trace.csv.gz"
    save_label_trace(made(), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match="cut off"):
        load_label_trace(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ConfigurationError, match="not its header"):
        load_label_trace(path)
    with pytest.raises(ConfigurationError, match="no file"):
        load_label_trace(tmp_path / "none.csv")
