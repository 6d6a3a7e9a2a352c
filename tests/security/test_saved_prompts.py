"""What the prompt cache's page says: nothing without it, nothing private with it, and what is in it is a text.

Searched: every file that a client may write, in the folders of caches, states and route records. A prompt is looked for
as a text and as the numbers of its tokens, as the files of saved prompts hold them.
"""

from __future__ import annotations

import stat
import sys
from array import array
from pathlib import Path

import pytest
from canaries import found_under

from disco import AsyncDisco, PromptCache, RouteLog
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.sequences import SequenceModel
from disco.endpoints.saved_prompts import forget_saved_prompts, saved_prompts
from disco.endpoints.saved_prompts.prompt_cache import default_folder

pytestmark = [pytest.mark.real, pytest.mark.anyio]

FILLER = "It costs as much as a good spade does, and it lasts as long as you take care of it. " * 6
CANARIES = {
    "open": "marmot-open-1157-canary",
    "local_only": "marmot-here-2268-canary",
    "reach": "marmot-own-3379-canary",
    "preset": "marmot-preset-4480-canary",
    "named": "marmot-named-5591-canary",
    "redact": "marmot-hidden-6602-canary",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def ids_of():
    """The tokens in the middle of a canary, which do not depend on what stands around it, as bytes."""
    sizes = {"context_tokens": 64, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
    model = SequenceModel(resolve_model("smollm2-135m"), **sizes, keep_loading=lambda: True)
    found = {
        name: array("i", model.tokenize(text.partition("-")[2], special=False)[1:-1]).tobytes()
        for name, text in CANARIES.items()
    }
    model.close()
    return found


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where everything goes that disco writes of its own accord."""
    for name in ("CACHE", "STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


async def ask(client, canary, model="any", **disco):
    system = f"You are called {CANARIES[canary]}. {FILLER}"
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Who is {CANARIES[canary]}?"},
    ]
    extra = {"extra_body": {"disco": disco}} if disco else {}
    answer = await client.chat.completions.create(
        model=model, messages=messages, max_tokens=2, temperature=0, **extra
    )
    assert answer.choices


async def ask_in_every_way(home: Path, prompt_cache) -> None:
    state, routes = home / "state.sqlite3", home / "routes.jsonl"
    given = {"local": "smollm2-135m", "prompt_cache": prompt_cache, "state": state}
    with RouteLog(routes) as log:
        async with AsyncDisco(**given, on_route=log) as client:
            await ask(client, "open")
            await ask(client, "local_only", local_only=True)
            await ask(client, "reach", reach="own")
            await ask(client, "preset", preset="private")
            await ask(client, "named", model="local/smollm2-135m")
            hides = client.with_options(redact=lambda text: {})
            await ask(hides, "redact")
            # Last, so that the cache of the model ends with what may be saved behind what may not.
            await ask(client, "open")
    assert state.stat().st_size > 0
    assert routes.stat().st_size > 0


def seen(home: Path, ids_of) -> set[str]:
    """The canaries that are in any file, as a text or as tokens."""
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    as_tokens = {name for name, ids in ids_of.items() if any(ids in data for data in files)}
    assert found_under(home, CANARIES) == []  # no text in any case: not even the cache has it as letters
    return as_tokens


@pytest.mark.slow
async def test_without_it_nothing_is_in_any_file(home, ids_of):
    await ask_in_every_way(home, False)
    assert seen(home, ids_of) == set()
    assert not default_folder().exists()


async def test_with_it_only_what_is_not_private_is(home, ids_of):
    assert default_folder().is_relative_to(home)
    await ask_in_every_way(home, True)
    assert seen(home, ids_of) == {"open"}
    (saved,) = saved_prompts()
    assert saved.tokens > 128
    if sys.platform != "win32":
        (file,) = default_folder().iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert forget_saved_prompts() == 1
    assert seen(home, ids_of) == set()


@pytest.mark.slow
async def test_private_prompts_are_saved_only_where_that_is_chosen(home, ids_of):
    await ask_in_every_way(home, PromptCache(private=True))
    assert "open" in seen(home, ids_of)
    async with AsyncDisco(local="smollm2-135m", preset="private", prompt_cache=True, state=False) as client:
        await ask(client, "preset")
    assert "preset" not in seen(home, ids_of)
    cache = PromptCache(private=True)
    async with AsyncDisco(local="smollm2-135m", preset="private", prompt_cache=cache, state=False) as client:
        await ask(client, "preset")
    assert "preset" in seen(home, ids_of)
