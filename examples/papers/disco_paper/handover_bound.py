"""What a clairvoyant saves by migration: a bound that no order of handing over can beat, and that is not free of cost.

The clairvoyant knows the length of every answer and the target's time at every try. It still has to have enough in
the reader's bank to cover that time, to cut at the start of a word, and to pay for the tokens that the source wrote
until then, the target's prompt, and one prompt for every try that it lets pass.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from disco.playback import last_word_start
from disco.profiles import LinearFit
from disco.replay import Outcome, Scenario, Workload, as_stations, shared_prose

__all__ = ["TRIES", "clairvoyant_saving_usd"]

Floats = NDArray[np.float64]

TRIES = 8
"""Tries that the clairvoyant looks ahead; a session makes fewer."""


def clairvoyant_saving_usd(workload: Workload, scenario: Scenario, staying: Outcome, *, seed: int) -> float:
    """Return the most that migrations can save on these requests without a late token, in USD.

    Args:
        workload: as the event-accurate evaluator gets it.
        scenario: gives rates, speeds and the reader's pace.
        staying: the outcome without migration, which says who wrote and who has read the prompt.
        seed: seed of that evaluator; the times of later attempts are drawn from it.
    """
    stations, columns = as_stations(workload, scenario, seed=seed)
    dear = 0 if scenario.device_rates.cost_out > scenario.server_rates.cost_out else 1
    source, target = stations[dear], stations[1 - dear]
    rates, pace_tps = target.rates, scenario.pace_tps
    assert pace_tps is not None
    started = (staying.device_prompt_tokens, staying.server_prompt_tokens)[1 - dear] > 0
    saving_usd = 0.0
    for row in np.flatnonzero(staying.device_won if dear == 0 else ~staying.device_won).tolist():
        prompt, answer = int(workload.prompt_tokens[row]), int(workload.answer_tokens[row])
        kept = _kept_tokens(answer)[: answer - 1]  # after 1, 2, … tokens of the source, the last one excluded
        written = np.arange(1, answer)
        slack_s = kept / pace_tps - (written - 1) * columns.tpot_s[row, dear]
        if isinstance(target.ttft, LinearFit):
            held = prompt if started[row] else 0
            to_read = prompt - held + kept
            passed_usd = np.array([0.0])
            takes_s = (target.ttft.k_s_per_token * to_read + target.ttft.c_s)[:, np.newaxis]
        else:
            to_read = prompt + kept
            passed_usd = np.arange(TRIES, dtype=np.float64) * prompt * rates.cost_in
            again = np.random.default_rng([*columns.again[1 - dear], row])
            takes_s = target.ttft.sample(again, TRIES)[np.newaxis, :]
        left = (answer - kept) * rates.cost_out + to_read * rates.cost_in
        moved_usd = (written * source.rates.cost_out + left)[:, np.newaxis] + passed_usd
        feasible = (slack_s[:, np.newaxis] >= takes_s) & (kept > 0)[:, np.newaxis]
        saved = answer * source.rates.cost_out - moved_usd[feasible]
        saving_usd += max(0.0, float(saved.max(initial=0.0)))
    return saving_usd


@lru_cache(maxsize=1024)
def _kept_tokens(tokens: int) -> NDArray[np.intp]:
    """Return how many tokens lie before the cut after 1, 2, … tokens of a simulated answer; shape (tokens,)."""
    texts = shared_prose(tokens)
    ends = np.cumsum([len(text) for text in texts])
    cuts = [last_word_start("".join(texts[:count])) for count in range(1, tokens + 1)]
    return np.searchsorted(ends, cuts, side="right")
