"""Rounds, slots and passes, with a model whose next token depends on what its caches hold."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.batching.answer import LATE_S
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.round_refusals import ModelChanged, Superseded
from disco.errors import EndpointFailure, FailureKind
from disco.speculate.messages import Verdict
from tests.endpoints.llamacpp.batching.fakes import END, Bench, FakeModel, whole_answer

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]  # longer than a batch


def text_of(verdicts):
    return "".join(delta["delta"]["content"] for verdict in verdicts for delta in verdict.deltas)


def prompt_of(number):
    return [1 + number % 40, *PROMPT, 1 + number // 40]


@pytest.fixture
def expected():
    ids, reason = whole_answer(PROMPT, 30)
    assert (len(ids), reason) == (30, "length")  # of a prompt whose answer does not end early
    return ids


drafts = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 40)), min_size=1)


@settings(max_examples=60)
@given(st.integers(0, 300), st.lists(drafts, min_size=1, max_size=5), st.integers(1, 3))
def test_any_drafts_of_any_answers_over_any_slots_give_the_answer_alone(seed, plans, slots):
    """Right, wrong and half right drafts of several answers at once, with evictions whenever a slot is short."""
    bench = Bench(FakeModel(slots=slots), Limits(hold_s=0.0))
    alone = [whole_answer(prompt_of(seed + key), 30) for key in range(len(plans))]
    whole = [ids + [END] * (reason == "stop") for ids, reason in alone]
    got = [[] for _ in plans]
    verdicts = [[] for _ in plans]
    number = 0
    while any(not v or v[-1].finish_reason is None for v in verdicts):
        open_ = [key for key, v in enumerate(verdicts) if not v or v[-1].finish_reason is None]
        asked = {}
        for key in open_:
            right, wrong_from, junk = plans[key][number % len(plans[key])]
            truth = whole[key][len(got[key]) :][:right]
            draft = [token if place != wrong_from else 1 + junk for place, token in enumerate(truth)]
            prompt = prompt_of(seed + key) if not verdicts[key] else None
            asked[key] = bench.ask(key, number, len(got[key]), draft, prompt=prompt, run=False)
        bench.run()
        bench.now += 1.0
        for key, one in asked.items():
            assert one.reply.closed
            (verdict,) = one.reply.items
            verdicts[key].append(verdict)
            assert verdict.at == len(got[key])
            got[key] += verdict.ids
            agreeing = 0
            for drafted, token in zip(one.round.draft, whole[key][verdict.at :], strict=False):
                if drafted != token:
                    break
                agreeing += 1
            assert verdict.accepted == agreeing
            assert len(verdict.ids) >= agreeing - (verdict.finish_reason == "stop")
            assert verdict.finish_reason is not None or len(verdict.ids) == agreeing + 1
        number += 1
    for key, (ids, reason) in enumerate(alone):
        assert (got[key], verdicts[key][-1].finish_reason) == (ids, reason)
        assert text_of(verdicts[key]) == "".join(f"{token} " for token in ids)
        last = verdicts[key][-1]
        assert last.completion_tokens == len(ids)
        rows = sum(verdict.rows for verdict in verdicts[key])
        assert rows - last.rejected_tokens == len(whole[key]) - 1  # the first is the prompt's


def test_a_right_window_takes_one_pass_and_gives_one_token_more(expected):
    bench = Bench()
    assert bench.verdict(1, 0, 0, prompt=PROMPT).ids == tuple(expected[:1])
    passes = len(bench.model.passes)
    verdict = bench.verdict(1, 1, 1, expected[1:5])
    assert verdict.ids == tuple(expected[1:6])
    assert (verdict.judged, verdict.accepted, verdict.rows, verdict.rejected_tokens) == (4, 4, 5, 0)
    assert len(bench.model.passes) == passes + 1
    wrong = [expected[6], 1 + expected[7] % 40, expected[8]]
    verdict = bench.verdict(1, 2, 6, wrong)
    assert verdict.ids == tuple(expected[6:8])
    assert (verdict.judged, verdict.accepted, verdict.rows, verdict.rejected_tokens) == (2, 1, 4, 2)


def test_a_round_that_comes_again_is_answered_from_what_is_settled(expected):
    bench = Bench()
    first = bench.verdict(1, 0, 0, prompt=PROMPT)
    second = bench.verdict(1, 1, 1, expected[1:4])
    passes = len(bench.model.passes)
    assert bench.verdict(1, 0, 0, prompt=PROMPT).ids == (*first.ids, *second.ids)
    again = bench.verdict(1, 1, 1, expected[1:4])
    assert (again.ids, again.deltas, again.accepted) == (second.ids, second.deltas, 3)
    other = bench.verdict(1, 2, 2, [expected[2], 1 + expected[3] % 40, 7, 7])
    assert (other.ids, other.accepted, other.judged) == (tuple(expected[2:5]), 1, 2)
    assert len(bench.model.passes) == passes
    longer = bench.verdict(1, 3, 3, expected[3:8])  # two of them are settled
    assert (longer.ids, longer.accepted, longer.rows) == (tuple(expected[3:9]), 5, 4)


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("alone", [0, 4])
def test_of_a_round_on_two_connections_the_newer_one_gets_the_verdict(expected, steps, alone):
    """Whether the first still waits, is worked on, or has had its verdict."""
    bench = Bench(FakeModel(slots=1))
    older = bench.ask(1, 0, 0, prompt=PROMPT, alone=alone, run=False)
    for _ in range(steps):
        bench.scheduler.step(0.0)
    came = [one for one in older.reply.items if isinstance(one, Verdict)]
    newer = bench.ask(1, 0, 0, prompt=PROMPT, alone=alone)
    assert older.reply.closed
    assert isinstance(older.reply.items[-1], Superseded) == (len(came) < 1 + alone)
    bench.scheduler.leave(older, 0.0)  # its connection is closed in the end
    assert [token for verdict in newer.reply.items for token in verdict.ids] == expected[: 1 + alone]
    assert bench.scheduler.waiting == 0
    assert bench.verdict(1, 1, 1 + alone, expected[1 + alone : 4 + alone]).accepted == 3


def test_windows_in_flight_follow_each_other_and_a_cut_one_makes_the_next_stale(expected):
    bench = Bench()
    bench.verdict(1, 0, 0, prompt=PROMPT)
    early = bench.ask(1, 2, 4, expected[4:7])
    assert not early.reply.items  # the window before it is still on its way
    bench.verdict(1, 1, 1, expected[1:4])
    (verdict,) = early.reply.items
    assert (verdict.at, verdict.ids) == (4, tuple(expected[4:8]))
    bench.ask(1, 3, 8, [1 + expected[8] % 40, 7, 7, 7], run=False)
    stale = bench.ask(1, 4, 12, [7, 7])
    (verdict,) = stale.reply.items
    assert (verdict.at, verdict.ids, verdict.finish_reason) == (9, (), None)
    never = bench.ask(1, 9, 20, [7])
    assert not never.reply.closed
    assert bench.scheduler.wake_at == bench.now + LATE_S
    bench.wait(LATE_S)
    (verdict,) = never.reply.items
    assert (verdict.at, verdict.ids) == (9, ())


def test_the_server_goes_on_alone_as_far_as_it_is_asked_and_not_twice(expected):
    bench = Bench()
    asked = bench.ask(1, 0, 0, prompt=PROMPT, alone=6)
    assert [verdict.ids for verdict in asked.reply.items] == [(token,) for token in expected[:7]]
    assert [verdict.at for verdict in asked.reply.items] == list(range(7))
    again = bench.verdict(1, 0, 0, alone=6)
    assert again.ids == tuple(expected[:7])
    asked = bench.ask(1, 1, 7, alone=1000)
    assert asked.reply.items[-1].finish_reason == "length"
    assert text_of(asked.reply.items) == "".join(f"{token} " for token in expected[7:])
    assert bench.verdict(1, 2, 30).finish_reason == "length"
    assert bench.verdict(1, 3, 99).at == 30


def test_each_verdict_of_the_server_alone_tells_of_its_own_batch_and_the_first_of_the_wait():
    bench = Bench(timer=count().__next__)  # each pass takes a second
    asked = bench.ask(1, 0, 0, prompt=PROMPT, alone=6, run=False)
    bench.wait(2.0)
    first, *later = asked.reply.items
    assert (first.queue_s, first.compute_s) == (2.0, len(bench.model.passes) - 6)
    assert [(one.queue_s, one.compute_s) for one in later] == [(0.0, 1.0)] * 6


class SlowElsewhere(FakeModel):
    """Computes elsewhere: `compute` takes a second and does not wait, each pass takes ten."""

    def __init__(self):
        super().__init__()
        self.now, self.unfinished, self.waits = 0.0, 0, []

    def compute(self, parts):
        self.now, self.unfinished = self.now + 1, self.unfinished + 1
        return super().compute(parts)

    def synchronise(self):
        self.now, self.unfinished = self.now + 10 * self.unfinished, 0
        self.waits.append(len(self.passes))


def test_a_prompt_is_waited_for_at_its_last_batch_and_all_of_its_time_is_told():
    """What is not told counts as the network's: drafts would seem to need a round trip as long as the prompt."""
    model = SlowElsewhere()
    bench = Bench(model, timer=lambda: model.now)
    first, *later = bench.ask(1, 0, 0, prompt=PROMPT, alone=2).reply.items
    assert model.waits == [2, 3, 4]  # the prompt has two batches
    assert (first.compute_s, [one.compute_s for one in later]) == (22.0, [11.0, 11.0])


