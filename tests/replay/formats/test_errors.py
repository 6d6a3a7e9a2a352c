"""A file that cannot be read says where, what, and what to do."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from disco.errors import ConfigurationError
from disco.replay.formats import read_chunks, read_trace, write_trace
from disco.replay.workload.trace import Trace

HEADER = "arrival_s,prompt_tokens,output_tokens,ttft_s"


def message(path, **options) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_trace(path, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        ("1,1,1,nan", "ttft_s", "nan' is not a number (NaN); leave the cell empty"),
        ("1,1,1,abc", "ttft_s", "'abc' is not a number; write"),
        ("1,1,1,0.5s", "ttft_s", "'0.5s' is not a number"),
        ("1,1,1,inf", "ttft_s", "'inf' is not finite"),
        ("1,1,1,-0.5", "ttft_s", "'-0.5' is negative"),
        ("-1,1,1,0.5", "arrival_s", "'-1' is negative"),
        (",1,1,0.5", "arrival_s", "missing value; every request needs it"),
        ("nan,1,1,0.5", "arrival_s", "'nan' is not a number (NaN)"),
        ("2023-11-16 18:15:46,1,1,0.5", "arrival_s", "'2023-11-16 18:15:46' is not a number"),
        ("1,,1,0.5", "prompt_tokens", "missing value"),
        ("1,1.5,1,0.5", "prompt_tokens", "'1.5' is not a whole number"),
        ("1,1,-3,0.5", "output_tokens", "'-3' is negative"),
        ("1,1,1e400,0.5", "output_tokens", "'1e400' is not finite"),
        ("1,1,99999999999999999999,0.5", "output_tokens", "is not a whole number"),
        ("1,1,1", None, "wrong number of cells; the row has 3 cells and the header 4"),
        ("-5,1,1,0.5", "arrival_s", "negative"),
        (
            "0.25,1,1,0.5",
            "arrival_s",
            "'0.25' is out of order; it comes before the row above it; sort the file",
        ),
    ],
)
def test_a_bad_row_is_named_with_line_column_value_and_remedy(tmp_path, row, column, said):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n0,1,1,0.5\n\n0.5,1,1,0.5\n{row}\n9,1,1,0.5\n")
    text = message(path)
    assert text.startswith(f"{path}, line 5" + (f", column {column}: " if column else ": "))
    assert said in text
    assert "--skip-invalid" in text
    trace, skipped = read_trace(path, skip_invalid=True)
    assert trace.arrival_s.tolist() == [0, 0.5, 9]
    assert list(skipped.places.values()) == [("line 5",)]


def test_the_line_is_the_one_an_editor_shows(tmp_path):
    """Quoted cells hold line breaks; a row is where it begins."""
    path = tmp_path / "x.csv"
    path.write_text(f'{HEADER},note\n0,1,1,1,"a\nb\r\nc"\n\n1,1,x,1,"d\ne"\n')
    assert message(path).startswith(f"{path}, line 6, column output_tokens")


def test_the_first_bad_row_is_the_one_named(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n0,1,1,0.5\n1,1,1\n2,x,1,0.5\n3,1,1,nan\n")
    assert "line 3" in message(path)


def test_vendors_columns_are_named_as_in_the_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,x,2,3,l\n")
    assert "column Request tokens: 'x' is not a number" in message(path)
    path = tmp_path / "y.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n16.11.2023 18:15,1,1\n"
    )
    assert "line 3, column TIMESTAMP: '16.11.2023 18:15' is not a date; write it as" in message(path)


def test_a_confidence_is_a_share(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,confidence\n0,1,1,1.5\n")
    assert "column confidence: '1.5' is above 1" in message(path)


@pytest.mark.parametrize("gaps", ["0.1;-0.2", "0.1;x", "0.1;nan", "0.1;;0.2"])
def test_bad_gaps(tmp_path, gaps):
    path = tmp_path / "x.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,gaps_s\n0,1,1,0.5\n1,1,1,{gaps}\n")
    assert message(path).startswith(f"{path}, line 3, column gaps_s: ")
    assert len(read_trace(path, skip_invalid=True)[0]) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"arrival_s": 1, "prompt_to', "line 2: broken JSON; write one complete JSON object per line"),
        ("[1, 2]", "line 2: not a JSON object"),
        ('{"arrival_s": 1, "prompt_tokens": 1}', "line 2, column output_tokens: missing value"),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": true}', "True is not a number"),
        (
            '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "ttft_s": NaN}',
            "nan is not a number (NaN)",
        ),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": [1]}', "a list of 1 is not a number"),
    ],
)
def test_bad_json_lines(tmp_path, line, said):
    path = tmp_path / "x.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "ttft_s": 0.5}\n' + line + "\n")
    assert said in message(path)
    assert len(read_trace(path, skip_invalid=True)[0]) == 1


def test_a_prompt_in_the_wrong_column_is_not_shown(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n0,1,my deepest secret that nobody else must ever read,0.5\n")
    text = message(path)
    assert "secret" not in text
    assert "a text of 49 characters is not a number" in text


def test_entries_of_a_benchmark_are_counted_from_one(tmp_path):
    path = tmp_path / "x.json"
    good = {"ttft_s": 0.5, "number_input_tokens": 5, "number_output_tokens": 5, "end_to_end_latency_s": 1.0}
    path.write_text(json.dumps([good, {**good, "end_to_end_latency_s": "soon"}]))
    assert "entry 2, column end_to_end_latency_s: 'soon' is not a number" in message(path)
    assert len(read_trace(path, skip_invalid=True)[0]) == 1


# ---------------------------------------------------------------------- whole files


def test_unknown_columns_list_the_formats_and_the_nearest_names(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("arrival_s,prompt_token,output_tokens\n0,1,1\n")
    text = message(path)
    assert "It has 'arrival_s', 'prompt_token', 'output_tokens'" in text
    for name in ("disco (", "burstgpt (", "azure (", "mooncake (", "llmperf (", "vllm ("):
        assert name in text
    assert "Did you mean 'prompt_token'?" in text


def test_a_named_format_says_what_is_missing(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n0,1,1,1\n")
    assert "For the format 'mooncake' it lacks 'input_length', 'output_length', 'timestamp'" in message(
        path, format="mooncake"
    )
    with pytest.raises(ConfigurationError, match=r"unknown trace format 'mooncak'.*'mooncake'"):
        read_trace(path, format="mooncak")


def test_a_benchmark_without_its_requests(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"request_throughput": 3.0, "mean_ttft_ms": 100.0}')
    assert "--save-detailed" in message(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"", "is empty"),
        ("x.csv", b"\n", "is empty"),
        ("x.csv", HEADER.encode() + b"\n", "holds no request"),
        ("x.jsonl", b"\n\n", "is empty"),
        ("x.jsonl", b"3\n4\n", "holds no JSON object"),
        ("x.json", b"[]", "is empty"),
        ("x.csv", b"PAR1\x15\x04\x15", "is a Parquet file; give it the suffix .parquet"),
        ("x.csv", b"PK\x03\x04\x14\x00", "spreadsheet"),
        ("x.csv", gzip.compress(b"a,b\n", mtime=0), "compressed with gzip; give it the suffix .gz"),
        ("x.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "binary file"),
        ("x.csv", "arrival_s,a\n".encode("utf-16"), "UTF-16"),
        ("x.csv", HEADER.encode() + b",name\n0,1,1,1,M\xfcller\n", "is not UTF-8"),
        ("x.csv", b"arrival_s;prompt_tokens;output_tokens\n", "separated by commas"),
        ("x.csv", b"arrival_s,arrival_s,prompt_tokens,output_tokens\n", "more than once"),
        ("x.csv", HEADER.encode() + b'\n0,1,1,"' + b"x" * 200_000, "A quote is not closed"),
        ("x.csv.gz", b"not packed", "are damaged"),
        ("x.parquet", b"not a parquet file", "no complete Parquet file"),
        ("x.txt", b"", "a trace ends in one of .csv, .json"),
        ("x.json", b'[{"arrival_s": 0,\n "prompt', "line 2: broken JSON"),
    ],
)
def test_files_that_are_no_traces(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    assert said in message(path)
    assert said in message(path, skip_invalid=True)  # not a matter of rows


def test_a_file_that_is_not_there(tmp_path):
    assert "there is no file" in message(tmp_path / "x.csv")
    assert "is a folder" in message(tmp_path)


def test_a_truncated_gzip_says_how_far_it_went(tmp_path):
    path = tmp_path / "x.csv.gz"
    rows = "".join(f"{i},{i * 7919 % 1013},{i * 104729 % 997},0.5\n" for i in range(50_000))
    packed = gzip.compress(f"{HEADER}\n{rows}".encode())
    path.write_bytes(packed[: len(packed) // 2])
    found = re.search(r"is cut off after line (\d+)", message(path))
    assert 10_000 < int(found[1]) < 50_000


def test_a_truncated_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    write_trace(Trace.of(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1]), path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "no complete Parquet file" in message(path)


def test_nothing_left_is_an_error_that_counts(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n0,x,1,1\n1,x,1,1\n")
    assert "holds no request: 2 rows were left out: 2 not a number (line 2, line 3)" in message(
        path, skip_invalid=True
    )


# ---------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        (
            "ttft_s",
            [640, 810, 350, 901],
            "4 of the first 4 values of column ttft_s are above 300 s; it looks like milli",
        ),
        ("ttft_s", [0.5, 0.6, 350, 0.8], "has rows that look like milliseconds"),
        ("tpot_s", [20, 25, 30, 21], "column tpot_s are above 5 s"),
        ("gaps_s", ["20;30", "25", "", "31;20"], "column gaps_s are above 5 s"),
        (
            "ttft_ms",
            [640, 810, 350, 901],
            "column ttft_ms is not in seconds; divide it by 1000 and call it ttft_s",
        ),
        ("ttft", [0.1, 0.2, 0.3, 0.4], "column ttft does not name its unit; call it ttft_s"),
    ],
)
def test_milliseconds_are_noticed(tmp_path, column, values, said):
    path = tmp_path / "x.csv"
    rows = "".join(f"{i},1,1,{value}\n" for i, value in enumerate(values))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,{column}\n{rows}")
    assert said in message(path)


def test_a_slow_request_is_no_unit(tmp_path):
    path = tmp_path / "x.csv"
    rows = "".join(f"{i},1,1,{400 if i == 50 else 0.5}\n" for i in range(100))
    path.write_text(f"{HEADER}\n{rows}")
    assert read_trace(path)[0].ttft_s[50] == 400


@pytest.mark.parametrize(
    ("at", "unit"), [(1_700_000_000_000, "milliseconds"), (1_700_000_000_000_000, "microseconds")]
)
def test_unix_time_in_other_units(tmp_path, at, unit):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n{at},1,1,1\n")
    assert f"looks like {unit} since 1970; divide it by" in message(path)


def test_unix_time_in_seconds_is_fine(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n1700000000.5,1,1,1\n")
    assert read_trace(path)[0].arrival_s[0] == 1_700_000_000.5


# ---------------------------------------------------------------------- features, writing


def test_a_feature_stays_of_one_kind(tmp_path):
    """Its type is that of the first 16,384 rows, so that all chunks of a file have the same."""
    path = tmp_path / "x.csv"
    rows = "".join(f"{i},1,1,1,{i if i < 16_384 else 'x'}\n" for i in range(16_385))
    path.write_text(f"{HEADER},client\n{rows}")
    assert "line 16386, column client: 'x' is of another kind" in message(path)
    _, skipped = read_trace(path, skip_invalid=True)
    assert skipped.rows == 1


def test_what_cannot_be_written(tmp_path):
    trace = Trace.of(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1])
    with pytest.raises(ConfigurationError, match=r"can be written as \.csv"):
        write_trace(trace, tmp_path / "x.xlsx")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_trace(trace, tmp_path / "nowhere" / "x.csv")
    clash = Trace.of(
        arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1], features={"ttft_s": trace.prompt_tokens}
    )
    with pytest.raises(ConfigurationError, match="name of a column"):
        write_trace(clash, tmp_path / "x.csv")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    import sys

    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[replay\]"'):
        read_trace(path)


def test_chunks_need_a_size(tmp_path):
    with pytest.raises(ConfigurationError, match="at least one request"):
        read_chunks(tmp_path / "x.csv", chunk_rows=0)
