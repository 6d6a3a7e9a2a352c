"""A half-written answer as token ids, where disco has proved that both endpoints use one vocabulary.

llama-server accepts prompts that mix text and ids. So the head of a prompt is sent as text, and the answer so far as
the tokens in which it was written: it is not tokenised anew, and nothing in it is read as a control token. Ids save no
bytes in JSON, and they do not make the target write the same words (docs/concepts/continuation.md).

The same id means another word in another vocabulary. So the fingerprint of a file is not proof enough: the server is
asked to decode a sample of the file's tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import openai

from disco.endpoints.continuation.methods import Call, completions_body
from disco.endpoints.gguf_header import GgufError, read_header, read_tokens
from disco.request import Prefix, Request

__all__ = ["ids_call", "proved_vocabulary"]

_SAMPLE = 256
# Words that every kind of tokenizer spells the same way, except for the mark of the space before them.
_PLAIN = re.compile(r"(?:\u0120|\u2581)?[A-Za-z0-9]+")
_SPACES = str.maketrans({"\u0120": " ", "\u2581": " "})


def ids_call(request: Request, prefix: Prefix, head: str) -> Call:
    """Return the `/completions` request that continues `prefix.ids` (not empty, nothing of it withheld).

    Args:
        request: the chat request.
        prefix: the answer so far.
        head: the prompt up to the assistant's turn, as the server rendered it.
    """
    call = completions_body(request, prefix, [head, *(prefix.ids or ())])
    return replace(call, method="token_ids")


async def proved_vocabulary(client: openai.AsyncOpenAI, path: str | Path) -> str | None:
    """Return the fingerprint of a GGUF file's vocabulary if the server behind `client` has the same one, else None.

    Sends two requests: one for the number of the server's tokens, one to decode 256 of the file's tokens, spread over
    the whole vocabulary.
    """
    known = await anyio.to_thread.run_sync(_known, Path(path))
    if known is None:
        return None
    fingerprint, tokens = known
    sample = _sample(tokens)
    options: Any = {"max_retries": 0}
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    try:
        models = await client.get("/models", cast_to=object, options=options)
        answer = await client.post(
            f"{root}/detokenize", body={"tokens": sample}, cast_to=object, options=options
        )
    except (openai.OpenAIError, httpx2.HTTPError, ValueError):
        return None
    spelled = answer.get("content") if isinstance(answer, Mapping) else None
    expected = "".join(tokens[number].translate(_SPACES) for number in sample)
    proved = bool(sample) and spelled == expected and len(tokens) in _sizes(models)
    return fingerprint if proved else None


def _known(path: Path) -> tuple[str, list[str]] | None:
    try:
        if not path.is_file():  # a server has named it: what it names may be a pipe, which would not end
            return None
        fingerprint = read_header(path).vocabulary
        tokens = [token.decode("utf-8", "replace") for token in read_tokens(path)]
    except (GgufError, OSError, ValueError):  # ValueError: a null byte in the path
        return None
    return None if fingerprint is None or not tokens else (fingerprint, tokens)


def _sample(tokens: Sequence[str]) -> list[int]:
    plain = [number for number, token in enumerate(tokens) if _PLAIN.fullmatch(token)]
    step = max(1, len(plain) // _SAMPLE)
    return [*plain[::step][: _SAMPLE - 1], *plain[-1:]]


def _sizes(models: object) -> set[object]:
    """Return the numbers of tokens that the models in llama-server's list have."""
    listed = models.get("data") if isinstance(models, Mapping) else None
    entries = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    metas = [item.get("meta") for item in entries]
    return {meta.get("n_vocab") for meta in metas if isinstance(meta, Mapping)}
