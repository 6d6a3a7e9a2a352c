"""Which llama.cpp the engine finds, and that one which is not as declared is refused before it computes anything."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
from servers import smollm2_gguf

from disco.endpoints.llamacpp.model import library, library_check
from disco.endpoints.llamacpp.model.declarations import FUNCTIONS, STRUCTURES, VERSIONS, WheelLibrary
from disco.endpoints.llamacpp.model.library import FoundLibrary, NoLibrary, find_library
from disco.endpoints.llamacpp.model.library_check import DoesNotFit, check
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.errors import ConfigurationError

TESTED = VERSIONS[-1]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def has(monkeypatch, tmp_path):
    """Make it look as if only these packages were installed, each in this version, on this system."""

    def installed(system="linux", *, built=True, shared=True, **versions):
        monkeypatch.setattr(library.sys, "platform", system)
        monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
        modules = {"llama_cpp": "llama-cpp-python", "xllamacpp": "xllamacpp"}
        for name in versions:
            folder = tmp_path / name
            (folder / "lib").mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        if built and "llama_cpp" in versions:
            (tmp_path / "llama_cpp" / "lib" / "libllama.so").touch()
        if shared and "xllamacpp" in versions:
            (tmp_path / "xllamacpp" / "xllamacpp.abi3.so").touch()
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)
            if name not in versions:
                monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.syspath_prepend(str(tmp_path))
        known = {modules[name]: version for name, version in versions.items()}
        monkeypatch.setattr(library, "_version", known.get)
        return find_library()

    return installed


def test_a_compiled_llama_cpp_python_is_preferred_where_its_version_fits_and_it_was_built(has):
    assert str(has(llama_cpp="0.3.36", xllamacpp=TESTED)) == "llama-cpp-python 0.3.36"
    for older in ("0.2.90", "0.4.0"):
        assert str(has(llama_cpp=older, xllamacpp=TESTED)) == f"xllamacpp {TESTED}"


def test_without_its_compiled_part_llama_cpp_python_is_not_taken(has):
    found = has(llama_cpp="0.3.36", xllamacpp=TESTED, built=False)
    assert (found.package, found.path.name) == ("xllamacpp", "xllamacpp.abi3.so")


@pytest.mark.parametrize(
    ("given", "why", "remedy"),
    [
        ({}, "not installed", r'pip install "disco-llm\[local\]"'),
        ({"xllamacpp": "2026.11.12000"}, f"2026.11.12000 is installed.*{TESTED}", r"disco-llm\[local\]"),
        ({"xllamacpp": TESTED, "system": "win32"}, "On Windows", "llama-server, or .*llama-cpp-python"),
        ({"xllamacpp": TESTED, "shared": False}, "lost its shared object", f"--force-reinstall.*{TESTED}"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_versions_and_the_remedy(has, given, why, remedy):
    found = has(**given)
    assert isinstance(found, NoLibrary)
    with pytest.raises(ConfigurationError, match=f"{why}.*{remedy}"):
        library._loaded.__wrapped__()


def test_the_extra_installs_the_version_that_was_tested():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"xllamacpp=={TESTED}"' in project


@pytest.fixture
def wheel():
    """The shared object of the wheel, loaded anew, whatever the engine prefers here."""
    found = find_library()
    if found.path is None:
        pytest.skip("llama-cpp-python is installed")
    own = WheelLibrary(found.path)
    library.load_library()  # which sets where the log goes
    return own


@pytest.mark.real
def test_the_library_is_as_declared(wheel):
    check(wheel)


SET: dict[str, set[str]] = {  # by the engine, in these structures
    "llama_model_params": {"n_gpu_layers", "progress_callback"},
    "llama_context_params": {
        *("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch"),
        *("cb_eval", "no_perf", "kv_unified"),
    },
}


@pytest.mark.real
@pytest.mark.parametrize("structure", SET)
def test_a_missing_field_that_moves_one_that_is_set_is_found_by_the_defaults(wheel, monkeypatch, structure):
    declared = STRUCTURES[structure]
    function = getattr(wheel, structure.replace("_params", "_default_params"))
    unnoticed = set()
    for name, *_ in declared._fields_:
        others = [field for field in declared._fields_ if field[0] != name]
        shifted = type("Shifted", (ctypes.Structure,), {"_fields_": others, "DEFAULTS": declared.DEFAULTS})
        monkeypatch.setitem(STRUCTURES, structure, shifted)
        # The library writes more than is declared: into the room behind it.
        fields = {"_anonymous_": ["own"], "_fields_": [("own", shifted), ("more", declared)]}
        function.restype = type("Room", (ctypes.Structure,), fields)
        moved = [
            one
            for one in SET[structure] - {name}
            if getattr(shifted, one).offset != getattr(declared, one).offset
        ]
        try:
            library_check._check_defaults(wheel)
        except DoesNotFit:
            continue
        unnoticed.update({name} if moved else ())
    assert unnoticed == set()


@pytest.mark.real
def test_other_logits_than_those_of_the_known_model_are_found(wheel, monkeypatch):
    logits = library_check._logits
    monkeypatch.setattr(library_check, "_logits", lambda prompt: logits(prompt[:1]))
    with pytest.raises(DoesNotFit, match="logits of a known model"):
        check(wheel)


@pytest.mark.real
def test_a_flag_that_is_not_understood_is_found(wheel, monkeypatch):
    """As where the flags have moved: the cache would be common to all sequences, and answers would depend on others."""
    made = wheel.llama_init_from_model

    def common(model, params):
        params.kv_unified = True
        return made(model, params)

    monkeypatch.setattr(wheel, "llama_init_from_model", common)
    with pytest.raises(DoesNotFit, match="llama_n_ctx_seq gives 1024, not 512"):
        check(wheel)


@pytest.mark.real
def test_a_library_without_a_function_is_refused_by_the_functions_name(monkeypatch):
    other = FoundLibrary("xllamacpp", TESTED, Path(np._core._multiarray_umath.__file__))
    monkeypatch.setattr(library, "find_library", lambda: other)
    with pytest.raises(
        ConfigurationError, match=rf"xllamacpp {TESTED} is not as.*{next(iter(FUNCTIONS))}.*--force"
    ):
        library._loaded.__wrapped__()


@pytest.mark.real
def test_the_logits_of_smollm2_are_those_of_every_build():
    """Measured with llama-cpp-python 0.3.36, compiled, and with the wheel: 0.1 is more than their kernels differ by."""
    model = SequenceModel(
        smollm2_gguf(),
        context_tokens=256,
        threads=1,
        batch_tokens=64,
        gpu_layers=0,
        keep_loading=lambda: True,
    )
    try:
        ids = model.tokenize("The capital of France is", special=False)
        model.compute([Rows(0, 0, ids, len(ids) - 1)])
        logits = model.logits()
        best = int(np.argmax(logits))
        assert model.piece(best) == b" Paris"
        assert float(logits[best]) == pytest.approx(17.16, abs=0.1)
    finally:
        model.close()
