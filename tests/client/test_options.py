"""Options per request and per client: refused when wrong, kept when right, and what the two new ones do."""

from __future__ import annotations

import math

import anyio
import httpx2
import moved_clock
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

import disco
from disco import AsyncDisco, Disco, Timeouts
from disco.client.request_options import NO_OPTIONS, RequestOptions, merge_options, take_options
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

pytestmark = pytest.mark.anyio

SEA = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = {"model": "m", "messages": SEA}


@pytest.fixture
def anyio_backend():
    """In virtual time: nothing here waits for a socket or a thread. `test_breaker` has the other loop."""
    return moved_clock.virtual("asyncio")


def preset(policy: str, exchange_rate: float = 0.0, **more) -> Preset:
    """λ = 0 makes the server the dear side, a large one the device."""
    return Preset(
        dispatch={"policy": policy, **more},
        cost={"exchange_rate": exchange_rate},
        playback={"pace_tps": "off"},
        migration={"enabled": False},
    )


DEVICE_IS_DEAR = 1e-6


def client(
    policy: str | Preset,
    device: SimulatedProfile | None = None,
    server: SimulatedProfile | None = None,
    **more,
) -> AsyncDisco:
    local = SimulatedEndpoint("device", device, place="device")
    made = AsyncDisco(local=local, policy=policy, api_key="x", **more)
    made.server = SimulatedEndpoint("server", server, place="server")
    return made


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("prset", "preset"),
        ("local-only", "local_only"),
        ("pace", "pace_tps"),
        ("migrates", "migrate"),
        ("deadline", "deadline_s"),
        ("budget", "budget_class"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(typo, meant):
    with pytest.raises(disco.ConfigurationError, match=rf"Unknown option '{typo}' in extra_body.*'{meant}'"):
        take_options({"disco": {typo: 1}})
    with pytest.raises(disco.ConfigurationError, match=f"in default_options.*'{meant}'"):
        AsyncDisco(api_key="x", default_options={typo: 1})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("preset", 3, "string"),
        ("local_only", "yes", "boolean"),
        ("local_only", 1, "boolean"),
        ("pace_tps", 0, "above 0"),
        ("pace_tps", -1.5, "above 0"),
        ("pace_tps", "5", "above 0"),
        ("pace_tps", True, "above 0"),
        ("pace_tps", math.nan, "above 0"),
        ("pace_tps", math.inf, "finite"),
        ("migrate", "no", "boolean"),
        ("deadline_s", 0, "greater than 0"),
        ("deadline_s", -3, "greater than 0"),
        ("deadline_s", "10", "number"),
        ("deadline_s", True, "number"),
        ("deadline_s", math.inf, "finite"),
        ("budget_class", "fast", "'background', 'standard' or 'urgent'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value, says):
    with pytest.raises(disco.ConfigurationError, match=rf"option '{name}'.*{says}"):
        take_options({"disco": {name: value}})


@pytest.mark.parametrize("value", [None, 3, "local_only", ["local_only"]])
def test_options_are_a_dict(value):
    with pytest.raises(disco.ConfigurationError, match=r"must be a dict of options.*got"):
        take_options({"disco": value})


def test_an_unknown_preset_is_refused_when_it_is_named():
    with pytest.raises(disco.ConfigurationError, match="Did you mean 'fast'"):
        AsyncDisco(api_key="x", default_options={"policy": "fats"})
    with pytest.raises(disco.ConfigurationError, match="Did you mean 'fast'"):
        Disco(api_key="x", default_options={"policy": "fats"})


@pytest.mark.parametrize("options", [{"local_only": True}, {"policy": "private"}])
def test_defaults_that_no_request_could_keep_to_are_refused(options):
    with pytest.raises(disco.ConfigurationError, match="no local model is configured"):
        AsyncDisco(api_key="x", default_options=options)


# ---------------------------------------------------------------------- what holds

given_options = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.none() | st.sampled_from(["fast", "cheap"]),
        "local_only": st.none() | st.booleans(),
        "pace_tps": st.none() | st.just("off") | st.integers(1, 50) | st.floats(0.1, 50),
        "migrate": st.none() | st.booleans(),
        "deadline_s": st.none() | st.integers(1, 50) | st.floats(0.1, 50),
        "budget_class": st.none() | st.sampled_from(["background", "standard", "urgent"]),
    },
)


