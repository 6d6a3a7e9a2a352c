"""A loaded model's vocabulary: its tokens, what they spell, and a text's tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakMethod

from disco.endpoints.llamacpp.constraints import Vocabulary
from disco.endpoints.llamacpp.prompting.token_healing import PieceIndex
from disco.errors import LocalModelError

__all__ = ["ModelTokens"]


class ModelTokens:
    """The tokens of a loaded model.

    Attributes:
        vocabulary: fingerprint of the tokenizer.
        vocabulary_tokens: how many tokens there are.
        index: the tokens by their bytes.
        template, bos_token, bos_text, eos_text: what the model's chat template needs.
    """

    _lib: Any
    _vocab: Any
    vocabulary: str | None

    def _read_vocabulary(self, model: Any) -> None:
        """Read the vocabulary of a model that was just loaded."""
        lib = self._lib
        self._vocab = lib.llama_model_get_vocab(model)
        self.vocabulary_tokens = int(lib.llama_vocab_n_tokens(self._vocab))
        self._pieces = self._read_pieces()
        self.index = PieceIndex(self._pieces)
        self.bos_token = int(lib.llama_vocab_bos(self._vocab))
        self.bos_text = self._special_text(self.bos_token)
        self.eos_text = self._special_text(int(lib.llama_vocab_eos(self._vocab)))
        template = lib.llama_model_chat_template(model, None)
        self.template = None if template is None else template.decode("utf-8", "replace")

    def _read_pieces(self) -> list[bytes]:
        # Some pieces are longer than any fixed buffer (a newline with 32 spaces); the call then returns
        # minus the length.
        lib, vocab = self._lib, self._vocab
        size = 64
        buffer = ctypes.create_string_buffer(size)
        pieces = []
        for token in range(self.vocabulary_tokens):
            length = lib.llama_token_to_piece(vocab, token, buffer, size, 0, False)
            if length < 0:
                size = -length
                buffer = ctypes.create_string_buffer(size)
                length = lib.llama_token_to_piece(vocab, token, buffer, size, 0, False)
            pieces.append(buffer.raw[: max(length, 0)])
        return pieces

    def _special_text(self, token: int) -> str:
        if token < 0:
            return ""
        text: bytes = self._lib.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token spells; none for control tokens."""
        return self._pieces[token]

    def spell(self, ids: Sequence[int]) -> bytes | None:
        """Return the bytes that `ids` spell together; None where one of them is no token of this model."""
        if any(not 0 <= token < self.vocabulary_tokens for token in ids):
            return None
        return b"".join(self._pieces[token] for token in ids)

    def ends_answer(self, token: int) -> bool:
        """Return True for end-of-turn and end-of-text tokens."""
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def grammar_vocabulary(self) -> Vocabulary:
        """The vocabulary for grammars, made when the first answer needs one."""
        ends = [token for token in range(self.vocabulary_tokens) if self.ends_answer(token)]
        tokenize = WeakMethod(self.tokenize)

        def ids(text: str) -> list[int]:
            method = tokenize()
            return [] if method is None else method(text, special=False)

        return Vocabulary(self._pieces, ends, ids)

    @property
    def wants_bos(self) -> bool:
        """Whether the model was trained with a begin-of-text token before every text."""
        return bool(self._lib.llama_vocab_get_add_bos(self._vocab)) and self.bos_token >= 0

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of a text, without any begin-of-text token.

        Args:
            text: the text to tokenize.
            special: read `<|im_end|>` and similar markers as control tokens rather than as text.
        """
        lib, data = self._lib, text.encode()
        room = len(data) + 8
        ids = (lib.llama_token * room)()
        count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if count < 0:
            room = -count
            ids = (lib.llama_token * room)()
            count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if count < 0:
            raise LocalModelError("llama.cpp could not tokenize the prompt.")
        return list(ids[:count])
