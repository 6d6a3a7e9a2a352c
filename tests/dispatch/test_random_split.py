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
    rng = np.random.default_rng(2)
    return RandomSplit(budget=budget, constrained=constrained, rng=rng)


@pytest.mark.parametrize(("constrained", "name"), [("server", "s"), ("device", "d")])
def test_the_constrained_side_gets_its_share_of_tokens(constrained, name):
    policy = split(constrained)
    tokens = np.random.default_rng(3).integers(1, 500, 50_000)
    decided = [policy.starts(Features(n), DEVICE, SERVER) for n in tokens.tolist()]
    used = np.array([Start(name) in starts for starts in decided])
    assert tokens @ used / tokens.sum() == pytest.approx(0.3, abs=0.01)
    assert {len(starts) for starts in decided} == {1}


def test_the_ends_of_the_range_are_certain():
    assert {split("server", 0.0).starts(Features(1), DEVICE, SERVER) for _ in range(99)} == {(Start("d"),)}
    assert {split("server", 1.0).starts(Features(1), DEVICE, SERVER) for _ in range(99)} == {(Start("s"),)}


def test_fixed_policies():
    wanted = Features(1)
    assert DeviceOnly().starts(wanted, DEVICE, SERVER) == (Start("d"),)
    assert ServerOnly().starts(wanted, DEVICE, SERVER) == (Start("s"),)
    assert Race().starts(wanted, DEVICE, SERVER) == (Start("d"), Start("s"))


@pytest.mark.parametrize(
    "policy", [DeviceOnly(), ServerOnly(), Race(), split("device")], ids=lambda p: p.name
)
def test_what_is_there_starts_alone_and_nothing_at_all_is_a_mistake(policy):
    assert policy.starts(Features(1), DEVICE, None) == (Start("d"),)
    assert policy.starts(Features(1), None, SERVER) == (Start("s"),)
    with pytest.raises(ValueError, match="device or a server"):
        policy.starts(Features(1), None, None)


def test_diffusion_owes_less_than_the_longest_prompt_at_any_time():
    """Also for a pattern that rounding by requests would fall for: long and short in turn."""
    for seed in range(20):
        diffusion = ErrorDiffusion(np.random.default_rng(seed))
        taken = total = 0
        for i in range(2_000):
            tokens = 1_000 if i % 2 else 3
            total += tokens
            taken += tokens * diffusion.take(0.5, tokens)
            assert abs(taken - 0.5 * total) <= 1_000


def test_diffusion_is_fair_in_every_single_decision():
    """Over random phases, the first decision takes exactly its share."""
    taken = [ErrorDiffusion(np.random.default_rng(seed)).take(0.3, 10) for seed in range(4_000)]
    assert np.mean(taken) == pytest.approx(0.3, abs=0.03)
