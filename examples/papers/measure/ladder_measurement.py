"""Makes a trace of label scores: two logistic regressions and a language model on the same texts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from disco.endpoints.llamacpp import EngineEndpoint
from papers.ladder.label_trace import TraceTier
from papers.measure.few_shot import PLAIN_TEMPLATE, FewShotPrompt, ModelScore, score_text
from papers.measure.labelled_texts import LabelledText
from papers.measure.logistic_regression import LogisticRegression
from papers.measure.unfinished import Unfinished

__all__ = ["FEW_TEXTS", "TierScores", "model_tier", "word_tiers"]

FEW_TEXTS = 300
"""Training texts of the lowest tier."""

_LEAST_LARGE = 2  # pairs that occur once cost memory and change nothing


@dataclass(frozen=True, slots=True)
class TierScores:
    """A tier, and its scores of all texts, shape (texts, labels), nats."""

    tier: TraceTier
    scores: NDArray[np.float64]


def word_tiers(
    train: Sequence[LabelledText],
    texts: Sequence[LabelledText],
    labels: Sequence[str],
    *,
    answer_bytes: float,
) -> list[TierScores]:
    """Train and apply the two lower tiers: words on 300 training texts, words and pairs on all.

    Args:
        train: in random order; the first 300 train the lowest tier.
        texts: to score.
        labels: the labels' names.
        answer_bytes: mean length of an answer.

    Raises:
        ConfigurationError: scipy is not installed.
    """
    found = []
    for pairs, among in ((False, train[:FEW_TEXTS]), (True, train)):
        model = LogisticRegression(
            [one.text for one in among],
            [one.label for one in among],
            label_count=len(labels),
            pairs=pairs,
            least=_LEAST_LARGE if pairs else 1,
        )
        began_s = time.process_time()
        scores = np.array([model.scores(one.text) for one in texts])
        cpu_s = (time.process_time() - began_s) / len(texts)
        what = "words and pairs of words" if pairs else "words"
        tier = TraceTier(
            name=f"words-{len(among)}",
            answer_bytes=answer_bytes,
            cpu_s=cpu_s,
            flops=float(np.mean([model.flops(one.text) for one in texts])),
            about=f"logistic regression on {what} of {len(among):,} training texts, {len(model):,} features",
        )
        found.append(TierScores(tier, scores))
    return found


async def model_tier(
    device: EngineEndpoint,
    prompt: FewShotPrompt,
    texts: Sequence[LabelledText],
    *,
    limit: int,
    unfinished: Path,
    model: str,
    answer_bytes: float,
    progress: Callable[[int, int], None],
) -> TierScores:
    """Score texts with the language model; a measurement that was broken off is continued.

    Args:
        device: the model, with `PLAIN_TEMPLATE`.
        prompt: makes the request for each text.
        texts: all texts.
        limit: how many of them to score, from the first; may be raised to continue a measurement.
        unfinished: the file for the scores so far.
        model: the name or file that `device` was made from; two files may have one name.
        answer_bytes: mean length of an answer.
        progress: called with the texts done and their total.

    Raises:
        ConfigurationError: the file of scores belongs to another measurement.
        OpenAIError: the model failed.
    """
    await device.warm_up()
    with Unfinished(unfinished, _settings(model, prompt, texts)) as so_far:
        for place in range(len(so_far.rows), limit):
            progress(place, limit)
            so_far.add(astuple(await score_text(device, prompt, texts[place].text)))
        progress(limit, limit)
        scores = [ModelScore(*row) for row in so_far.rows[:limit]]
    tokens = float(np.mean([one.tokens for one in scores]))
    tier = TraceTier(
        name=device.profile_name,
        answer_bytes=answer_bytes,
        cpu_s=float(np.mean([one.cpu_s for one in scores])),
        # A forward pass multiplies and adds every weight once for each token.
        flops=2.0 * (device.parameters or 0) * tokens,
        about=f"{len(prompt.examples)} examples in plain text, {tokens:.1f} tokens computed for each text, of which at "
        f"most {prompt.first_words} words of the beginning and {prompt.last_words} of the end were kept",
    )
    return TierScores(tier, np.array([one.scores for one in scores]))


def _settings(model: str, prompt: FewShotPrompt, texts: Sequence[LabelledText]) -> dict[str, object]:
    """Return what the scores depend on; of texts only a hash."""
    digest = hashlib.sha256()
    for one in (*prompt.examples, *texts):
        digest.update(f"{one.label} {one.text}\n".encode())
    settings = asdict(prompt)
    settings["labels"] = list(prompt.labels)
    del settings["examples"]
    return {**settings, "texts": digest.hexdigest(), "template": PLAIN_TEMPLATE, "model": model}