def test_an_answer_that_was_lost_goes_on_from_its_tokens_without_choosing_them_again(expected):
    for settled in (0, 1, 9, 29):
        bench = Bench()
        assert bench.lost(bench.ask(1, 5, settled))
        verdict = bench.verdict(
            1, 5, settled, expected[settled : settled + 2], prompt=PROMPT, ids=expected[:settled]
        )
        assert (verdict.at, verdict.ids) == (settled, tuple(expected[settled : settled + 3]))
        assert text_of([verdict]) == "".join(f"{token} " for token in verdict.ids)
    # What it has in common with what is settled here is not read again; what differs is another answer.
    bench.verdict(2, 0, 0, prompt=PROMPT)
    assert bench.verdict(2, 1, 5, prompt=PROMPT, ids=expected[:5]).ids == (expected[5],)
    other = [*expected[:6], 1 + expected[6] % 40, 9]
    assert bench.verdict(2, 2, 8, prompt=PROMPT, ids=other).at == 8


def test_an_answer_of_another_model_is_refused_before_its_tokens_are_looked_at(expected):
    bench = Bench()
    far = 10**6  # a token that only a larger vocabulary has
    for wants, ids in (("theirs", ()), ("theirs", expected[:3]), ("theirs", [far])):
        (refused,) = bench.ask(1, 0, 0, prompt=PROMPT, ids=ids, wants=wants).reply.items
        assert isinstance(refused, ModelChanged)
    assert bench.lost(bench.ask(1, 4, 3, [far])), "not that the request is wrong"
    assert bench.verdict(1, 4, 3, prompt=PROMPT, ids=expected[:3], wants="mine").ids == (expected[3],)
    assert bench.verdict(2, 0, 0, prompt=PROMPT).ids == (expected[0],)


