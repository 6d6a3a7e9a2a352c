"""What a split endpoint learns of its link and of the cloud behind it, from frames with made-up times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco.endpoints.split.link_meter import Answered, LinkMeter
from disco.speculate.chunks import PassTimes
from tests.endpoints.split.test_wire import FACTS

STATE_BYTES = 1000
PASSES = ((1, 0.02), (63, 0.9), (64, 0.25), (256, 0.9))  # from 64 rows on another kernel
IDLE = replace(FACTS, most_rows=256, compute_s=PASSES, load=0.0)


def test_an_idle_link_is_measured_from_small_and_large_frames():
    def probe(rows, wanted):
        return Answered(0.05 + rows * STATE_BYTES / 1e6 + wanted * STATE_BYTES / 2e6 + 0.3, 0.3)

    meter = LinkMeter(IDLE)
    meter.measure(probe, STATE_BYTES, 256)
    assert meter.rtt_s == pytest.approx(0.051)  # a row goes up with the smallest frame
    assert meter.up_bps == pytest.approx(1e6, rel=0.05)
    assert meter.down_bps == pytest.approx(2e6, rel=0.05)


def test_the_cloud_computes_a_long_chunk_in_several_passes_and_its_times_are_corrected_by_what_is_seen():
    meter = LinkMeter(IDLE)
    meter.computed(256, 256, 1.8)  # twice what the server said
    cloud = meter.path(PassTimes([(1, 0.0)]), STATE_BYTES).cloud_s
    assert cloud.s(256) == pytest.approx(1.8)
    assert cloud.s(268) == pytest.approx(2 * cloud.s(134))
