"""What a station would do for one attempt: the workload's columns at first, draws of its own after that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_stations import CLOUD, PHONE, one

from disco.endpoints.simulation.simulated_script import Fault, prose
from disco.events import Ended, Usage
from disco.replay.stations import KnownTimes, resolve_stations
from disco.replay.stations.station_scripts import Answers
from disco.replay.workload.trace import Gaps
from disco.request import Prefix
from disco.session.effects import StartAttempt

TEXT = [packet[0].text for packet in prose(64)]


def scripts(*stations, known=None, answer=10):
    workload = resolve_stations(one(answer), stations, seed=7, max_tokens=40, known=known)
    return Answers(workload, stations).of(0)


def tried(of, name, *, written=0, withheld=0, holds=False, limit=None):
    """One attempt from the answer's first `written` tokens on, the last `withheld` of which are to be written again."""
    prefix = Prefix("".join(TEXT[:written]), written, withheld="".join(TEXT[written - withheld : written]))
    events, prompt_tokens, cached_tokens = of.script(StartAttempt(0, name, prefix, limit), holds_prompt=holds)
    return list(events), prompt_tokens, cached_tokens


def first_at(tried):
    return tried[0][0][0]


def ended(tried):
    return tried[0][-1][1]


def test_a_drawn_time_is_the_columns_once_and_drawn_anew_after_that():
    of = scripts(CLOUD, known={"cloud": KnownTimes(ttft_s=[5.0])})
    assert first_at(tried(of, "cloud")) == 5.0
    again = [first_at(tried(of, "cloud")) for _ in range(3)]
    moved = first_at(tried(scripts(CLOUD), "cloud", written=3))
    assert len({*again, moved}) == 3, "the first of a request's later draws is the same, whatever it is for"
    assert all(0.2 <= at <= 0.9 for at in (*again, moved))


def test_a_line_tells_every_time_in_advance_and_reads_on_from_what_it_holds():
    of = scripts(PHONE, known={"phone": KnownTimes(ttft_s=[5.0])})
    assert first_at(tried(of, "phone")) == first_at(tried(of, "phone")) == 5.0
    assert tried(of, "phone", written=4)[1:] == (54, 0)
    assert first_at(tried(of, "phone", written=4)) == pytest.approx(0.1 + 54 / 100)
    assert tried(of, "phone", written=4, holds=True)[1:] == (54, 50)
    assert first_at(tried(of, "phone", written=4, holds=True)) == pytest.approx(0.1 + 4 / 100)


def test_faults_befall_first_attempts_by_the_column_and_later_ones_by_their_share():
    dying = replace(CLOUD, fault=Fault(3, probability=0.5))
    workload = resolve_stations(one(arrivals=np.arange(400.0)), (dying,), seed=7)
    answers = Answers(workload, (dying,))
    attempts = [[len(tried(of, "cloud")[0]) == 4 for _ in range(2)] for of in map(answers.of, range(400))]
    first, second = np.array(attempts).T
    assert first.tolist() == workload.faulty[:, 0].tolist()
    assert (first.mean(), second.mean()) == pytest.approx((0.5, 0.5), abs=0.1)
    assert (second != first).sum() > 100


def test_an_attempt_goes_on_where_the_prefix_ends_in_text_in_gaps_and_in_usage():
    gaps = Gaps(np.array([0, 5]), np.array([0.5, 0.0, 1.5, 0.25, 2.0]))
    of = scripts(PHONE, known={"phone": KnownTimes(gaps=gaps)}, answer=7)
    events = tried(of, "phone", written=2)[0]
    assert [event[0].text for _, event in events[:-1]] == TEXT[2:7]
    assert np.diff([at for at, _ in events]) == pytest.approx([1.5, 0.25, 2.0, 0.05, 0.0])
    assert events[-1][1] == Ended("stop", Usage(52, 5, 0))


def test_what_is_withheld_is_written_again_timed_and_charged_but_not_delivered():
    of = scripts(PHONE)
    plain, behind = tried(of, "phone", written=6), tried(of, "phone", written=6, withheld=2)
    assert [event[0].text for _, event in behind[0][:-1]] == TEXT[6:10]
    assert first_at(behind) == pytest.approx(first_at(plain) + 2 / 20)
    assert (ended(plain).usage.completion_tokens, ended(behind).usage.completion_tokens) == (4, 6)


def test_an_answer_ends_by_itself_or_at_its_limit():
    own, cut, lowered, over = (
        tried(scripts(PHONE, answer=answer), "phone", **how)
        for answer, how in ((10, {}), (60, {}), (60, {"limit": 15}), (10, {"written": 20}))
    )
    assert [ended(of).finish_reason for of in (own, cut, lowered)] == ["stop", "length", "length"]
    assert [len(of[0]) for of in (own, cut, lowered)] == [11, 41, 16]
    assert ended(lowered).usage.completion_tokens == 15
    assert len(over[0]) == 1, "a station whose answer is shorter than what is written has nothing to add"
