"""The stream of a layer server with real layers: right numbers, no crosstalk, and no way to bring it down."""

from __future__ import annotations

import gc
import json
import random
import socket
import threading
import urllib.request

import httpx2
import numpy as np
import pytest
from layer_client import HIDDEN, device, layer_server, states
from websockets.exceptions import ConnectionClosed, InvalidStatus

from disco.endpoints.llamacpp.layers.row_scheduler import LayerLimits
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.split import wire
from disco.endpoints.split.wire import Code, Dtype, Kind
from disco.server.layers import stream_route
from disco.speculate.layer_facts import LayerFacts

pytestmark = pytest.mark.real
KEY = "k" * 20


@pytest.fixture(scope="module")
def alone(cut_files):
    """What the layers give for rows in passes of such sizes, computed here."""
    model = StateModel(cut_files["cloud"], "cloud", context_tokens=256, most_rows=64)

    def compute(rows, *sizes):
        model.cut(0, 0)
        outs, at = [], 0
        for size in sizes or (len(rows),):
            outs.append(model.compute([StateRows(0, at, rows[at : at + size])])[0].copy())
            at += size
        return np.concatenate(outs)

    yield compute
    model.close()


def facts_of(served, query="", **headers) -> LayerFacts:
    asked = urllib.request.Request(served.url + wire.LAYERS + query, headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return LayerFacts.from_json(json.load(reply))


def test_facts_say_what_is_served(served, cut_files):
    facts = facts_of(served)
    assert (facts.model, facts.layers, facts.total_layers, facts.hidden) == ("tiny", 2, 4, HIDDEN)
    assert (facts.slots, facts.context_tokens, facts.most_rows, facts.most_sequences) == (4, 256, 64, 2)
    assert facts.fingerprint == served.engine.file.fingerprint
    assert len(facts.compute_s) > 4
    assert facts.most_frame_bytes == 32 * 2**20


def test_rows_come_back_as_the_layers_give_them(served, alone):
    rows = states(100, seed=1)
    with served.device() as device:
        first = device.ask(0, rows[:90], number=7, wanted=90)
        assert (first.kind, first.number, first.at, first.rows, first.dtype) == (
            Kind.STATES,
            7,
            0,
            90,
            Dtype.F32,
        )
        assert first.compute_s > 0
        last = device.ask(90, rows[90:], number=8, wanted=1)
        assert (last.at, last.rows, last.wanted) == (99, 1, 10)
        none = device.ask(100, rows[:1], number=9, wanted=0)
        assert (none.kind, none.at, none.rows) == (Kind.STATES, 101, 0)
        again = device.ask(50, rows[50:], wanted=2)
    whole = alone(rows, 45, 45, 10)  # 90 rows are two even passes of at most 64
    assert np.array_equal(first.states, whole[:90])
    assert np.allclose(last.states, whole[99:], atol=1e-4)  # the last layer was computed for one row
    assert np.allclose(again.states, whole[98:], atol=1e-2)  # in another chunk


def test_float16_halves_the_bytes_and_keeps_the_numbers(served, alone):
    rows = states(8, seed=2)
    with served.device() as device:
        reply = device.ask(0, rows, dtype=Dtype.F16)
    assert reply.dtype is Dtype.F16
    assert np.allclose(reply.states, alone(rows), atol=0.05)


def test_devices_at_the_same_time_get_their_own_numbers(served, alone):
    """Interleaved, in shared passes too: what others send changes last bits at most."""
    wrong = []

    def one(seed):
        rows = states(60, seed)
        expected = alone_of[seed]
        sizes = [1, 2, 3, 5, 9, 20, 20]
        with served.device() as device:
            at = 0
            for number, size in enumerate(sizes):
                frame = device.ask(at, rows[at : at + size], number=number)
                if frame.kind is not Kind.STATES or not np.allclose(
                    frame.states, expected[at : at + size], atol=2e-2
                ):
                    wrong.append((seed, at, frame))
                at += size

    alone_of = {seed: alone(states(60, seed), 1, 2, 3, 5, 9, 20, 20) for seed in range(4)}
    assert np.abs(alone_of[0] - alone_of[1]).max() > 1  # so another's would be noticed
    threads = [threading.Thread(target=one, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


def test_a_dropped_connection_finds_its_sequence_again(served, alone):
    rows = states(12, seed=3)
    with served.device() as device:
        device.ask(0, rows[:8])
        device.send(8, rows[8:10])
        device.socket.socket.close()  # without any goodbye, and perhaps before it is computed
    with served.device(session=device.session) as device:
        after = device.ask(8, rows[8:])
    assert np.allclose(after.states, alone(rows, 8, 4)[8:], atol=1e-3)


@pytest.mark.parametrize("phase", ["connected", "in a frame", "queued", "computing", "replied", "released"])
def test_a_connection_dropped_in_any_phase_harms_nobody_and_can_be_taken_up_again(served, alone, phase):
    rows = states(200, seed=8)
    with served.device() as other, served.device() as device:
        before = other.ask(0, rows[:5]).states
        device.ask(0, rows[:4])
        if phase == "in a frame":
            device.socket.socket.sendall(b"\x82\xfe\x10\x00mask" + bytes(100))
        elif phase == "queued":
            for at in range(4, 10):
                device.send(at, rows[at : at + 1])
        elif phase == "computing":
            device.send(4, rows[4:200])
        elif phase == "replied":
            device.send(4, rows[4:8])
            device.take()
        elif phase == "released":
            device.socket.send(bytes(wire.pack_release(0)))
        device.socket.socket.shutdown(socket.SHUT_RDWR)
        with served.device(session=device.session) as again:
            reply = again.ask(4, rows[4:8])
            if reply.kind is Kind.ERROR:
                assert (phase, reply.code) == ("released", Code.LOST)
                reply = again.ask(0, rows[:8], wanted=4)
            assert np.allclose(reply.states, alone(rows[:8], 4, 4)[4:], atol=1e-2)
        assert np.allclose(other.ask(0, rows[:5]).states, before, atol=1e-2)


def test_a_second_connection_of_a_session_ends_the_first(served):
    with served.device() as old, served.device(session=old.session) as new:
        assert old.take().code is Code.BUSY
        with pytest.raises(ConnectionClosed):
            old.take()
        assert new.ask(0, states(1, 0)).rows == 1


def test_refusals_name_what_there_is_and_the_stream_goes_on(served):
    rows = states(9, seed=4)
    bad = rows.copy()
    bad[3, 3] = np.nan
    with served.device() as device:
        lost = device.ask(5, rows, number=1)
        assert (lost.kind, lost.code, lost.number, lost.at) == (Kind.ERROR, Code.LOST, 1, 0)
        device.ask(0, rows)
        assert device.ask(250, rows, number=2).code is Code.TOO_LONG
        frame = wire.pack_rows(0, 6, rows, wanted=1, number=3, dtype=Dtype.F32)
        frame[wire.HEADER_BYTES :] = bad.tobytes()
        frame[20:24] = wire.zlib.crc32(bad.tobytes()).to_bytes(4, "little")
        device.socket.send(bytes(frame))
        refused = device.take()
        assert (refused.code, refused.at) == (Code.NOT_FINITE, 6)
        assert device.ask(0, rows, sequence=1).kind is Kind.STATES
        assert device.ask(0, rows, sequence=2).code is Code.BUSY
        device.socket.send(bytes(wire.pack_release(1)))
        assert device.ask(0, rows, sequence=2).kind is Kind.STATES


@pytest.mark.parametrize(
    "message",
    ["text", b"", b"x" * 31, bytes(32), bytes(wire.pack_states(0, 0, states(1, 0), number=0)), b"\x01" * 300],
)
def test_what_is_no_frame_of_a_device_ends_the_connection_with_a_reason(served, message):
    with served.device() as device:
        device.socket.send(message)
        assert device.take().code is Code.BAD_FRAME
        with pytest.raises(ConnectionClosed) as closed:
            device.take()
        assert closed.value.rcvd.code == 1002
        assert closed.value.rcvd.reason


def attack(served, rounds, seed):
    """Damaged frames of all kinds, while another device works and gets its own numbers."""
    chance = random.Random(seed)
    rows = states(6, seed=5)
    with served.device() as good:
        expected = good.ask(0, rows).states
        for _ in range(rounds):
            with served.device() as bad:
                try:
                    for _ in range(8):
                        values = states(chance.randrange(1, 5), seed=chance.randrange(99))
                        frame = wire.pack_rows(
                            chance.randrange(3),
                            chance.choice([0, 0, 1, 5, 300, 2**32 - 1]),
                            values,
                            wanted=chance.randrange(len(values) + 1),
                            number=chance.randrange(2**32),
                            dtype=chance.choice(list(Dtype)),
                        )
                        what = chance.randrange(4)
                        if what == 0:
                            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
                        elif what == 1:
                            frame = frame[: chance.randrange(len(frame))]
                        bad.socket.send(bytes(frame))
                        if what > 1:
                            bad.take()
                    if chance.random() < 0.5:
                        bad.socket.socket.close()
                except (ConnectionClosed, wire.BadFrameError, OSError):
                    pass
            again = good.ask(0, rows, number=1)
            assert again.kind is Kind.STATES
            assert np.allclose(again.states, expected, atol=1e-2)


def test_damaged_frames_harm_nobody_else(served):
    attack(served, 6, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_damaged_frames_harm_nobody_else(served, seed):
    attack(served, 100, seed)


def test_a_reader_that_does_not_read_waits_and_fills_no_memory(served, monkeypatch):
    """At most so many bytes of a connection are in work, whatever is sent; once it reads, all goes on."""
    monkeypatch.setattr(stream_route, "MOST_IN_WORK_BYTES", 200_000)
    most = 0
    taken = stream_route._Stream._take

    def watched(self, message):
        nonlocal most
        most = max(most, self._bytes)
        taken(self, message)

    monkeypatch.setattr(stream_route._Stream, "_take", watched)
    rows = states(200, seed=6)
    frames = 60
    with served.device() as slow, served.device() as other:

        def send():
            for number in range(frames):
                slow.send(0, rows, number=number)

        sender = threading.Thread(target=send)
        sender.start()
        assert other.ask(0, rows[:3]).rows == 3  # meanwhile others are served
        for number in range(frames):
            assert slow.take().number == number
        sender.join(timeout=60)
    assert 0 < most < 200_000
    gc.collect()


@pytest.mark.parametrize(
    ("fingerprint", "layers", "session", "status", "code"),
    [
        ("f" * 32, 2, None, 409, "model_differs"),
        (None, 3, None, 409, "model_differs"),
        (None, 2, "short", 400, "invalid_session"),
    ],
)
def test_another_model_or_session_is_refused_before_the_upgrade(
    served, fingerprint, layers, session, status, code
):
    fingerprint = fingerprint or served.engine.file.fingerprint
    with (
        pytest.raises(InvalidStatus) as refused,
        device(served.port, fingerprint, layers, session=session),
    ):
        pass
    response = refused.value.response
    assert response.status_code == status
    assert json.loads(response.body)["error"]["code"] == code
    assert response.headers["x-request-id"]


def test_an_evicted_sequence_is_lost_and_sent_again(cut_files):
    rows = states(6, seed=7)
    limits = LayerLimits(sequences=1, idle_s=0.0)
    with (
        layer_server(cut_files["cloud"], slots=1, limits=limits) as served,
        served.device() as first,
        served.device() as second,
    ):
        before = first.ask(0, rows).states
        assert second.ask(0, rows[::-1].copy()).rows == 6
        lost = first.ask(6, rows)
        assert (lost.code, lost.at) == (Code.LOST, 0)
        assert np.array_equal(first.ask(0, rows).states, before)


def test_guards_hold_for_the_stream_too(cut_files, caplog):
    headers = {"Authorization": f"Bearer {KEY}"}
    with layer_server(cut_files["cloud"], key=KEY, allow_origins=["http://app.test"]) as served:
        for given_headers, status in (
            (None, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({**headers, "Origin": "http://evil.test"}, 403),
        ):
            with pytest.raises(InvalidStatus) as refused, served.device(headers=given_headers):
                pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["message"]
        with pytest.raises(InvalidStatus) as refused, served.device(headers=headers, host="evil.test"):
            pass
        assert json.loads(refused.value.response.body)["error"]["code"] == "host_not_allowed"
        with served.device(headers={**headers, "Origin": "http://app.test"}) as device:
            assert device.ask(0, states(1, 0)).rows == 1
        with httpx2.Client(base_url=served.url) as http:
            assert http.get(wire.LAYERS).status_code == 401
            http.headers.update(headers)
            assert http.get(wire.STREAM).status_code == 426
            chat = http.post("/v1/chat/completions", json={"model": "m", "messages": []})
            assert (chat.status_code, chat.json()["error"]["code"]) == (400, "no_eligible_endpoint")
            assert "--local" in chat.json()["error"]["message"]
            assert http.get("/v1/models").json() == {"object": "list", "data": []}
            assert http.get("/v1/models/m").status_code == 404
            text = http.get("/metrics").text
            assert "disco_layers_rows_total 1.0" in text
            assert "disco_layers_passes_total 1.0" in text
            assert 'disco_layers_refused_total{code="lost"} 0.0' in text
            assert "disco_layers_slots 4.0" in text
            assert 'status="101"' in text
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
