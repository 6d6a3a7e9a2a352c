"""The policy decides as its description says, for one request and for many at once."""

import numpy as np
import pytest
from disco_plugin_example.first_word_by import FirstWordBy

from disco.dispatch import Candidate, Features
from disco.profiles import Empirical, Lengths

# 0.2 s and 0.01 s a token: 80 prompt tokens are the last that come within a second.
DEVICE = Candidate("device", "device", prefill_tps=100.0, overhead_s=0.2)
SERVER = Candidate("server", "any")
TTFT = Empirical.from_samples(np.linspace(0.1, 0.6, 51))


def starts(
    policy: FirstWordBy,
    tokens: int,
    device: Candidate | None = DEVICE,
    server: Candidate | None = SERVER,
) -> list[tuple[str, float]]:
    return [(s.endpoint, round(s.after_s, 6)) for s in policy.starts(Features(tokens), device, server)]


def test_the_server_is_asked_where_the_device_would_be_late_and_as_late_as_it_may_be() -> None:
    policy = FirstWordBy(ttft=TTFT, device=DEVICE)
    rescue_s = round(1.0 - TTFT.quantile(0.9), 6)
    assert 0.4 < rescue_s < 0.5
    assert starts(policy, 80) == [("device", 0.0), ("server", 1.0)]
    assert starts(policy, 81) == [("device", 0.0), ("server", rescue_s)]
    policy.refit(Lengths.from_samples([10]), Empirical.from_samples([1.5, 2.0]))
    assert starts(policy, 81) == [("device", 0.0), ("server", 0.0)]  # even at once it would be late
    assert starts(policy, 81, device=None) == [("server", 0.0)]
    assert starts(policy, 81, server=None) == [("device", 0.0)]


def test_many_at_once_are_decided_as_one_by_one() -> None:
    tokens = np.arange(1, 400)
    cases: list[dict[str, float]] = [{}, {"target_s": 0.3}, {"target_s": 2.0, "sure": 0.5}]
    for options in cases:
        policy = FirstWordBy(ttft=TTFT, device=DEVICE, **options)
        at_once = policy.delays(tokens)
        one_by_one = [dict(starts(policy, int(n))) for n in tokens]
        assert at_once.device_s.tolist() == [decision["device"] for decision in one_by_one]
        assert at_once.server_s.round(6).tolist() == [decision["server"] for decision in one_by_one]


def test_options_out_of_range_are_refused() -> None:
    cases: list[dict[str, float]] = [{"target_s": 0.0}, {"target_s": float("inf")}, {"sure": 1.0}]
    for wrong in cases:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FirstWordBy(ttft=TTFT, device=DEVICE, **wrong)
