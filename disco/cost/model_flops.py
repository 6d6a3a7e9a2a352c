"""FLOPs of a transformer from the shapes in its file's header: per token, as a function of the context's length.

One multiply-add counts as two FLOPs. With n blocks, width d, h heads of size e (keys) and e' (values), k key-value
heads, feed-forward width f, vocabulary V:

    W = n·[ d·h·e + d·k·(e + e') + h·e'·d + g·d·f ]         weights of the blocks that one token is multiplied with
    token at position p (it attends to p tokens, itself included):   F(p) = 2·W + 2·n·h·(e + e')·p
    logits of one token:                                             2·d·V

g is 3 for a gated feed-forward part (up, gate, down) and 2 for a plain one. With X experts, u of them used per token
and of width x, `g·d·f` becomes `u·g·d·x + d·X` (the router), plus `g·d·s` where a shared expert of width s always runs.

    decode at context p:            F(p) + 2·d·V
    prefill of L tokens, per token: 2·W + n·h·(e + e')·(L + 1) + 2·d·V / L

since the mean position in a prompt of L tokens is (L + 1)/2, and logits are computed for its last token only, as
llama.cpp does. Looking up an embedding multiplies nothing. Norms, activations, softmax, positions and biases are left
out: well under 1 % of the work. Sliding windows are taken for full attention, so for such a model F is an upper bound
at contexts beyond the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from disco.profiles import FlopsPerToken

__all__ = ["LENGTHS", "ModelShapes"]

LENGTHS: Final = (32, 64, 128, 512, 2048)
"""Prompt lengths, tokens, at which a profile of FLOPs is made."""
TYPICAL_CONTEXT: Final = 512
"""Context at which a token of an answer is counted where one number has to do, tokens."""

# Architectures, as the header names them, with a gated and with a plain feed-forward part. Others are built in ways
# that this count does not know (recurrent or hybrid blocks, compressed attention), and have no FLOPs here.
_GATED: Final = frozenset(
    (
        *("baichuan", "cohere2", "command-r", "ernie4_5", "exaone", "gemma", "gemma2", "gemma3", "gpt-oss"),
        *(
            "granite",
            "granitemoe",
            "hunyuan-dense",
            "internlm2",
            "llama",
            "minicpm",
            "mistral3",
            "olmo",
            "olmo2",
        ),
        *("orion", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "smollm3", "stablelm", "xverse"),
    )
)
_PLAIN: Final = frozenset(
    ("bloom", "codeshell", "falcon", "gpt2", "gptneox", "mpt", "phi2", "starcoder", "starcoder2")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShapes:
    """The shapes of a transformer; see the module's docstring for what they are used for.

    Attributes:
        blocks, width, heads, kv_heads: n, d, h, k.
        key_size, value_size: e and e', of one head.
        feed_forward: f; with experts, that of none of them.
        vocabulary: V, tokens.
        gated: whether the feed-forward part has a gate.
        experts, experts_used, expert_feed_forward, shared_feed_forward: X, u, x and s; 0 without experts.
    """

    blocks: int
    width: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    feed_forward: int
    vocabulary: int
    gated: bool = True
    experts: int = 0
    experts_used: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0

    @classmethod
    def of(cls, metadata: Mapping[str, object], *, vocabulary: int | None = None) -> ModelShapes | None:
        """Return the shapes that a GGUF header tells; None where they do not describe a known kind of transformer.

        Args:
            metadata: the scalar entries of the header (`endpoints.gguf_header.Header.metadata`).
            vocabulary: number of tokens in the tokenizer's list, for files whose header does not tell it.
        """
        architecture = metadata.get("general.architecture")
        is_known = architecture in _GATED or architecture in _PLAIN

        def entry(key: str, default: int = 0) -> int:
            value = metadata.get(f"{architecture}.{key}", default)
            return value if isinstance(value, int) and not isinstance(value, bool) else 0

        width, heads, blocks = entry("embedding_length"), entry("attention.head_count"), entry("block_count")
        tokens = entry("vocab_size") or vocabulary or 0
        # Lists by block are not among the scalars: such a model has blocks of several kinds.
        if not is_known or not (width and heads and blocks and tokens):
            return None
        size = entry("attention.key_length") or width // heads
        experts, feed_forward = entry("expert_count"), entry("feed_forward_length")
        if not (feed_forward or (experts and entry("expert_feed_forward_length"))):
            return None
        kv_heads = entry("attention.head_count_kv", heads)
        if not kv_heads or (experts and not entry("expert_used_count")):
            return None
        return cls(
            blocks=blocks,
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            key_size=size,
            value_size=entry("attention.value_length") or size,
            feed_forward=feed_forward,
            vocabulary=tokens,
            gated=architecture in _GATED,
            experts=experts,
            experts_used=entry("expert_used_count") if experts else 0,
            expert_feed_forward=(entry("expert_feed_forward_length") or feed_forward) if experts else 0,
            shared_feed_forward=entry("expert_shared_feed_forward_length") if experts else 0,
        )

    @property
    def weights(self) -> int:
        """W: weights of the blocks that one token is multiplied with."""
        d, matrices = self.width, 3 if self.gated else 2
        attention = d * self.heads * (self.key_size + self.value_size)
        attention += d * self.kv_heads * (self.key_size + self.value_size)
        if self.experts:
            wide = self.experts_used * self.expert_feed_forward + self.shared_feed_forward
            feed_forward = matrices * d * wide + d * self.experts
        else:
            feed_forward = matrices * d * self.feed_forward
        return self.blocks * (attention + feed_forward)

    @property
    def attention(self) -> int:
        """FLOPs of one token for each token that it attends to."""
        return 2 * self.blocks * self.heads * (self.key_size + self.value_size)

    @property
    def logits(self) -> int:
        """FLOPs of the logits of one token."""
        return 2 * self.width * self.vocabulary

    def decode(self, context_tokens: float) -> float:
        """Return the FLOPs of one token of an answer that attends to so many tokens, itself included."""
        return 2 * self.weights + self.attention * context_tokens + self.logits

    def prefill(self, prompt_tokens: float, *, cached_tokens: float = 0.0) -> float:
        """Return the FLOPs per token that is read of a prompt: its mean over all that are not cached.

        Args:
            prompt_tokens: length of the prompt, at least 1.
            cached_tokens: how many of its first tokens need not be read, fewer than there are.
        """
        read = prompt_tokens - cached_tokens
        mean_position = cached_tokens + (read + 1) / 2
        return 2 * self.weights + self.attention * mean_position + self.logits / read

    def flops(self) -> FlopsPerToken:
        """Return them as a device profile has them: prefill by length, and decode at a typical context."""
        return FlopsPerToken(
            prompt_tokens=tuple(map(float, LENGTHS)),
            prefill=tuple(self.prefill(tokens) for tokens in LENGTHS),
            decode=self.decode(TYPICAL_CONTEXT),
        )
