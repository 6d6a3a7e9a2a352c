"""A model cut in two that `disco split audit` attacks: both sides, and what the cloud sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import Part, read_layer_file
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.errors import LocalModelError

__all__ = ["ANSWER_TOKENS", "MOST_TOKENS", "AuditedSplit"]

MOST_TOKENS: Final = 512
"""Of a prompt. More of it is read in the same way."""
ANSWER_TOKENS: Final = 24

States = npt.NDArray[np.floating[Any]]


class AuditedSplit:
    """Writes answers as a device and a cloud would.

    Mutable: the models' caches.

    Attributes:
        answers: whether the cloud's files are there, so that answers can be written.

    Args:
        files: the parts; the device's at least.
        threads: of llama.cpp.

    Raises:
        ModelFileError: a file is not usable, or another part.
        LocalModelError: llama.cpp refused one.
    """

    def __init__(self, files: Mapping[Part, Path], threads: int) -> None:
        known = read_layer_file(files["device"], "device")
        context_tokens = min(MOST_TOKENS + ANSWER_TOKENS, known.context_tokens)
        self._models: list[DeviceModel | StateModel] = []
        self.answers = "cloud" in files and "head" in files
        try:
            self._device = DeviceModel(
                files["device"],
                context_tokens=context_tokens,
                threads=threads,
                batch_tokens=MOST_TOKENS,
                gpu_layers=-1,
                keep_loading=lambda: True,
            )
            self._models.append(self._device)
            self._device.forget()
            if self.answers:
                sizes: dict[str, Any] = {
                    "context_tokens": context_tokens,
                    "threads": threads,
                    "most_rows": MOST_TOKENS,
                }
                self._cloud = StateModel(files["cloud"], "cloud", **sizes)
                self._models.append(self._cloud)
                self._head = StateModel(files["head"], "head", **sizes)
                self._models.append(self._head)
        except BaseException:
            self.close()
            raise

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without what a chat template would put around it."""
        return self._device.tokenize(text, special=False)

    def spell(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return b"".join(map(self._device.piece, ids)).decode("utf-8", "replace")

    def prompt_states(self, ids: Sequence[int]) -> States:
        """Return what goes up for a prompt, shape (tokens, hidden)."""
        self._device.cut(0, 0)
        return _as_sent(self._device.compute_states(0, 0, ids, logits_from=len(ids)))

    def write(
        self, ids: Sequence[int], *, temperature: float, random: np.random.Generator
    ) -> tuple[list[int], list[int], States]:
        """Write an answer to a prompt, up to its end or `ANSWER_TOKENS`.

        Returns:
            The tokens that the device chose; those that the cloud reads by applying the open model's head to the states
            that it sends down; and all that went up, shape (tokens of the prompt and all of the answer but the last,
            hidden).
        """
        up = self.prompt_states(ids)
        sent, chosen, read = [up], list[int](), list[int]()
        self._cloud.cut(0, 0)
        while True:
            at = len(ids) + len(chosen) - 1 if chosen else 0
            down = _as_sent(self._cloud.compute([StateRows(0, at, up, len(up) - 1)])[0])
            logits = self._logits(down)  # as here, so in the cloud: the head of an open model is public
            read.append(int(logits.argmax()))
            noise = random.gumbel(size=len(logits)) * temperature  # drawn with it, the largest is a sample
            token = int((logits + noise).argmax())
            chosen.append(token)
            if len(chosen) == ANSWER_TOKENS or self._device.ends_answer(token):
                return chosen, read, np.concatenate(sent)
            place = len(ids) + len(chosen) - 1
            up = _as_sent(self._device.compute_states(0, place, [token], logits_from=1))
            sent.append(up)

    def _logits(self, states: States) -> npt.NDArray[np.float32]:
        self._head.cut(0, 0)
        (logits,) = self._head.compute([StateRows(0, 0, states)])[0]
        return np.array(logits)

    def close(self) -> None:
        """Free the models. Idempotent."""
        for model in self._models:
            model.close()


def _as_sent(states: npt.NDArray[np.float32]) -> States:
    """Return states in fp16, or unchanged where they do not fit.

    Raises:
        LocalModelError: they are no numbers.
    """
    if not np.isfinite(states).all():
        raise LocalModelError(
            "The device's layers gave states that are no numbers: the file is damaged. Cut it again."
        )
    with np.errstate(over="ignore"):
        halved = states.astype(np.float16)
    return halved if np.isfinite(halved).all() else states.copy()
