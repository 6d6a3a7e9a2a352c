"""Whatever devices do in whatever order, no row is ever in another's sequence."""

from __future__ import annotations

from counting_model import FLAT, STEEP, CountingModel, Device, behind, rows, scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed, Released
from disco.speculate.layer_facts import Code

ASKS = st.tuples(
    st.just("ask"),
    st.integers(0, 2),  # device
    st.integers(0, 2),  # sequence
    st.integers(0, 20),  # how far back it begins
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(0, 12),
    st.sampled_from([True] * 9 + [False]),
)
OTHERS = st.tuples(
    st.sampled_from(["leave", "again", "release", "step", "step", "wait", "harm"]),
    st.integers(0, 2),
    st.integers(0, 2),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ASKS | OTHERS, max_size=40), st.sampled_from([FLAT, STEEP]), st.integers(1, 4))
def test_whatever_devices_do_each_gets_what_its_own_rows_give_or_is_refused(does, curve, slots):
    model = CountingModel(slots=slots)
    served = scheduler(model, curve, sequences=2, positions=60, idle_s=3.0, wait_s=6.0, hold_s=9.0)
    devices = [Device(served, key) for key in "abc"]
    texts = {}  # what each device believes that the server has, by device and sequence
    now, asked, answered = 0.0, 0, 0

    def heard(device):
        count = 0
        for one in device.box.take():
            if isinstance(one, Released):
                continue
            count += 1
            key = devices.index(device), one.chunk.sequence
            if isinstance(one, Computed):
                values = one.chunk.tag
                ends = range(len(values) - one.chunk.wanted, len(values))
                assert one.chunk.out.tolist() == [list(behind(values[: end + 1])) for end in ends]
                continue
            assert one.have <= max(one.chunk.at, 0)
            assert one.code in (Code.LOST, Code.BUSY, Code.TOO_LONG, Code.NOT_FINITE)
            texts[key] = texts.get(key, [])[: one.have]
        return count

    for what, number, sequence, *rest in does:
        device = devices[number]
        text = texts.setdefault((number, sequence), [])
        if what in {"ask", "harm"}:
            back, values, wanted, finite = rest or (0, [3, -1], 1, True)
            at = max(0, len(text) - back)
            text[at:] = values
            one = Chunk(sequence, at, rows(*values), min(wanted, len(values)), finite, tag=tuple(text))
            served.ask(device.key, device.box, one, now)
            asked += 1
        elif what in {"leave", "again"}:
            answered += heard(device)
            before = served.waiting
            if what == "leave":
                device.leave(now)
            device.again()
            asked -= before - served.waiting  # those are for nobody
        elif what == "release":
            device.release(sequence)
            texts[number, sequence] = []
        elif what == "wait":
            now += 4.0
        else:
            served.step(now)
            now = max(now, model.now)
            model.now = now
        assert served.slots.busy <= slots
    for _ in range(200):
        if not served.step(now):
            if not served.waiting:
                break
            now = max(now, served.wake_at)
        model.now = now = max(now, model.now)
    answered += sum(map(heard, devices))
    assert served.waiting == 0
    assert answered == asked
