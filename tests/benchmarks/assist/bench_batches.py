"""What the sizes of batches cost a model on this machine: where the short batch of a prompt stands, and filling it up.

A prompt is rarely a whole number of batches. Prints, for prompts of several lengths with a last batch of 24 tokens: the
time to read it where the short batch comes last, and where it comes first, as in a parked attempt. Then, for 24 and
for 48 tokens behind prompts of these lengths, as a follower gets them: their time as they are, and as a part of a full
batch, some tokens of which are read again. Processor time of one thread, medians, by turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from helpers.measuring import Columns, options

from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel

BATCH = 64
SHORT = 24
BEHIND = (24, 48)


def read(model: SequenceModel, ids: list[int], sizes: list[int], at: int = 0) -> None:
    """Read ids from a position on, in batches of these sizes."""
    for size in sizes:
        model.compute([Rows(0, at, ids[at : at + size], size - 1)])
        at += size


def seconds(work: Callable[[], object]) -> float:
    """Processor time of some work, s."""
    began_at = time.process_time()
    work()
    return time.process_time() - began_at


def main() -> None:
    """Print both tables."""
    quants = ("Q4_0", "quantisation of the model")
    given = options(__doc__, lengths=[256, 768, 1536], rounds=5, quant=quants)
    path = requantised(resolve_model("smollm2-135m"), given.quant, Path(tempfile.gettempdir()))
    most = max(given.lengths) + 2 * BATCH
    sizes = {"context_tokens": most, "batch_tokens": BATCH}
    model = SequenceModel(path, threads=1, gpu_layers=0, keep_loading=lambda: True, **sizes)
    ids = np.random.default_rng(1).integers(100, 40_000, most).tolist()
    prompts = Columns("prompt >6 | short last s >12.3f | short first s >13.3f | ratio >6.2f")
    behind: list[tuple[int, int, float, float]] = []
    try:
        for length in given.lengths:
            full = [BATCH] * (length // BATCH)
            last: list[float] = []
            first: list[float] = []
            for _ in range(given.rounds):
                for kind, order in ((last, [*full, SHORT]), (first, [SHORT, *full])):
                    model.forget()
                    kind.append(seconds(partial(read, model, ids, order)))
            slow, quick = statistics.median(last), statistics.median(first)
            prompts.row(length + SHORT, slow, quick, quick / slow)
            for tokens in BEHIND:
                plain: list[float] = []
                filled: list[float] = []
                for _ in range(given.rounds):
                    model.cut(0, length)
                    plain.append(seconds(partial(read, model, ids, [tokens], length)))
                    at = length + tokens - BATCH
                    model.cut(0, at)
                    filled.append(seconds(partial(read, model, ids, [BATCH], at)))
                behind.append((length, tokens, statistics.median(plain), statistics.median(filled)))
    finally:
        model.close()
    print()
    table = Columns("behind >6 | tokens >6 | as they are s >13.3f | filled up s >11.3f | ratio >6.2f")
    for length, tokens, plain_s, filled_s in behind:
        table.row(length, tokens, plain_s, filled_s, filled_s / plain_s)


if __name__ == "__main__":
    main()