def test_slots_go_round_first_come_first_served_and_an_idle_answer_loses_its_slot_only_where_one_is_wanted():
    bench = Bench(limits=Limits(hold_s=5.0))
    for key in range(2):
        bench.verdict(key, 0, 0, prompt=prompt_of(key))
    waiting = [bench.ask(key, 0, 0, prompt=prompt_of(key)) for key in (2, 3)]
    assert not any(one.reply.items for one in waiting)
    assert bench.scheduler.wake_at == 5.0
    bench.wait(2.0)
    bench.verdict(0, 1, 1)  # it is heard of
    bench.wait(3.0)
    assert [one.reply.closed for one in waiting] == [True, False]
    bench.wait(2.0)
    assert waiting[1].reply.closed
    late = bench.ask(1, 1, 1)
    assert not late.reply.items
    bench.wait(5.0)
    (verdict,) = late.reply.items
    assert verdict.ids == tuple(whole_answer(prompt_of(1), 30)[0][1:2])


def test_an_answer_that_ends_leaves_its_slot_at_once_and_its_cache_to_who_has_most_use_for_it():
    bench = Bench(FakeModel(slots=3))
    for key in range(3):
        bench.ask(key, 0, 0, prompt=prompt_of(key) * 2, alone=100)
    assert bench.scheduler.slots.held == 0
    verdict = bench.verdict(7, 0, 0, prompt=[*prompt_of(1) * 2, 5, 5])
    assert verdict.cached_tokens == 24  # whole batches only
    assert bench.scheduler.slots.all[1].holder is not None


