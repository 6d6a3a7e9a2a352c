"""How long the context of a local model is by default: its own, as far as the free memory holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.context_size import LEAST_CONTEXT_TOKENS, cache_bytes_per_token, context_size
from disco.endpoints.free_memory import free_bytes, of_vm_stat
from disco.endpoints.gguf_header import Header, read_header
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.errors import ConfigurationError

GIB = 2**30
# Llama-3.1-8B: 32 layers, 8 key-value heads of 128, f16
LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 131_072,
    "llama.block_count": 32,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.embedding_length": 4096,
}


def header(**more: object) -> Header:
    entries = LLAMA | {f"llama.{name}": value for name, value in more.items()}
    return Header({name: value for name, value in entries.items() if value is not None}, None, 0)


def sizes(free: float | None, one: Header | None = None, **asked: int):
    found = context_size(
        one or header(), file_bytes=5 * GIB, free_bytes=None if free is None else int(free * GIB), **asked
    )
    return found.context_tokens, found.slots


def test_what_a_token_takes_in_the_cache():
    assert cache_bytes_per_token(header()) == 2 * 2 * 32 * 8 * 128
    assert cache_bytes_per_token(header(**{"attention.key_length": 192})) == 2 * 32 * 8 * (192 + 128)
    assert cache_bytes_per_token(header(**{"attention.head_count_kv": None})) == 2 * 2 * 32 * 32 * 128
    # One number for each layer, as hybrid models have it: two layers of attention, the others recurrent.
    assert cache_bytes_per_token(header(**{"attention.head_count_kv": (8, 0, 0, 8)})) == 2 * 2 * 16 * 128
    assert cache_bytes_per_token(Header({}, None, 0)) == 0
    smol = read_header(resolve_model("smollm2-135m"), scalars_only=True)
    assert cache_bytes_per_token(smol) == 2 * 2 * 30 * 3 * 64


def test_a_model_gets_its_own_context_and_then_slots_as_far_as_half_of_the_free_memory_goes():
    assert sizes(200) == (131_072, 4)
    assert sizes(80) == (131_072, 2)
    assert sizes(40) == (131_072, 1)
    context, slots = sizes(13)
    assert (slots, context % 256) == (1, 0)
    assert 30_000 < context < 32_768  # (13 - 5 - 0.15) / 2 GiB at 128 KiB a token
    assert sizes(5) == (LEAST_CONTEXT_TOKENS, 1), "never less, whatever is free"
    assert sizes(None) == (LEAST_CONTEXT_TOKENS, 1)
    assert sizes(200, header(context_length=2048)) == (2048, 4)
    assert sizes(200, header(block_count=0)) == (131_072, 4), "it keeps no keys"
    assert sizes(200, Header({}, None, 0)) == (LEAST_CONTEXT_TOKENS, 4)


def test_what_is_asked_for_is_taken_and_more_than_the_model_was_trained_with_is_refused():
    assert sizes(5, context_tokens=100_000, slots=16) == (100_000, 16)
    assert sizes(13, context_tokens=8192) == (8192, 3)
    assert sizes(80, slots=8) == (38_144, 8), "the slots share the memory"
    assert sizes(80, context_tokens=131_072)[0] == 131_072
    with pytest.raises(ConfigurationError, match=r"trained with 131,072.*at most 131,072"):
        sizes(80, context_tokens=131_073)
    assert sizes(80, Header({}, None, 0), context_tokens=10**6)[0] == 10**6, "the file does not tell"


@given(
    free=st.none() | st.integers(0, 400 * GIB),
    trained=st.integers(1, 10**6),
    layers=st.integers(0, 100),
    asked=st.none() | st.integers(1, 1000),
    slots=st.none() | st.integers(1, 64),
)
def test_any_machine_loads_any_model_with_some_context(free, trained, layers, asked, slots):
    one = header(context_length=max(trained, asked or 1), block_count=layers)
    found = context_size(one, file_bytes=GIB, free_bytes=free, context_tokens=asked, slots=slots)
    assert found.context_tokens == (asked or found.context_tokens)
    assert found.slots == (slots or found.slots) >= 1
    assert 0 < found.context_tokens <= max(trained, asked or 1)
    cache = found.context_tokens * found.slots * cache_bytes_per_token(one)
    at_least = asked is not None or slots is not None or found.context_tokens <= LEAST_CONTEXT_TOKENS
    assert at_least or cache <= max(0, (free or 0) - GIB) / 2


def files(root, **texts: str):
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_free_memory_is_what_the_system_and_each_container_around_leave(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    assert free_bytes(tmp_path) is None
    files(tmp_path, proc__meminfo="MemTotal: 9000 kB\nMemFree:  10 kB\nMemAvailable:    2000 kB\n")
    assert free_bytes(tmp_path) == 2000 * 1024
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    files(tmp_path, proc__self__cgroup="0::/a/b\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("900\n")
    assert free_bytes(tmp_path) == 2000 * 1024
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("900\n")
    (group.parent / "memory.stat").write_text(
        "anon 200\nfile 700\ninactive_file 500\nactive_file 100\nslab 9\n"
    )
    assert free_bytes(tmp_path) == 700, "pages of files make room for a program"


def test_the_first_version_of_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    files(tmp_path, proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/away\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.usage_in_bytes").write_text("900\n")
    assert free_bytes(tmp_path) is None, "no limit"
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 100\n")
    assert free_bytes(tmp_path) == 700


def test_what_macos_prints():
    told = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:      100.\nPages active:   7.\n"
    assert of_vm_stat(f"{told}Pages inactive:  20.\n") == 120 * 16384
    assert of_vm_stat(told) is None


def test_this_machine_tells_its_free_memory():
    assert 2**20 < free_bytes() < 2**50
