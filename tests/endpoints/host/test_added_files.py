"""Files beside a model: LoRA adapters, on both programs, and a projector for images. llama.cpp itself runs them."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from disco import AsyncDisco, PromptCache
from disco.endpoints.host import HostEndpoint
from disco.errors import ConfigurationError, DiscoError, EndpointFailure, FailureKind, NoEndpointError
from disco.request import Request
from disco.testing.asking import ask, complete
from tests.endpoints.host.added_files import IMAGE_TOKENS, image, lora_file, projector_file
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.real, pytest.mark.anyio]
HIDDEN = 64
PROMPT = [{"role": "user", "content": "What is it?"}]
BOTH = pytest.mark.parametrize("runtime", ["engine", "llama-server"])


@pytest.fixture
def anyio_backend():
    """A process takes its time on either loop."""
    return "asyncio"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The tiny model, and the folder in which it is."""
    folder = tmp_path_factory.mktemp("added")
    tiny_llama(folder / "tiny.gguf", hidden=HIDDEN, writes=True, context_tokens=1024)
    lora_file(folder / "tiny.gguf", folder / "poet.gguf")
    lora_file(folder / "tiny.gguf", folder / "other.gguf", architecture="qwen3")
    lora_file(folder / "tiny.gguf", folder / "wide.gguf", wider=32)
    projector_file(folder / "eyes.gguf", hidden=HIDDEN)
    projector_file(folder / "others-eyes.gguf", hidden=HIDDEN + 32)
    return folder


@asynccontextmanager
async def tiny(files, **options):
    model = {"model": files / "tiny.gguf", "context_tokens": 512, "threads": 1, "slots": 2}
    endpoint = HostEndpoint(**{**model, **options})
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def seeing(*seeds, **params):
    parts = [{"type": "text", "text": PROMPT[0]["content"]}, *(image(seed) for seed in seeds)]
    return Request(
        [{"role": "user", "content": parts}], "tiny", {"max_tokens": 4, "temperature": 0, **params}
    )


async def logprobs(endpoint, request=None):
    request = request or Request(PROMPT, "tiny", {"max_tokens": 6, "temperature": 0})
    async with endpoint.open(request, wants=frozenset({"logp"})) as attempt:
        deltas = [delta async for event in attempt if isinstance(event, list) for delta in event]
        usage = attempt.usage
    return [round(one, 3) for delta in deltas for one in delta.logp or ()], usage


@BOTH
async def test_an_adapter_changes_the_weights_by_its_scale(files, runtime):
    found = {}
    for scale in (None, 0, 0.5, 1):
        lora = () if scale is None else [(files / "poet.gguf", scale)]
        async with tiny(files, runtime=runtime, lora=lora) as endpoint:
            found[scale], _ = await logprobs(endpoint)
    assert found[None]
    assert found[0] == found[None]
    assert len({str(found[scale]) for scale in (0, 0.5, 1)}) == 3


@BOTH
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.gguf", "There is no LoRA file .*gone.gguf. Check the path"),
        ("tiny.gguf", "tiny.gguf is not a LoRA adapter.*leave lora out"),
        (
            "other.gguf",
            "adapter .*other.gguf is for a model of the architecture 'qwen3', and this one is 'llama'",
        ),
        ("wide.gguf", "incorrect shape.*leave lora out"),
    ],
)
async def test_an_adapter_that_is_missing_or_does_not_fit_is_refused_with_its_name(
    files, runtime, name, says
):
    async with tiny(files, runtime=runtime, lora=files / name) as endpoint:
        with pytest.raises(DiscoError, match=says) as raised:
            await endpoint.warm_up()
        assert name in str(raised.value)


@pytest.mark.parametrize(
    "lora", [[3], [("a.gguf", "much")], [("a.gguf", float("nan"))], [""], [("a.gguf", True)]]
)
def test_what_is_no_adapter_is_refused_before_anything_starts(lora):
    with pytest.raises(ConfigurationError, match=r'lora contains .*lora=\[\("adapter.gguf", 0.5\)\]'):
        HostEndpoint(lora=lora)