def test_a_long_prompt_keeps_nobody_waiting_for_more_than_a_batch(expected):
    bench = Bench(FakeModel(slots=2, context_tokens=1000))
    bench.verdict(1, 0, 0, prompt=PROMPT)
    bench.ask(2, 0, 0, prompt=[2] * 900, run=False)
    bench.ask(1, 1, 1, alone=20, run=False)
    for _ in range(40):
        bench.scheduler.step(0.0)
    sizes = [[len(part.ids) for part in parts] for parts in bench.model.passes[2:]]
    assert [1] in sizes[:2]
    assert all(one != other for one, other in pairwise(sizes))  # a batch of the prompt, a window, and so on


def test_windows_share_passes_where_that_takes_less_time(expected):
    for curve, shared in ((((1, 1.0), (17, 1.1)), True), (((1, 1.0), (2, 5.0), (17, 50.0)), False)):
        bench = Bench(FakeModel(slots=4), curve=curve)
        for key in range(4):
            bench.verdict(key, 0, 0, prompt=prompt_of(key))
        bench.model.passes.clear()
        lengths = {0: 3, 1: 1, 3: 2}  # slot 2 stands between two windows
        asked = [bench.ask(key, 1, 1, [7] * (rows - 1), run=False) for key, rows in lengths.items()]
        bench.run()
        assert all(one.reply.items[0].ids for one in asked)
        assert len(bench.model.passes) == (1 if shared else 3)
        held = [slot.ids for slot in bench.scheduler.slots.all]
        assert all(cache[: len(ids)] == ids for cache, ids in zip(bench.model.caches, held, strict=True))
        # The answer between goes on as if nothing had happened.
        assert bench.verdict(2, 1, 1).ids == tuple(whole_answer(prompt_of(2), 30)[0][1:2])


def test_who_goes_away_costs_no_further_pass_and_finds_the_answer_again(expected):
    bench = Bench()
    asked = bench.ask(1, 0, 0, prompt=PROMPT, alone=1000, run=False)
    for _ in range(6):
        bench.scheduler.step(0.0)
    passes, settled = len(bench.model.passes), len(asked.reply.items)
    bench.scheduler.leave(asked, 0.0)
    bench.run()
    assert (len(bench.model.passes), asked.reply.closed) == (passes, True)
    assert 0 < settled < 30
    assert bench.verdict(1, 1, settled).ids == (expected[settled],)
    # One that waits for a slot, or for an earlier round, is forgotten too.
    bench = Bench(FakeModel(slots=1))
    bench.verdict(1, 0, 0, prompt=PROMPT)
    second, late = bench.ask(2, 0, 0, prompt=PROMPT), bench.ask(1, 9, 20)
    for one in (second, late):
        bench.scheduler.leave(one, 0.0)
    bench.wait(60)
    assert not second.reply.items
    assert not late.reply.items
    assert bench.scheduler.waiting == 0


def test_answers_that_are_let_go_keep_nobody_waiting():
    bench = Bench(limits=Limits(hold_s=5.0))
    for key in range(50):
        bench.verdict(key, 0, 0, prompt=prompt_of(key))
        left = bench.ask(key, 1, 1, alone=100, run=False)
        bench.scheduler.step(0.0)
        bench.scheduler.leave(left, 0.0)
        bench.scheduler.release(f"{key:032x}", 0.0)
        bench.scheduler.release(f"{key:032x}", 0.0)
    assert bench.scheduler.slots.held == bench.scheduler.waiting == 0
    assert bench.verdict(50, 0, 0, prompt=PROMPT).ids
    assert bench.now == 0.0
    assert bench.lost(bench.ask(3, 2, 2))
    # A round that is worked on or waits is refused, and its job is closed.
    working = bench.ask(51, 0, 0, prompt=PROMPT, alone=100, run=False)
    bench.scheduler.step(0.0)
    waiting = bench.ask(51, 1, 1, run=False)
    job = bench.scheduler._answers[working.round.key].job
    bench.scheduler.release(working.round.key, 0.0)
    assert bench.lost(working)
    assert bench.lost(waiting)
    assert job.closed
    bench.run()


