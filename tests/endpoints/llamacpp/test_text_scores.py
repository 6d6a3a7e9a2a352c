"""Log probabilities of a given text: those that the model had when it wrote the text itself."""

import numpy as np
import openai
import pytest

from disco.errors import DiscoError
from disco.request import Request
from tests.endpoints.llamacpp.answers import ask

pytestmark = [pytest.mark.real, pytest.mark.anyio]


async def test_a_text_has_the_log_probabilities_with_which_it_was_written(
    thread_model, slots_model, engine_host
):
    request = ask(max_tokens=12)
    written, logp = "", []
    async with thread_model.open(request, wants=frozenset({"logp"})) as attempt:
        async for event in attempt:
            if isinstance(event, list):
                for delta in event:
                    written += delta.text
                    logp += delta.logp or ()
    texts = [f"{written} and", written, "", written[: len(written) // 2]]
    for endpoint in (thread_model, slots_model, engine_host):
        longer, same, none, half = await endpoint.log_probabilities(request, texts)
        np.testing.assert_allclose(same, logp, atol=0.5)  # it was computed token by token, now in batches
        assert abs(np.mean(same) - np.mean(logp)) < 0.1
        assert longer[: len(same)] == same
        assert len(longer) > len(same) > len(half) > len(none) == 0
        assert max(longer) <= 0.0


async def test_what_cannot_be_read_is_refused(thread_model):
    with pytest.raises(openai.OpenAIError, match="longest text"):
        await thread_model.log_probabilities(ask(), ["good " * 2030])
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    with pytest.raises((openai.OpenAIError, DiscoError)):
        await thread_model.log_probabilities(Request([picture], ""), ["good"])
