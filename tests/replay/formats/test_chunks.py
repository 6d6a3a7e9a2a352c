"""Writing and reading back, whole and in chunks: the same trace; memory does not grow with the file."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.replay.formats import read_chunks, read_trace, write_trace
from disco.replay.formats.trace_pieces import COLUMNS, join
from disco.replay.workload.trace import Gaps, Trace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def assert_same(one: Trace, other: Trace) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=column)
    assert (one.gaps is None) == (other.gaps is None)
    if one.gaps is not None:
        np.testing.assert_array_equal(one.gaps.offsets, other.gaps.offsets)
        np.testing.assert_array_equal(one.gaps.values_s, other.gaps.values_s)
    assert list(one.features) == list(other.features)
    for name, values in one.features.items():
        np.testing.assert_array_equal(values, other.features[name], err_msg=name)


times = st.floats(0, 250, allow_nan=False)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=5).map("w".__add__)


def column(values: st.SearchStrategy, n: int) -> st.SearchStrategy:
    return st.lists(values, min_size=n, max_size=n)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 12))
    shares = {
        "ttft_s": times,
        "device_ttft_s": times,
        "tpot_s": st.floats(0, 4),
        "confidence": st.floats(0, 1),
    }
    some = draw(st.sets(st.sampled_from(sorted(shares))))
    optional = {name: draw(column(shares[name] | st.just(np.nan), n)) for name in sorted(some)}
    gaps = None
    if draw(st.booleans()):
        lists = draw(column(st.lists(st.floats(0, 4), max_size=4), n))
        offsets = np.cumsum([0, *map(len, lists)])
        gaps = Gaps(offsets, np.array([gap for part in lists for gap in part], dtype=np.float64))
    features = {
        "client": np.array(draw(column(st.integers(-(2**62), 2**62), n))),
        "load": np.array(draw(column(st.floats(allow_nan=False, allow_infinity=False), n))),
        "team, of": np.array(draw(column(words, n))),
        "vip": np.array(draw(column(st.booleans(), n))),
    }
    return Trace.of(
        arrival_s=sorted(draw(column(st.floats(0, 1e9), n))),
        prompt_tokens=draw(column(st.integers(0, 2**53), n)),
        output_tokens=draw(column(st.integers(0, 2**53), n)),
        **optional,
        gaps=gaps,
        features={name: features[name] for name in draw(st.sets(st.sampled_from(sorted(features))))},
    )


# What Python takes for the end of a line may stand in a text.
TEAMS = {"team": np.array(["a\x85b", "c\u2028d", "e\x0b\x0c\x1cf"])}
LINE_ENDS = Trace.of(arrival_s=[1, 2, 3], prompt_tokens=[1, 2, 3], output_tokens=[1, 2, 3], features=TEAMS)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"])
@example(trace=LINE_ENDS)
@given(trace=traces())
@settings(max_examples=20)
def test_what_was_written_is_what_is_read(suffix, trace):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{suffix}"
        write_trace(trace, path)
        found, skipped = read_trace(path)
    assert not skipped
    assert_same(found, trace)


@pytest.fixture
def small_batches(monkeypatch):
    """What is read and written at once: 64 rows."""
    monkeypatch.setattr("disco.replay.formats.files.ROWS", 64)
    monkeypatch.setattr("disco.replay.formats.writer._BATCH", 64)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_chunks_are_the_trace_and_the_file_is_closed_however_reading_ends(tmp_path, suffix, small_batches):
    """Over several batches, gaps and features included; a file left open would be a warning, and here an error."""
    n, rng, path = 500, np.random.default_rng(5), tmp_path / f"x.{suffix}"
    offsets = np.concatenate([[0], rng.integers(0, 3, n).cumsum()])
    trace = Trace.of(
        arrival_s=rng.exponential(1.0, n).cumsum(),
        prompt_tokens=rng.integers(1, 100, n),
        output_tokens=rng.integers(1, 100, n),
        ttft_s=np.where(rng.random(n) < 0.3, np.nan, rng.gamma(2.0, 0.3, n)),
        gaps=Gaps(offsets, rng.gamma(2.0, 0.01, offsets[-1])),
        features={"client": rng.integers(0, 9, n), "model": np.array(["a", "bb"])[rng.integers(0, 2, n)]},
    )
    write_trace(trace, path)
    for chunk_rows in (30, 64, 150, 1000):
        chunks = list(read_chunks(path, chunk_rows=chunk_rows))
        *full, last = map(len, chunks)
        assert set(full) <= {chunk_rows}
        assert 0 < last <= chunk_rows
        assert_same(join(chunks), trace)
        assert {chunk.features["client"].dtype.kind for chunk in chunks} == {"i"}
    chunks = read_chunks(path, chunk_rows=100)
    next(chunks)
    chunks.close()
    chunks.close()
    with pytest.raises(StopIteration):
        next(chunks)


def test_times_order_and_what_is_unknown_at_first_go_on_from_chunk_to_chunk(tmp_path, small_batches):
    path = tmp_path / "x.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(header + "".join(f"{100 + i},m,5,5,10,l\n" for i in range(201)))
    assert [chunk.arrival_s[0] for chunk in read_chunks(path, chunk_rows=100)] == [0, 100, 200]
    result = {
        "ttft_s": 0.5,
        "number_input_tokens": 5,
        "number_output_tokens": 5,
        "end_to_end_latency_s": 0.75,
    }
    back_to_back = tmp_path / "x.jsonl"
    back_to_back.write_text(f"{json.dumps(result)}\n" * 201)
    assert [chunk.arrival_s[0] for chunk in read_chunks(back_to_back, chunk_rows=100)] == [0, 75, 150]

    times = [*range(64), 5, *range(64, 70)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t},1,1\n" for t in times))
    chunks = read_chunks(path, chunk_rows=64)
    assert len(next(chunks)) == 64
    with pytest.raises(ConfigurationError, match=r"line 66, column arrival_s: '5' is out of order"):
        next(chunks)
    chunks = read_chunks(path, chunk_rows=64, skip_invalid=True)
    assert sum(map(len, chunks)) == 70
    assert chunks.skipped.places == {"out of order": ("line 66",)}

    # A text feature that is empty in the first rows, and gaps that only come later.
    plain = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "error": null}\n'
    back_to_back.write_text(plain * 64 + plain.replace("null", '"x", "gaps_s": [0.5], "new": 3'))
    trace, _ = read_trace(back_to_back)
    assert trace.features["error"][[0, -1]].tolist() == ["", "x"]
    assert [trace.gaps.of(row).tolist() for row in (0, 64)] == [[], [0.5]]
    np.testing.assert_array_equal(trace.features["new"][[0, -1]], [np.nan, 3])


def test_parquet_types_that_others_write(tmp_path):
    """Small integers, categories, nulls, dates: what pandas and its friends produce."""
    columns = {
        "arrival_s": pa.array([0, 1, 2], pa.int32()),
        "prompt_tokens": pa.array([1, 2, 3], pa.uint16()),
        "output_tokens": pa.array([1.0, 2.0, 3.0], pa.float32()),
        "ttft_s": pa.array([0.5, None, 0.25], pa.float32()),
        "gaps_s": pa.array([[0.5, 0.25], None, []], pa.list_(pa.float32())),
        "model": pa.array(["a", "b", "a"]).dictionary_encode(),
        "client": pa.array([1, None, 3]),
        "at": pa.array([0, 1, 2], pa.timestamp("s")),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    trace, _ = read_trace(tmp_path / "x.parquet")
    np.testing.assert_array_equal(trace.ttft_s, [0.5, np.nan, 0.25])
    assert trace.gaps.offsets.tolist() == [0, 2, 2, 2]
    assert trace.features["model"].tolist() == ["a", "b", "a"]
    np.testing.assert_array_equal(trace.features["client"], [1, np.nan, 3])
    assert trace.features["at"].dtype.kind == "M"

    dates = pa.array([10**9, 3 * 10**9 + 100], pa.timestamp("ns"))
    azure = {"TIMESTAMP": dates, "ContextTokens": [1, 2], "GeneratedTokens": [3, 4]}
    pq.write_table(pa.table(azure), tmp_path / "azure.parquet")
    assert read_trace(tmp_path / "azure.parquet")[0].arrival_s.tolist() == [0, 2.0000001]

    # A NaN is an error, and a null is not.
    columns = {name: columns[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    columns["ttft_s"] = pa.array([0.5, None, float("nan")])
    pq.write_table(pa.table(columns), tmp_path / "nan.parquet")
    with pytest.raises(ConfigurationError, match=r"row 3, column ttft_s: nan is not a number \(NaN\)"):
        read_trace(tmp_path / "nan.parquet")
    trace, skipped = read_trace(tmp_path / "nan.parquet", skip_invalid=True)
    assert (len(trace), skipped.places) == (2, {"not a number (NaN)": ("row 3",)})


@pytest.mark.parametrize(
    ("suffix", "n", "most"), [("csv", 15_000, 1_500_000), ("parquet", 600_000, 14_000_000)]
)
def test_memory_depends_on_the_chunk_and_not_on_the_file(tmp_path, suffix, n, most, monkeypatch):
    monkeypatch.setattr("disco.replay.formats.files.ROWS", 512)
    numbers, path = np.arange(n), tmp_path / f"x.{suffix}"
    columns = {"arrival_s": numbers / 1e6, "prompt_tokens": numbers % 97, "output_tokens": numbers % 97}
    write_trace(Trace.of(**columns, ttft_s=numbers / 1e6), path)
    before, arrows, peaks, rows = pa.total_allocated_bytes(), 0, [], 0
    tracemalloc.start()
    try:
        for chunk in read_chunks(path, chunk_rows=512 if suffix == "csv" else 8_192):
            rows += len(chunk)
            arrows = max(arrows, pa.total_allocated_bytes() - before)
            peaks.append(arrows + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert rows == n
    assert peaks[-1] < most  # the whole: 30 MB of arrays, 3 MB of text
    # Half the rows of 32 bytes each, if what is read is kept.
    assert peaks[-1] - peaks[len(peaks) // 2] < min(8 * n, 600_000)
