"""The attention of the last tokens of a prompt: it adds up to one, and does not depend on what is in the cache."""

import numpy as np
import pytest
from papers.local_model import LocalModel
from papers.measure.attention import AttentionReader

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model():
    loaded = LocalModel("smollm2-135m", threads=1, context_tokens=256, batch_tokens=32)
    yield loaded
    loaded.close()


def test_the_weights_add_up_to_one_and_are_those_of_a_fresh_context(model):
    text = "The mill at Orrin burned down in 1802. " * 5
    first, second = (
        model.tokenize(f"{text}{asked}", special=False) for asked in ("When was that?", "Which mill?")
    )
    window = 4
    used, fresh = AttentionReader(model), AttentionReader(model)
    try:
        used.weights(first, window)
        found, expected = used.weights(second, window), fresh.weights(second, window)
    finally:
        used.close()
        fresh.close()
    assert found.shape == (len(second),)
    assert found.sum() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert found[: len(first) // 2].sum() > 0.1
