"""Why early exit has a level of its own: a simpler rule does not hold beta, in 200 long histories.

The simpler rule ranks the running score at every checkpoint among the scores of earlier answers there. The lowest of
these ranks is the answer's statistic. The answer goes up as soon as the exact rule would hand up its statistic, judged
by those of earlier answers. Answers that left early lack later checkpoints; their statistic is the one at the exit.
"""

from __future__ import annotations

import math
import random

import pytest

from disco.judging import CHECKPOINTS, ExitHistory, RunningConfidence, ScoreHistory, judge, tie_breaker

TRIALS, ANSWERS = 200, 500
LENGTHS = (3, 5, 12, 20, 40)  # five checkpoints


def made_answers(seed):
    """Yield log probabilities of answers; the running scores of one answer are correlated."""
    draw = random.Random(seed)
    for _ in range(ANSWERS):
        unsure = math.exp(draw.gauss(0, 0.7))
        yield [-abs(draw.gauss(0, 1)) * unsure for _ in range(draw.choice(LENGTHS))]


class ByRanks:
    def __init__(self, beta, seed):
        self.beta, self.seed = beta, seed
        self.at = {count: ScoreHistory() for count in CHECKPOINTS}
        self.statistics = ScoreHistory()

    def rises(self, logp):
        statistic, running = 1.0, RunningConfidence()
        for value in logp:
            running.add((value,))
            history = self.at.get(running.tokens)
            if history is None:
                continue
            score = running.score("mean")
            statistic = min(statistic, self.rank(score, history, self.seed + running.tokens))
            history.push(score)
            if self.rank(statistic, self.statistics, self.seed) < self.beta:
                break
        return judge(statistic, self.statistics, self.beta, seed=self.seed).rises

    def rank(self, score, history, seed):
        lower, equal = history.rank(score)
        return (lower + tie_breaker(seed, history.seen) * (equal + 1)) / (len(history) + 1)


class WithLevel:
    def __init__(self, beta, seed):
        self.beta, self.seed = beta, seed
        self.history = ExitHistory("mean")

    def rises(self, logp):
        watch = self.history.watch(self.beta, seed=self.seed)
        return (watch.add(logp) or watch.end()).rises


def sigmas_off(rule, beta):
    """Return by how many standard deviations the share handed up differs from beta."""
    rises = 0
    for trial in range(TRIALS):
        one = rule(beta, trial)
        rises += sum(one.rises(logp) for logp in made_answers(trial))
    count = TRIALS * ANSWERS
    share = rises / count
    print(f"{rule.__name__}, beta {beta}: {share:.4f} of {count:,} answers go up")
    return (share - beta) / math.sqrt(beta * (1 - beta) / count)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.1, 0.3, 0.5])
def test_ranks_at_checkpoints_hand_up_too_many_and_a_level_does_not(beta):
    assert sigmas_off(ByRanks, beta) > 5
    assert abs(sigmas_off(WithLevel, beta)) < 3