@given(given_options, given_options)
def test_a_requests_options_go_before_the_defaults_one_by_one(defaults, own):
    merged = merge_options(merge_options(NO_OPTIONS, defaults), own)
    expected = {**defaults, **own}
    for name in RequestOptions.model_fields:
        assert getattr(merged, name) == expected.get(name)


def test_what_is_not_discos_is_left_alone():
    given = {"disco": {"migrate": False}, "top_k": 5}
    assert take_options(given) == (RequestOptions(migrate=False), {"top_k": 5})
    assert given == {"disco": {"migrate": False}, "top_k": 5}
    assert take_options({"top_k": 5}) == (NO_OPTIONS, {"top_k": 5})
    assert take_options(None) == (NO_OPTIONS, None)
    assert take_options({"disco": {}}) == (NO_OPTIONS, None)


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
def test_copies_keep_the_defaults_and_add_to_them(kind):
    made = kind(api_key="x", default_options={"pace_tps": 5, "migrate": False})
    copy = made.with_options(default_options={"pace_tps": None, "deadline_s": 9.0}).with_options(timeout=3)
    inner, first = (copy, made) if kind is AsyncDisco else (copy.routed, made.routed)
    assert inner.default_options == RequestOptions(pace_tps=None, migrate=False, deadline_s=9.0)
    assert first.default_options == RequestOptions(pace_tps=5, migrate=False)


async def answers_in(c: AsyncDisco, **options):
    extra = {"extra_body": {"disco": options}} if options else {}
    return await c.chat.completions.create(**ASKED, **extra)


def tried(answer) -> list[tuple[str, str | None]]:
    return [(t.endpoint, t.failure) for t in answer.route.attempts]


async def test_defaults_hold_for_every_way_of_asking_and_can_be_taken_back():
    c = client(preset("server_only"), default_options={"local_only": True})
    assert (await answers_in(c)).route.winner == "device"
    assert (await answers_in(c, local_only=False)).route.winner == "server"
    raw = await c.chat.completions.with_raw_response.create(**ASKED)
    assert raw.parse().choices[0].message.content
    assert (await c.responses.create(model="m", input="sea")).output_text
    for way in (c.embeddings.create(model="m", input="sea"), c.files.list()):
        with pytest.raises(disco.NoEndpointError):
            await way
    assert str(c.websocket_base_url).endswith(".invalid")
    assert [m.id async for m in c.models.list()] == ["local/device"]
    await c.close()


@pytest.mark.real
def test_the_synchronous_client_has_them_too():
    local = SimulatedEndpoint("device", SimulatedProfile(decode_tps=1e4), place="device")
    with Disco(
        local=local, policy=preset("server_only"), api_key="x", default_options={"local_only": True}
    ) as c:
        assert c.chat.completions.create(**ASKED).route.winner == "device"
        with c.chat.completions.create(stream=True, **ASKED) as stream:
            assert sum(1 for _ in stream) > 1
        with pytest.raises(disco.ConfigurationError, match="deadline_s"):
            c.chat.completions.create(**ASKED, extra_body={"disco": {"deadlines": 3}})


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # the network is looked at in a thread
async def test_options_reach_no_server():
    sent = []

    async def handle(request):
        sent.append(request.content)
        return httpx2.Response(400, json={"error": {"message": "no"}})

    transport = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    options = {"disco": {"deadline_s": 9, "budget_class": "urgent"}, "own": 1}
    async with AsyncDisco(api_key="x", http_client=transport, default_options={"pace_tps": 7}) as c:
        with pytest.raises(disco.NoEndpointError):
            await c.chat.completions.create(**ASKED, n=2, extra_body={"disco": {"local_only": True}})
        assert sent == []
        for n in (1, 2):  # routed, passed on
            with pytest.raises(openai.BadRequestError):
                await c.chat.completions.create(**ASKED, n=n, extra_body=options)
        with pytest.raises(openai.BadRequestError):
            await c.embeddings.create(model="m", input="sea", extra_body=options)
    assert len(sent) == 3
    assert all(b'"own":1' in body for body in sent)
    assert not any(word in body for body in sent for word in (b"disco", b"urgent", b"pace"))