def test_answers_are_forgotten_when_nobody_asks_for_them():
    bench = Bench(limits=Limits(forget_s=600.0))
    bench.verdict(1, 0, 0, prompt=PROMPT)
    bench.wait(599.0)
    bench.verdict(1, 1, 1)
    bench.wait(599.0)
    assert bench.verdict(1, 2, 2).ids
    bench.wait(600.0)
    assert bench.scheduler.slots.held == 0
    assert bench.lost(bench.ask(1, 3, 3))


def test_there_is_a_limit_on_answers_and_on_those_that_wait():
    bench = Bench(limits=Limits(answers=3, waiting=2))
    bench.ask(0, 0, 0, prompt=PROMPT, alone=100)  # it has ended, and makes room
    for key in (1, 2, 3):
        bench.verdict(key, 0, 0, prompt=PROMPT) if key < 3 else bench.ask(key, 0, 0, prompt=PROMPT)
    refused = bench.ask(4, 0, 0, prompt=PROMPT)
    (failure,) = refused.reply.items
    assert isinstance(failure, EndpointFailure)
    assert (failure.kind, "3 answers" in str(failure.error)) == (FailureKind.RATE_LIMIT, True)
    bench.wait(5.0)  # clients that were not heard of for a while do not keep others out
    assert bench.verdict(4, 0, 0, prompt=PROMPT).ids
    assert bench.lost(bench.ask(1, 1, 1))
    bench.wait(5.0)
    assert bench.verdict(2, 1, 1).ids
    bench = Bench(FakeModel(slots=1), Limits(waiting=2))
    for key in (1, 2):
        bench.ask(key, 0, 0, prompt=PROMPT, alone=5, run=False)
        bench.scheduler.step(0.0)
    (failure,) = bench.ask(3, 0, 0, prompt=PROMPT, run=False).reply.items
    assert (failure.kind, "2 rounds" in str(failure.error)) == (FailureKind.RATE_LIMIT, True)
    for number in range(3, 20):
        last = bench.ask(1, number, 60, run=False)
    assert last.reply.items[0].kind is FailureKind.RATE_LIMIT


def test_nonsense_is_refused_and_hurts_no_other_answer(expected):
    bench = Bench()
    (failure,) = bench.ask(1, 0, 0, [999], prompt=PROMPT).reply.items
    assert failure.kind is FailureKind.BAD_REQUEST
    (failure,) = bench.ask(1, 0, 0, prompt=PROMPT, ids=[999]).reply.items
    assert failure.kind is FailureKind.BAD_REQUEST
    assert bench.verdict(1, 0, 0, [7] * 64, prompt=PROMPT).ids == (expected[0],)
    assert bench.verdict(2, 0, 0, prompt=PROMPT, limit=0).finish_reason == "length"

    def broken(model):
        raise ValueError("secret")

    answer = bench.ask(3, 0, 0, prompt=PROMPT, run=False)
    bench.scheduler._answers[answer.round.key].job.run = broken
    bench.run()
    (failure,) = answer.reply.items
    assert failure.kind is FailureKind.CRASHED
    assert "secret" not in str(failure.error)
    assert bench.verdict(1, 1, 1).ids == (expected[1],)


def test_a_failing_model_fails_every_round_and_closes_every_job():
    bench = Bench(FakeModel(slots=1))
    asked = [bench.ask(key, 0, 0, prompt=PROMPT, run=False) for key in range(3)]
    bench.scheduler.step(0.0)
    jobs = [answer.job for answer in bench.scheduler._answers.values()]
    bench.scheduler.fail_all(EndpointFailure(FailureKind.CRASHED, ValueError()))
    assert all(one.reply.closed and one.reply.items for one in asked)
    assert all(job.closed for job in jobs)
    assert (bench.scheduler.waiting, bench.scheduler.slots.held) == (0, 0)