def test_with_other_files_it_is_another_model(files):
    lora, eyes = files / "poet.gguf", files / "eyes.gguf"
    kinds = [{}, {"lora": lora}, {"lora": [(lora, 0.5)]}, {"lora": [lora, lora]}, {"mmproj": eyes}]
    made = [HostEndpoint(model=files / "tiny.gguf", runtime="auto", **kind) for kind in kinds]
    for name in ("fingerprint", "full_name", "state_name"):
        assert len({getattr(endpoint, name) for endpoint in made}) == len(kinds)
    assert [endpoint.full_name for endpoint in made[:3]] == ["tiny", "tiny+poet", "tiny+poet:0.5"]
    again = HostEndpoint(model=files / "tiny.gguf", lora=[(str(lora), 1.0)])
    assert again.fingerprint == made[1].fingerprint


async def test_a_prompt_that_was_saved_with_other_weights_is_not_taken_back(files, tmp_path):
    cache = PromptCache(folder=tmp_path, private=True)
    request = Request([{"role": "user", "content": "word " * 60}], "tiny", {"max_tokens": 2})
    cached = []
    for lora in ((), (), files / "poet.gguf"):
        async with tiny(files, runtime="engine", prompt_cache=cache, lora=lora) as endpoint:
            cached.append((await logprobs(endpoint, request))[1].cached_tokens)
    assert cached[0] == 0 < cached[1]
    assert cached[2] == 0


async def test_a_projector_makes_a_model_see(files):
    async with tiny(files, mmproj=files / "eyes.gguf") as endpoint:
        assert endpoint.runtime == "llama-server"
        assert "images" in endpoint.capabilities().features
        without, text = await logprobs(endpoint)
        one, with_image = await logprobs(endpoint, seeing(1))
        other, _ = await logprobs(endpoint, seeing(2))
    assert with_image.prompt_tokens > text.prompt_tokens + IMAGE_TOKENS
    assert len({str(found) for found in (without, one, other)}) == 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.gguf", "There is no mmproj file"),
        ("poet.gguf", "is not a multimodal projector"),
        ("others-eyes.gguf", "mismatch between text model.*projector that is published beside this model"),
    ],
)
async def test_a_projector_that_is_missing_or_does_not_fit_is_refused_with_its_name(files, name, says):
    async with tiny(files, mmproj=files / name) as endpoint:
        with pytest.raises(DiscoError, match=says) as raised:
            await endpoint.warm_up()
        assert name in str(raised.value)


def test_what_only_one_program_can_do_is_not_asked_of_the_other(files):
    for options, says in (
        ({"runtime": "engine"}, 'mmproj needs runtime="llama-server"'),
        ({"prompt_cache": True}, "prompt_cache needs disco's own engine, and mmproj needs llama-server"),
        ({"speculate": "auto"}, "speculate needs disco's own engine, and mmproj needs llama-server"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            AsyncDisco(local=files / "tiny.gguf", mmproj=files / "eyes.gguf", **options)


@BOTH
async def test_a_model_without_one_refuses_images_by_name(files, runtime):
    async with AsyncDisco(local=files / "tiny.gguf", runtime=runtime, context_tokens=512) as client:
        with pytest.raises(NoEndpointError, match=r'images .*mmproj="mmproj.gguf"') as raised:
            await client.chat.completions.create(model="tiny", messages=seeing(1).messages)
        assert raised.value.param == "messages"


@BOTH
async def test_its_host_refuses_images_that_come_all_the_same(files, runtime):
    async with tiny(files, runtime=runtime) as endpoint:
        with pytest.raises(EndpointFailure) as raised:
            await complete(endpoint, seeing(1))
        assert raised.value.kind is FailureKind.UNSERVED
        assert raised.value.error.param == "messages"
        assert "mmproj" in str(raised.value.error)
        await complete(endpoint, ask(max_tokens=2))


async def test_a_request_with_images_goes_to_the_model_that_sees(files):
    routes = []
    async with (
        tiny(files, mmproj=files / "eyes.gguf", name="seer") as seer,
        AsyncDisco(
            local=files / "tiny.gguf",
            tiers=[seer],
            context_tokens=512,
            preset="private",
            on_route=routes.append,
        ) as client,
    ):
        await client.chat.completions.create(model="tiny", messages=seeing(1).messages, max_tokens=4)
    assert [attempt.endpoint for attempt in routes[0].attempts] == ["seer"]
