"""FLOPs from the shapes in a model file's header, against what is known of real models and the paper's table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cost.model_flops import ModelShapes
from disco.endpoints.gguf_header import read_header
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS, locate
from disco.profiles import load_device


def shapes(**given: int | bool) -> ModelShapes:
    usual = {"blocks": 2, "width": 8, "heads": 2, "kv_heads": 1, "key_size": 4, "value_size": 4}
    return ModelShapes(**{**usual, "feed_forward": 16, "vocabulary": 100, **given})


def metadata(architecture: str = "llama", **entries: object) -> dict[str, object]:
    usual = {
        "block_count": 28,
        "embedding_length": 3072,
        "feed_forward_length": 8192,
        "attention.head_count": 24,
        "attention.head_count_kv": 8,
        "vocab_size": 128256,
    }
    given = {key.replace("__", "."): value for key, value in entries.items()}
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{k}": v for k, v in (usual | given).items()},
    }


def test_the_weights_of_real_models_are_those_that_they_are_known_to_have():
    """Without norms. Llama 3.2 3B: 3.21e9, one matrix for embedding and logits; Mixtral: 12.9e9 active of 46.7e9."""
    llama = ModelShapes.of(metadata())
    assert llama.weights + llama.logits / 2 == pytest.approx(3.2126e9, rel=1e-4)
    mixtral = ModelShapes.of(
        metadata(
            block_count=32,
            embedding_length=4096,
            feed_forward_length=14336,
            attention__head_count=32,
            vocab_size=32000,
            expert_count=8,
            expert_used_count=2,
        )
    )
    assert mixtral.weights + mixtral.logits == pytest.approx(12.88e9, rel=2e-3)


def test_the_shipped_models_header_gives_all_but_its_norms():
    """SmolLM2-135M has 134,515,008 weights, of which 61 norms of 576 multiply no matrix."""
    header = read_header(locate("smollm2-135m"), scalars_only=True)
    one = ModelShapes.of(header.metadata, vocabulary=header.tokens)
    assert header.tokens == one.vocabulary == 49152
    assert one.weights + one.logits / 2 == 134_515_008 - 61 * 576
    assert EngineEndpoint().header == header
    assert len(KNOWN_MODELS) == 1


# 24 blocks each. The paper counts a multiply-add once, the look-up of an embedding as a product with the whole matrix,
# and adds L²·(d + 4·heads) per block to each token of a prompt of L tokens.
PAPER = {
    "pixel7pro-bloom-1.1b": (1024, 16, 4096, 250880),
    "xiaomi14-qwen1.5-0.5b": (768, 12, 2048, 151936),
}


@pytest.mark.parametrize("name", PAPER)
def test_two_of_the_papers_three_columns_follow_from_the_shapes_it_prints(name):
    width, heads, feed_forward, vocabulary = PAPER[name]
    size = width // heads
    one = ModelShapes(
        blocks=24,
        width=width,
        heads=heads,
        kv_heads=heads,
        key_size=size,
        value_size=size,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        gated=False,
    )
    printed = load_device(name).flops
    decode = one.decode(128) / 2 + width * vocabulary
    assert decode == pytest.approx(printed.decode, abs=0.005e9)
    for tokens, prefill in zip(printed.prompt_tokens, printed.prefill, strict=True):
        as_printed = one.decode(tokens) / 2 + width * vocabulary + 24 * tokens**2 * (width + 4 * heads)
        assert as_printed == pytest.approx(prefill, abs=0.0065e9)


@given(
    st.integers(1, 4000),
    st.integers(0, 3000),
    st.builds(shapes, blocks=st.integers(1, 40), kv_heads=st.integers(1, 2), gated=st.booleans()),
)
def test_prefill_is_the_mean_of_its_tokens_and_one_row_of_logits(tokens, cached, one):
    total = one.prefill(cached + tokens, cached_tokens=cached) * tokens
    by_token = sum(one.decode(position) - one.logits for position in range(cached + 1, cached + tokens + 1))
    assert total == pytest.approx(by_token + one.logits)
    assert one.prefill(cached + tokens, cached_tokens=cached) <= one.decode(cached + tokens)


def test_a_profile_has_them_by_length():
    one = shapes()
    flops = one.flops()
    assert flops.prefill_at(128) == one.prefill(128)
    assert flops.decode == one.decode(512)


@pytest.mark.parametrize(
    "given",
    [
        {},
        metadata("mamba"),
        metadata(embedding_length=0),
        metadata(attention__head_count="many"),
        {k: v for k, v in metadata().items() if not k.endswith("vocab_size")},
        {k: v for k, v in metadata().items() if not k.endswith("feed_forward_length")},
        metadata(attention__head_count_kv=0),
        metadata(expert_count=8),
    ],
)
def test_a_header_that_does_not_describe_a_known_kind_has_none(given):
    assert ModelShapes.of(given) is None


def test_the_list_of_tokens_stands_in_for_a_vocabulary_that_the_header_does_not_tell():
    without = {k: v for k, v in metadata("qwen2").items() if not k.endswith("vocab_size")}
    assert ModelShapes.of(without, vocabulary=151936).vocabulary == 151936
    plain = ModelShapes.of(metadata("bloom"))
    assert not plain.gated
    assert ModelShapes.of(metadata(attention__key_length=192, attention__value_length=128)).key_size == 192
