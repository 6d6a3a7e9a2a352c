"""The baselines: chance under the same budget, and always the same."""

import numpy as np
import pytest

from disco.dispatch import (
    Candidate,
    DeviceOnly,
    ErrorDiffusion,
    Features,
    Race,
    RandomSplit,
    ServerOnly,
    Start,
)

DEVICE, SERVER = Candidate("d", "device"), Candidate("s", "any")


def split(constrained, budget=0.3):
    return RandomSplit(budget=budget, constrained=constrained, rng=np.random.default_rng(2))


@pytest.mark.parametrize(("constrained", "name"), [("server", "s"), ("device", "d")])
def test_the_constrained_side_gets_its_share_of_tokens(constrained, name):
    policy = split(constrained)
    tokens = np.random.default_rng(3).integers(1, 500, 50_000)
    decided = [policy.starts(Features(n), DEVICE, SERVER) for n in tokens.tolist()]
    used = np.array([Start(name) in starts for starts in decided])
    assert tokens @ used / tokens.sum() == pytest.approx(0.3, abs=0.01)
    assert {len(starts) for starts in decided} == {1}


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        (DeviceOnly(), (Start("d"),)),
        (ServerOnly(), (Start("s"),)),
        (Race(), (Start("d"), Start("s"))),
        (split("server", 0.0), (Start("d"),)),
        (split("server", 1.0), (Start("s"),)),
    ],
)
def test_what_is_certain_and_what_one_side_alone_does(policy, starts):
    assert {policy.starts(Features(1), DEVICE, SERVER) for _ in range(99)} == {starts}
    assert policy.starts(Features(1), DEVICE, None) == (Start("d"),)
    assert policy.starts(Features(1), None, SERVER) == (Start("s"),)
    with pytest.raises(ValueError, match="device or a server"):
        policy.starts(Features(1), None, None)


def test_diffusion_is_fair_in_every_single_decision():
    """Over random phases, the first decision takes exactly its share."""
    taken = [ErrorDiffusion(np.random.default_rng(seed)).take(0.3, 10) for seed in range(4_000)]
    assert np.mean(taken) == pytest.approx(0.3, abs=0.03)
