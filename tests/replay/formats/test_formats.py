"""Every source's own shape becomes the columns of a trace, in our units."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from disco.replay.formats import FORMATS, read_trace

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
120,GPT-4,417,276,693,Conversation log
"""
BURSTGPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 5999, "input_length": 1053, "output_length": 26, "hash_ids": [0, 773, 774]}
"""
LLMPERF = [
    {"error_code": error, "ttft_s": ttft_s, "end_to_end_latency_s": lasts_s, "inter_token_latency_s": 0.5}
    | {"number_output_tokens": output, "number_input_tokens": 550}
    for error, ttft_s, lasts_s, output in (
        (None, 0.6454197, 2.293639581, 154),
        (429, 0, 0, 0),
        (None, 0.5, 0.5, 1),
    )
]
VLLM = {
    "mean_ttft_ms": 150.0,
    "request_throughput": 2.7,
    "input_lens": [10, 11, 9, 12],
    "output_lens": [5, 4, 0, 9],
    "ttfts": [0.10, 0.20, 0.0, 0.15],
    "itls": [[0.02, 0.02, 0.02, 0.04], [0.03, 0.03, 0.03], [], [0.08, 0.08]],
    "start_times": [7001.5, 7001.0, 7002.0, 7002.5],
    "generated_texts": ["private", "private", "", "private"],
    "errors": ["", "", "Internal Server Error", ""],
}


@pytest.fixture
def file(tmp_path: Path):
    def write(name: str, content: object) -> Path:
        path = tmp_path / name
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.parametrize("name", ["own.json", "own.jsonl"])
def test_an_array_of_objects_is_read_too(file, name):
    rows = [{"arrival_s": float(i), "prompt_tokens": i, "output_tokens": 1} for i in range(3)]
    trace, _ = read_trace(file(name, json.dumps(rows, indent=1)))
    assert trace.prompt_tokens.tolist() == [0, 1, 2]


AZURE_DATES = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00+00:00,7,1\n2024-05-12 00:00:10.25Z,8,1\n"
)
VLLM_BEFORE = {key: value for key, value in VLLM.items() if key != "start_times"}


@pytest.mark.parametrize(
    ("kind", "name", "content", "arrival_s", "prompt_tokens"),
    [
        ("burstgpt", "BurstGPT_1.csv", BURSTGPT, [0, 40, 115], [472, 1087, 417]),
        ("burstgpt", "BurstGPT_3.csv", BURSTGPT_3, [0, 51], [906, 36]),
        ("azure", "azure.csv.gz", AZURE, [0.0, 4.314579], [374, 396]),
        # The traces of 2024 name UTC; another zone counts too.
        ("azure", "b.csv", AZURE_DATES + "2024-05-12 02:00:20.5+02:00,9,1\n", [0, 10.25, 20.5], [7, 8, 9]),
        ("mooncake", "trace.ndjson", MOONCAKE, [0, 0, 5.999], [6758, 7322, 1053]),
        ("llmperf", "responses.json", LLMPERF, [0, 2.293639581], [550, 550]),
        ("vllm", "result.json", VLLM, [0, 0.5, 1.5], [11, 10, 12]),
        ("vllm", "result.jsonl", VLLM, [0, 0.5, 1.5], [11, 10, 12]),
        ("vllm", "older.json", json.dumps(VLLM_BEFORE, indent=2), [0, 0.2, 0.49], [10, 11, 12]),
    ],
)
def test_every_format_is_told_by_its_columns_and_read_in_our_units(
    file, kind, name, content, arrival_s, prompt_tokens
):
    trace, _ = read_trace(file(name, content))
    assert f"format {kind}" in trace.source
    np.testing.assert_allclose(trace.arrival_s, arrival_s, rtol=1e-15, atol=1e-15)
    assert trace.prompt_tokens.tolist() == prompt_tokens
    assert (kind in FORMATS, "hash_ids" in trace.features) == (True, False)
    assert read_trace(file(name, content), format=kind)[0].source == trace.source


FAILED = "failed at the source"


def test_what_is_kept_of_each_besides_and_what_is_left_out(file):
    trace, skipped = read_trace(file("BurstGPT_1.csv", BURSTGPT))
    assert trace.output_tokens.tolist() == [18, 230, 276]
    features = {name: values[-1] for name, values in trace.features.items()}
    assert features == {"model": "GPT-4", "log_type": "Conversation log"}
    assert (skipped.reasons, skipped.places) == ({FAILED: 1}, {FAILED: ("line 4",)})
    trace, _ = read_trace(file("BurstGPT_3.csv", BURSTGPT_3))
    assert trace.features["elapsed_s"].tolist() == [43, 2]
    assert trace.features["session"][0] == "1722ac82-0a46-4bf0-aa08-89794e7a2b3f"
    # The first token is taken out of the token rate.
    trace, skipped = read_trace(file("x_individual_responses.json", LLMPERF))
    assert trace.ttft_s.tolist() == [0.6454197, 0.5]
    np.testing.assert_allclose(trace.tpot_s, [(2.293639581 - 0.6454197) / 153, np.nan])
    assert "each request arrives when the one before it is complete" in trace.source
    assert skipped.places == {FAILED: ("entry 2",)}
    trace, skipped = read_trace(file("result.json", VLLM))
    assert trace.ttft_s.tolist() == [0.2, 0.1, 0.15]
    np.testing.assert_allclose(trace.tpot_s, [0.03, 0.025, 0.02])
    np.testing.assert_array_equal(trace.gaps.of(1), [0.02, 0.02, 0.02, 0.04])
    assert trace.gaps.of(2).size == 0  # nine tokens in three chunks: no gaps between tokens are known
    assert "private" not in repr(trace.features)
    assert skipped.reasons == {FAILED: 1}


def test_a_limit_stops_reading(file):
    rows = "".join(f"{i},{i},1\n" for i in range(1, 40_000))
    path = file("x.csv", f"arrival_s,prompt_tokens,output_tokens\n{rows}broken\n")
    assert read_trace(path, limit=2)[0].prompt_tokens.tolist() == [1, 2]


def test_rows_that_cannot_be_used_are_counted_once_by_reason(file):
    rows = [
        "0,1,1,0.5",
        "1,1,1,nan",
        "2,-1,1,0.5",
        "3,1",
        "9,1,1,0.5",
        "4,1,1,0.5",
        "5,1,1,0.5",
        "10,x,1,nan",
        "11,1,1,",
    ]
    content = "\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_s", *rows])
    trace, skipped = read_trace(file("x.csv", content), skip_invalid=True)
    assert trace.arrival_s.tolist() == [0, 9, 11]
    assert skipped.rows == 6
    assert skipped.places == {
        "not a number (NaN)": ("line 3",),
        "negative": ("line 4",),
        "wrong number of cells": ("line 5",),
        "out of order": ("line 7", "line 8"),
        "not a number": ("line 9",),
    }
    assert str(skipped).startswith("6 rows were left out: ")
    assert skipped.named()[0].endswith("x.csv, line 7, line 8: out of order")
