"""Writing and reading back, whole and in chunks: the same trace; memory does not grow with the file."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.replay.formats import read_chunks, read_trace, write_trace
from disco.replay.formats.columns.trace_pieces import COLUMNS, join
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
    optional = {
        name: draw(column(values | st.just(np.nan), n))
        for name, values in (
            ("ttft_s", times),
            ("device_ttft_s", times),
            ("tpot_s", st.floats(0, 4)),
            ("confidence", st.floats(0, 1)),
        )
        if draw(st.booleans())
    }
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


def long_trace(n: int = 20_000) -> Trace:
    """Over several internal batches, gaps and features included."""
    rng = np.random.default_rng(5)
    offsets = np.concatenate([[0], rng.integers(0, 3, n).cumsum()])
    return Trace.of(
        arrival_s=rng.exponential(1.0, n).cumsum(),
        prompt_tokens=rng.integers(1, 100, n),
        output_tokens=rng.integers(1, 100, n),
        ttft_s=np.where(rng.random(n) < 0.3, np.nan, rng.gamma(2.0, 0.3, n)),
        gaps=Gaps(offsets, rng.gamma(2.0, 0.01, offsets[-1])),
        features={"client": rng.integers(0, 9, n), "model": np.array(["a", "bb"])[rng.integers(0, 2, n)]},
        name="x",
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("long")
    paths = {suffix: folder / f"x.{suffix}" for suffix in ("csv", "jsonl", "parquet")}
    for path in paths.values():
        write_trace(long_trace(), path)
    return paths


@pytest.mark.parametrize(
    ("suffix", "chunk_rows"), [("csv", 7_000), ("jsonl", 7_000), ("parquet", 7_000), ("csv", 16_384), ("csv", 50_000)]
)  # fmt: skip
def test_chunks_are_the_trace(files, suffix, chunk_rows):
    chunks = list(read_chunks(files[suffix], chunk_rows=chunk_rows))
    *full, last = map(len, chunks)
    assert set(full) <= {chunk_rows}
    assert 0 < last <= chunk_rows
    assert_same(join(chunks), long_trace())
    assert {chunk.features["client"].dtype.kind for chunk in chunks} == {"i"}


BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
LLMPERF = (
    '{"ttft_s": 0.5, "number_input_tokens": 5, "number_output_tokens": 5, "end_to_end_latency_s": 0.75}\n'
)


@pytest.mark.parametrize(
    ("name", "content", "starts_at"),
    [
        ("x.csv", BURSTGPT + "".join(f"{100 + i},m,5,5,10,l\n" for i in range(18_001)), [0, 9_000, 18_000]),
        ("back-to-back.jsonl", LLMPERF * 18_001, [0, 6_750, 13_500]),
    ],
    ids=["times", "back to back"],
)
def test_times_go_on_from_chunk_to_chunk_and_begin_at_zero(tmp_path, name, content, starts_at):
    path = tmp_path / name
    path.write_text(content)
    assert [chunk.arrival_s[0] for chunk in read_chunks(path, chunk_rows=9_000)] == starts_at


def test_order_is_checked_across_borders(tmp_path):
    path = tmp_path / "x.csv"
    times = [*range(16_384), 5, *range(16_384, 16_390)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t},1,1\n" for t in times))
    chunks = read_chunks(path, chunk_rows=16_384)
    assert len(next(chunks)) == 16_384
    with pytest.raises(ConfigurationError, match=r"line 16386, column arrival_s: '5' is out of order"):
        next(chunks)
    chunks = read_chunks(path, chunk_rows=16_384, skip_invalid=True)
    assert sum(map(len, chunks)) == 16_390
    assert chunks.skipped.places == {"out of order": ("line 16386",)}


def test_what_is_unknown_at_first_may_be_known_later(tmp_path):
    """A text feature that is empty in the first 16,384 rows, and gaps that only come later."""
    path = tmp_path / "x.jsonl"
    plain = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "error": null}\n'
    path.write_text(plain * 16_384 + plain.replace("null", '"x", "gaps_s": [0.5], "new": 3'))
    trace, _ = read_trace(path)
    assert trace.features["error"][[0, -1]].tolist() == ["", "x"]
    assert [trace.gaps.of(row).tolist() for row in (0, 16_384)] == [[], [0.5]]
    np.testing.assert_array_equal(trace.features["new"][[0, -1]], [np.nan, 3])


def test_the_file_is_closed_however_reading_ends(files):
    """A file left open would be a warning, and here an error."""
    for path in files.values():
        chunks = read_chunks(path, chunk_rows=100)
        next(chunks)
        chunks.close()
        chunks.close()
        with pytest.raises(StopIteration):
            next(chunks)


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


@pytest.mark.parametrize(("suffix", "n"), [("csv", 70_000), ("parquet", 600_000)])
def test_memory_depends_on_the_chunk_and_not_on_the_file(tmp_path, suffix, n):
    numbers, path = np.arange(n), tmp_path / f"x.{suffix}"
    columns = {"arrival_s": numbers / 1e6, "prompt_tokens": numbers % 97, "output_tokens": numbers % 97}
    write_trace(Trace.of(**columns, ttft_s=numbers / 1e6), path)
    before, arrows, peaks, rows = pa.total_allocated_bytes(), 0, [], 0
    tracemalloc.start()
    try:
        for chunk in read_chunks(path, chunk_rows=8_192):
            rows += len(chunk)
            arrows = max(arrows, pa.total_allocated_bytes() - before)
            peaks.append(arrows + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert rows == n
    assert peaks[-1] < 14_000_000  # the whole: 30 MB, of arrays or of text
    assert peaks[-1] - peaks[len(peaks) // 2] < 600_000  # 32 bytes a row if what is read is kept: 1.1 MB
