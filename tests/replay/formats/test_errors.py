"""A file that cannot be read says where, what, and what to do."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sys
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.replay.formats import read_chunks, read_trace, write_trace
from disco.replay.formats.sources import text_files
from disco.replay.formats.trace_pieces import COLUMNS
from disco.replay.workload.trace import Trace

HEADER = "arrival_s,prompt_tokens,output_tokens"
TTFT = f"{HEADER},ttft_s"
ONE = Trace.of(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1])


def message(path, **options) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_trace(path, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        ("1,1,1,nan", "ttft_s", "nan' is not a number (NaN); leave the cell empty"),
        ("1,1,1,abc", "ttft_s", "'abc' is not a number; write"),
        ("1,1,1,-0.5", "ttft_s", "'-0.5' is negative"),
        (",1,1,0.5", "arrival_s", "missing value; every request needs this value"),
        ("1,1.5,1,0.5", "prompt_tokens", "'1.5' is not a whole number"),
        ("1,1," + "9" * 5000 + ",0.5", "output_tokens", "a text of 5000 characters is not finite"),
        ("1,1,my deepest secret that nobody must ever read,1", "output_tokens", "a text of 44 characters is not a"),
        ("1,1,1", None, "wrong number of cells; the row has 3 cells and the header 4"),
        ("0.25,1,1,0.5", "arrival_s", "'0.25' is out of order; this row is earlier than a row above it; sort the file"),
    ],
    ids=lambda value: value[:30] if value else "row",
)  # fmt: skip
def test_a_bad_row_is_named_with_line_column_value_and_remedy(file, row, column, said):
    path = file("x.csv", f"{TTFT}\n0,1,1,0.5\n\n0.5,1,1,0.5\n{row}\n9,1,1,0.5\n")
    text = message(path)
    assert text.startswith(f"{path}, line 5" + (f", column {column}: " if column else ": "))
    assert said in text
    assert "--skip-invalid" in text
    assert "secret" not in text
    trace, skipped = read_trace(path, skip_invalid=True)
    assert trace.arrival_s.tolist() == [0, 0.5, 9]
    assert list(skipped.places.values()) == [("line 5",)]


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n"
GAPS = f"{HEADER},gaps_s\n0,1,1,0.5\n"
GOOD = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "ttft_s": 0.5}\n'
BENCHMARK = {"ttft_s": 0.5, "number_input_tokens": 5, "number_output_tokens": 5, "end_to_end_latency_s": 1.0}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        # Quoted cells hold line breaks; a row is where it begins.
        ("x.csv", f'{TTFT},note\n0,1,1,1,"a\nb\r\nc"\n\n1,1,x,1,"d\ne"\n', ", line 6, column output_tokens"),
        # Vendors' columns as in the file.
        ("x.csv", f"{BURST}1,m,1,2,3,l\n5,m,x,2,3,l\n", "column Request tokens: 'x' is not a number"),
        ("x.csv", f"{AZURE}16.11.2023 18:15,1,1\n", "line 3, column TIMESTAMP: '16.11.2023 18:15' is not a date"),
        ("x.csv", f"{HEADER},confidence\n0,1,1,1\n0,1,1,1.5\n", "column confidence: '1.5' is above 1"),
        *[("x.csv", f"{GAPS}1,1,1,{gaps}\n", "line 3, column gaps_s: ") for gaps in ("0;-0.2", "0;x", "0;nan", "0;;1")],
        ("x.jsonl", GOOD + '{"arrival_s": 1, "prompt_to', "line 2: this is not JSON; a program that was killed may"),
        ("x.jsonl", GOOD + GOOD.replace("0.5", "9" * 5000), "line 2: a number with too many digits; write"),
        ("x.jsonl", GOOD + "[" * 100_000, "line 2: nested too deep"),
        ("x.json", json.dumps([BENCHMARK, {**BENCHMARK, "end_to_end_latency_s": "soon"}]), "entry 2, column end_to"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_of_any_format(file, name, content, said):
    path = file(name, content)
    assert said in message(path)
    assert len(read_trace(path, skip_invalid=True)[0]) >= 1


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.sampled_from([-1, 2**63, 10**400, -(10**4200)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
OURS = [*COLUMNS, "gaps_s", "client", "ttft_over_s"]


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from(OURS), anything, max_size=3), min_size=1, max_size=3),
    st.booleans(),
)
def test_whatever_stands_in_json_is_a_trace_or_an_error_that_says_so(tmp_path_factory, rows, skip_invalid):
    path = tmp_path_factory.getbasetemp() / "anything.jsonl"
    good = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    path.write_text("".join(json.dumps({**good, **row}) + "\n" for row in rows))
    with contextlib.suppress(ConfigurationError):
        trace, skipped = read_trace(path, skip_invalid=skip_invalid)
        assert len(trace) + skipped.rows == len(rows)


# ---------------------------------------------------------------------- whole files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"", "is empty"),
        ("x.jsonl", b"3\n{4\n", "x.jsonl holds no JSON object; write one"),
        ("x.csv", b"PAR1\x15\x04\x15", "is a Parquet file; give it the suffix .parquet"),
        ("x.csv", b"PK\x03\x04\x14\x00", "spreadsheet"),
        ("x.csv", gzip.compress(b"a,b\n", mtime=0), "compressed with gzip; give it the suffix .gz"),
        ("x.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "binary file"),
        ("x.csv", "arrival_s,a\n".encode("utf-16"), "UTF-16"),
        ("x.csv", TTFT.encode() + b",name\n0,1,1,1,M\xfcller\n", "is not UTF-8"),
        ("x.csv", b"arrival_s;prompt_tokens;output_tokens\n", "separated by commas"),
        ("x.csv", b"arrival_s,arrival_s,prompt_tokens,output_tokens\n", "more than once"),
        ("x.csv", f'{TTFT}\n0,1,1,"' + "x" * 200_000, "A quote is not closed"),
        ("x.csv.gz", b"not packed", "are damaged"),
        ("x.txt", b"", "a trace file must end in one of .csv, .json"),
        ("x.json", b'\n[{"arrival_s": 0,\n "prompt', "line 3: broken JSON"),
        ("x.json", '{"request_throughput": 3.0, "mean_ttft_ms": 100.0}', "--save-detailed"),
        ("x.json", '{"input_lens": [1], "output_lens": [1], "ttfts": [], "itls": [[], []]}', "one entry per request"),
    ],
)  # fmt: skip
def test_files_that_are_no_traces(file, name, content, said):
    path = file(name, content)
    assert said in message(path)
    assert said in message(path, skip_invalid=True)  # not a matter of rows


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.gz", "x.json.gz"])
def test_a_small_packed_file_with_an_endless_line_takes_no_memory(file, name, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST", 1 << 20)
    start = {"x.csv.gz": f"{HEADER}\n", "x.jsonl.gz": GOOD, "x.json.gz": "["}[name]
    path = file(name, gzip.compress(start.encode() + b"1" * (32 << 20), compresslevel=1))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        text = message(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "has more than 1048576 characters; write one request per line" in text
    assert name == "x.json.gz" or ", line 2: " in text
    assert peak < 16 << 20


def test_a_file_that_is_not_there_or_not_whole(tmp_path):
    assert "there is no file" in message(tmp_path / "x.csv")
    assert "is a folder" in message(tmp_path)
    path = tmp_path / "x.parquet"
    write_trace(ONE, path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a complete Parquet file" in message(path)


def test_a_truncated_gzip_says_how_far_it_went(file):
    rows = "".join(f"{i},{i * 7919 % 1013},{i * 104729 % 997},0.5\n" for i in range(50_000))
    packed = gzip.compress(f"{TTFT}\n{rows}".encode())
    path = file("x.csv.gz", packed[: len(packed) // 2])
    found = re.search(r"is cut off after line (\d+)", message(path))
    assert 10_000 < int(found[1]) < 50_000


# ---------------------------------------------------------------------- columns and units


def test_unknown_columns_list_the_formats_and_the_nearest_names(file):
    text = message(file("x.csv", "arrival_s,prompt_token,output_tokens\n0,1,1\n"))
    assert "The file has 'arrival_s', 'prompt_token', 'output_tokens'" in text
    assert "Did you mean 'prompt_token'?" in text
    formats = ("disco (", "burstgpt (", "azure (", "mooncake (", "llmperf (", "vllm (")
    assert [name for name in formats if name not in text] == []
    path = file("x.csv", f"{TTFT}\n0,1,1,1\n")
    lacks = "For the format 'mooncake' the file lacks 'input_length', 'output_length', 'timestamp'"
    assert lacks in message(path, format="mooncake")
    with pytest.raises(ConfigurationError, match=r"unknown trace format 'mooncak'.*'mooncake'"):
        read_trace(path, format="mooncak")


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("ttft_s", [640, 810, 350, 901], "4 of the first 4 values of column ttft_s are above 300 s; the column looks"),
        ("ttft_s", [0.5, 0.6, 350, 0.8], "has rows that look like milliseconds"),
        ("gaps_s", ["20;30", "25", "", "31;20"], "column gaps_s are above 5 s"),
        ("ttft_ms", [640, 810], "column ttft_ms is not in seconds; divide it by 1000 and call it ttft_s"),
        ("ttft", [0.1, 0.2], "column ttft does not name its unit; call it ttft_s"),
    ],
)  # fmt: skip
def test_milliseconds_are_noticed(file, column, values, said):
    rows = "".join(f"{i},1,1,{value}\n" for i, value in enumerate(values))
    assert said in message(file("x.csv", f"{HEADER},{column}\n{rows}"))
    rows = "".join(f"{i},1,1,{400 if i == 50 else 0.5}\n" for i in range(100))  # one slow request is no unit
    assert read_trace(file("x.csv", f"{TTFT}\n{rows}"))[0].ttft_s[50] == 400


@pytest.mark.parametrize(("factor", "unit"), [(10**3, "milliseconds"), (10**6, "microseconds")])
def test_unix_time_is_in_seconds(file, factor, unit):
    path = file("x.csv", f"{HEADER}\n{1_700_000_000 * factor},1,1\n")
    assert f"looks like {unit} since 1970; divide it by" in message(path)
    path.write_text(f"{HEADER}\n1700000000.5,1,1\n")
    assert read_trace(path)[0].arrival_s[0] == 1_700_000_000.5


def test_a_feature_stays_of_one_kind_and_nothing_left_is_an_error_that_counts(file, monkeypatch):
    """Its type is that of the first batch, so that all chunks of a file have the same."""
    monkeypatch.setattr("disco.replay.formats.files.ROWS", 64)
    rows = "".join(f"{i},1,1,{i if i < 64 else 'x'}\n" for i in range(65))
    path = file("x.csv", f"{HEADER},client\n{rows}")
    assert "line 66, column client: 'x' is of another kind" in message(path)
    assert read_trace(path, skip_invalid=True)[1].rows == 1
    path.write_text(f"{TTFT}\n0,x,1,1\n1,x,1,1\n")
    said = message(path, skip_invalid=True)
    assert "has no request that can be used; " in said
    assert "x.csv, line 2, line 3: not a number" in said


def test_what_cannot_be_written_or_read_for_want_of_a_place_a_package_or_a_size(tmp_path, monkeypatch):
    parquet = tmp_path / "x.parquet"
    clash = replace(ONE, features={"ttft_s": ONE.prompt_tokens})
    for said, refused in {
        r"can be written as \.csv": lambda: write_trace(ONE, tmp_path / "x.xlsx"),
        r"x.csv.* cannot be written": lambda: write_trace(ONE, tmp_path / "nowhere/x.csv"),
        r"x.parquet.* cannot be written": lambda: write_trace(ONE, tmp_path / "nowhere/x.parquet"),
        "name of a column": lambda: write_trace(clash, tmp_path / "x.csv"),
        r"chunk.*at least 1 request": lambda: read_chunks(parquet, chunk_rows=0),
        "at least 1 request": lambda: read_trace(parquet, limit=0),
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            refused()
    parquet.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[replay\]"'):
        read_trace(parquet)