# ---------------------------------------------------------------------- deadline_s


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["request", "client"])
async def test_a_deadline_ends_an_answer_that_is_not_complete_and_keeps_what_there_is(stream, where):
    defaults = {"deadline_s": 3.05} if where == "client" else {}
    slow = SimulatedProfile(decode_tps=10.0, answer_tokens=100, ttft_s=1.0)
    c = client(preset("server_only"), server=slow, default_options=defaults)
    options = {} if where == "client" else {"extra_body": {"disco": {"deadline_s": 3.05}}}
    began_at = anyio.current_time()
    with pytest.raises(openai.APITimeoutError) as caught:  # noqa: PT012
        answer = await c.chat.completions.create(**ASKED, stream=stream, **options)
        _ = [chunk async for chunk in answer]
    assert anyio.current_time() - began_at == pytest.approx(3.05)
    assert isinstance(caught.value, disco.AnswerTimeoutError)
    assert caught.value.route.answer_tokens == 21  # from 1.0 s on, ten a second
    assert len(caught.value.partial_text) > 20
    assert [t.endpoint for t in caught.value.route.attempts] == ["server"]
    assert c.server.busy == 0
    await c.close()


async def test_a_deadline_takes_the_place_of_the_clients_clock():
    slow = SimulatedProfile(decode_tps=10.0, answer_tokens=60)
    c = client(preset("server_only"), server=slow, timeouts=Timeouts(total_s=2.0))
    with pytest.raises(openai.APITimeoutError):
        await answers_in(c)
    assert (await answers_in(c, deadline_s=60)).route.finish_reason == "stop"
    await c.close()


# ---------------------------------------------------------------------- budget_class


@pytest.mark.parametrize(
    ("policy", "rate", "spared"),
    [
        ("auto", 0.0, "server"),
        ("auto", DEVICE_IS_DEAR, "device"),
        ("length_threshold", 0.0, "server"),
        ("length_threshold", DEVICE_IS_DEAR, "server"),
        ("wait_time", DEVICE_IS_DEAR, "device"),
        ("optimal_wait", DEVICE_IS_DEAR, "device"),
        ("random", 0.0, "server"),
        ("race", 0.0, "server"),
        ("race", DEVICE_IS_DEAR, "device"),
        ("device_only", DEVICE_IS_DEAR, "server"),
        ("server_only", 0.0, "device"),
    ],
)
async def test_background_leaves_the_constrained_side_alone_unless_the_other_fails(policy, rate, spared):
    other = {"server": "device", "device": "server"}[spared]
    slow = SimulatedProfile(overhead_s=20.0, decode_tps=5.0)  # slow enough for any policy to want both
    c = client(preset(policy, rate), **{other: slow})
    for _ in range(5):
        assert tried(await answers_in(c, budget_class="background")) == [(other, None)]
    broken = c.router.local if other == "device" else c.server
    broken.profile = SimulatedProfile(overhead_s=1.0, fault=Fault(kind=FailureKind.CONNECTION))
    answer = await answers_in(c, budget_class="background")
    assert tried(answer) == [(other, "connection"), (spared, None)]
    await c.close()


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("length_threshold", {"budget": 0.0}),
        ("wait_time", {"budget": 0.0}),
        ("device_only", {}),
        ("server_only", {}),
        ("auto", {"budget": 0.0}),
    ],
)
async def test_urgent_starts_both_sides_at_once_whatever_the_budget_says(policy, more):
    c = client(preset(policy, **more), SimulatedProfile(overhead_s=3.0), SimulatedProfile(ttft_s=2.0))
    for name, expected in (("standard", 1), ("urgent", 2)):
        answer = await answers_in(c, budget_class=name)
        assert len([t for t in answer.route.attempts if t.started_s == 0.0]) == expected
    assert answer.route.winner == "server"
    await c.close()


async def test_urgent_does_not_leave_this_machine_when_it_must_not():
    c = client(preset("auto"))
    for stays in ({"local_only": True}, {"policy": "private"}):
        assert tried(await answers_in(c, budget_class="urgent", **stays)) == [("device", None)]
    await c.close()


async def test_a_background_answer_does_not_move_to_the_constrained_side():
    """The device is dear here, so an answer it writes would move to the server, whose tokens the preset limits."""
    moving = Preset(
        dispatch={"policy": "length_threshold", "budget": 0.0},
        cost={"exchange_rate": DEVICE_IS_DEAR},
        playback={"pace_tps": 5.0},
    )
    profile = SimulatedProfile(answer_tokens=300, decode_tps=30.0, continues=True)
    c = client(moving, profile, profile)
    writers = {}
    for name in ("standard", "background"):
        answer = await answers_in(c, budget_class=name)
        writers[name] = [p.endpoint for p in answer.route.segments]
    assert writers == {"standard": ["device", "server"], "background": ["device"]}
    await c.close()
