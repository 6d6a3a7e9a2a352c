"""Options per request and per client: refused when wrong, kept when right, and what the two new ones do."""

from __future__ import annotations

import math
import warnings

import anyio
import httpx2
import openai
import pytest
from defects.asking import client as routed
from defects.asking import create, device, preset, question, text_of, tried
from faults.in_memory import MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture
from hypothesis import given
from hypothesis import strategies as st

import disco
from disco import AsyncDisco, Backup, Disco, Timeouts
from disco.client.request_options import NO_OPTIONS, RequestOptions, merge_options, take_options
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import ConfigurationError, FailureKind

pytestmark = pytest.mark.anyio

DEVICE_IS_DEAR = 1e-6


def client(policy, local=None, server=None, **more) -> AsyncDisco:
    """A client on simulated endpoints of these profiles."""
    local = SimulatedEndpoint("device", local, place="device")
    made = AsyncDisco(local=local, policy=policy, api_key="x", base_url="http://127.0.0.1:9/v1", **more)
    made.server = SimulatedEndpoint("server", server, place="server")
    return made


@pytest.mark.parametrize(
    ("typo", "meant"), [("prset", "preset"), ("local-only", "local_only"), ("deadline", "deadline_s")]
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(typo, meant):
    with pytest.raises(disco.ConfigurationError, match=rf"Unknown option '{typo}' in extra_body.*'{meant}'"):
        take_options({"disco": {typo: 1}})
    with pytest.raises(disco.ConfigurationError, match=f"in default_options.*'{meant}'"):
        AsyncDisco(api_key="x", default_options={typo: 1})


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("preset", [3], "string"),
        ("local_only", ["yes", 1], "boolean"),
        ("pace_tps", [0, -1.5, "5", True, math.nan], "above 0"),
        ("pace_tps", [math.inf], "finite"),
        ("migrate", ["no"], "boolean"),
        ("deadline_s", [0, -3], "greater than 0"),
        ("deadline_s", ["10", True], "number"),
        ("deadline_s", [math.inf], "finite"),
        ("budget_class", ["fast"], "'background', 'standard' or 'urgent'"),
        ("reach", ["far", True], "'device', 'own' or 'any'"),
        ("task", ["", "a b", "spam?", "x" * 65], '1 to 64 letters, digits, "."'),
        ("task", [3], "string"),
        ("classes", ["spam", ["spam", 1], {"spam": 1}], "must be a list of texts"),
        ("classes", [[], ["spam"], [str(i) for i in range(257)]], "at least 2 and at most 256"),
        ("classes", [["spam", " "]], "a class is empty"),
        ("classes", [["spam", "ham", "spam"]], "two classes are equal"),
        ("judge", ["always", False], "'whole', 'guard', 'revise' or 'off'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, values, says):
    for value in values:
        with pytest.raises(disco.ConfigurationError, match=rf"option '{name}'.*{says}"):
            take_options({"disco": {name: value}})


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (Disco, {"policy": "fats"}, "Did you mean 'fast'"),
        (AsyncDisco, {"local_only": True}, "no local model is configured"),
        (AsyncDisco, {"policy": "private"}, "no local model is configured"),
    ],
)
def test_defaults_that_no_request_could_keep_to_are_refused(kind, options, says):
    with pytest.raises(disco.ConfigurationError, match=says):
        kind(api_key="x", default_options=options)


VALID = {"preset": "fast", "local_only": True, "pace_tps": 5, "migrate": False, "deadline_s": 9.0}
VALID |= {"reach": "own", "task": "triage-2.b_c", "classes": ("spam", "ham"), "judge": "whole"}
given_options = st.dictionaries(st.sampled_from(sorted(VALID)), st.booleans()).map(
    lambda given: {name: VALID[name] if has_value else None for name, has_value in given.items()}
)


@given(given_options, given_options)
def test_a_requests_options_go_before_the_defaults_one_by_one(defaults, own):
    merged = merge_options(merge_options(NO_OPTIONS, defaults), own)
    expected = {**defaults, **own}
    for name in RequestOptions.model_fields:
        assert getattr(merged, name) == expected.get(name)


def test_options_are_a_dict_and_what_is_not_discos_is_left_alone():
    for value in (None, 3, "local_only", ["local_only"]):
        with pytest.raises(disco.ConfigurationError, match=r"must be a dict of options.*got"):
            take_options({"disco": value})
    given = {"disco": {"migrate": False}, "top_k": 5}
    assert take_options(given) == (RequestOptions(migrate=False), {"top_k": 5})
    assert given == {"disco": {"migrate": False}, "top_k": 5}
    assert take_options({"top_k": 5}) == (NO_OPTIONS, {"top_k": 5})
    assert take_options({"disco": {"classes": ["spam", "ham"]}})[0].classes == ("spam", "ham")
    assert take_options(None) == take_options({"disco": {}}) == (NO_OPTIONS, None)


async def test_defaults_hold_for_copies_and_responses_and_can_be_taken_back():
    routes = []
    given = {"default_options": {"local_only": True}, "on_route": routes.append}
    async with client(preset("server_only"), **given) as c:
        assert (await create(c)).route.winner == "device"
        assert (await create(c, disco={"local_only": False})).route.winner == "server"
        assert (await c.with_options(timeout=20).responses.create(model="m", input="sea")).output_text
    assert [route.winner for route in routes] == ["device", "server", "device"]


async def test_options_reach_no_server():
    server = MemoryServer(Reply(status=400))
    options = {"disco": {"deadline_s": 9, "budget_class": "urgent"}, "own": 1}
    async with routed(server, default_options={"pace_tps": 7}) as c:
        with pytest.raises(disco.NoEndpointError):
            await create(c, n=2, disco={"local_only": True})
        for asked in (create(c, extra_body=options), create(c, n=2, extra_body=options)):  # routed, passed on
            with pytest.raises(openai.BadRequestError):
                await asked
        with pytest.raises(openai.BadRequestError):
            await c.embeddings.create(model="m", input="sea", extra_body=options)
    # The first is asked again without what disco has added to it: the refusal does not say what it refuses.
    assert [body["own"] for body in server.requests] == [1] * 5
    assert not any(word in str(server.requests) for word in ("disco", "urgent", "pace"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["default_options", "disco"])
async def test_a_deadline_ends_an_answer_that_is_not_complete_and_keeps_what_there_is(stream, where):
    slow = SimulatedProfile(decode_tps=10.0, answer_tokens=100, ttft_s=1.0)
    given = {where: {"deadline_s": 3.05}}
    of_client, of_request = (given, {}) if where == "default_options" else ({}, given)
    async with client(preset("server_only"), server=slow, timeouts=Timeouts(total_s=2.0), **of_client) as c:
        began_at = anyio.current_time()
        with pytest.raises(disco.AnswerTimeoutError) as caught:  # noqa: PT012
            answer = await create(c, stream=stream, **of_request)
            _ = [chunk async for chunk in answer]
        assert anyio.current_time() - began_at == pytest.approx(3.05)
        assert isinstance(caught.value, openai.APITimeoutError)
        assert caught.value.route.answer_tokens == 21  # from 1.0 s on, ten a second
        assert len(caught.value.partial_text) > 20
        assert tried(caught.value)[0][0] == "server"
        assert c.server.busy == 0


@pytest.mark.parametrize(
    ("policy", "rate", "spared"),
    [
        ("auto", DEVICE_IS_DEAR, "device"),
        ("length_threshold", 0.0, "server"),
        ("length_threshold", DEVICE_IS_DEAR, "server"),
        ("wait_time", DEVICE_IS_DEAR, "device"),
        ("optimal_wait", DEVICE_IS_DEAR, "device"),
        ("random", 0.0, "server"),
        ("race", 0.0, "server"),
        ("device_only", DEVICE_IS_DEAR, "server"),
        ("server_only", 0.0, "device"),
    ],
)
async def test_background_leaves_the_constrained_side_alone_unless_the_other_fails(policy, rate, spared):
    other = {"server": "device", "device": "server"}[spared]
    slow = SimulatedProfile(overhead_s=20.0, decode_tps=5.0)  # slow enough for any policy to want both
    given = {"local" if other == "device" else "server": slow}
    async with client(preset(policy, rate=rate), **given) as c:
        for _ in range(3):
            assert tried(await create(c, disco={"budget_class": "background"})) == [(other, None)]
        broken = c.router.local if other == "device" else c.server
        broken.profile = SimulatedProfile(overhead_s=1.0, fault=Fault(kind=FailureKind.CONNECTION))
        answer = await create(c, disco={"budget_class": "background"})
    assert tried(answer) == [(other, "connection"), (spared, None)]


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
    slow, slower = SimulatedProfile(ttft_s=2.0), SimulatedProfile(overhead_s=3.0)
    async with client(preset(policy, **more), slower, slow) as c:
        for name, expected in (("standard", 1), ("urgent", 2)):
            route = (await create(c, disco={"budget_class": name})).route
            assert [t.started_s for t in route.attempts].count(0.0) == expected
        assert route.winner == "server"
        for stays in ({"local_only": True}, {"policy": "private"}):
            answer = await create(c, disco={"budget_class": "urgent", **stays})
            assert tried(answer) == [("device", None)]


async def test_a_background_answer_does_not_move_to_the_constrained_side():
    """The device is dear here, so an answer it writes would move to the server, whose tokens the preset limits."""
    settings = {"rate": DEVICE_IS_DEAR, "pace_tps": 5.0, "budget": 0.0}
    moving = preset("length_threshold", order="make_before_break", **settings)
    profile = SimulatedProfile(answer_tokens=300, decode_tps=30.0, continues=True)
    async with client(moving, profile, profile) as c:
        for name, writers in (("standard", ["device", "server"]), ("background", ["device"])):
            route = (await create(c, disco={"budget_class": name})).route
            assert [p.endpoint for p in route.segments] == writers


CALLING = [*question(), {"role": "assistant", "tool_calls": 5}]
WRONG = [
    ({"stream_options": 5}, "stream_options"),
    ({"tools": 5}, "tools"),
    ({"messages": CALLING}, "messages[1].tool_calls"),
]
# What some servers take: llama.cpp's means "no limit" by -1, others read "0.7", or a call's arguments as an object.
CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"city": "Rome"}}}
UNUSUAL = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "100"}, "max_tokens"),
    ({"max_completion_tokens": 0.5}, "max_completion_tokens"),
    ({"temperature": "0.7"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
    ({"stop": 5}, "stop"),
    ({"logit_bias": [[5, -1.0]]}, "logit_bias"),
    (
        {"messages": [*question(), {"role": "assistant", "tool_calls": [CALLED]}]},
        "messages[1].tool_calls[0].function.arguments",
    ),
]
FINE = {"temperature": 2.5, "frequency_penalty": -3, "top_p": 0, "stop": ["x"], "stream_options": None}


async def test_what_no_endpoint_could_answer_is_refused_wherever_it_would_be_answered():
    server = MemoryServer(spoken(["Salt."]))
    made = [routed(server, local=device()), routed(local=device(), policy="private")]
    for one in made:
        chats = one.chat.completions
        for wrong, param in WRONG:
            for ask in (chats.create, chats.with_raw_response.create):
                for streams in (False, True):
                    with pytest.raises(openai.BadRequestError) as caught:
                        await ask(**{"model": "m", "messages": question(), **wrong}, stream=streams)
                    assert (caught.value.status_code, caught.value.param) == (400, param)
        await one.close()
    assert server.requests == []


@pytest.mark.parametrize("streams", [False, True])
async def test_a_value_that_only_some_servers_take_is_sent_to_servers_as_it_is(streams):
    server = MemoryServer(*[spoken(["Salt."]) for _ in UNUSUAL])
    async with routed(server, local=device(), policy=preset("auto")) as one:
        for unusual, _ in UNUSUAL:
            answer = await create(one, stream=streams, **unusual)
            assert (await text_of(answer) if streams else answer.choices[0].message.content) == "Salt."
            (name,) = unusual.keys() - {"logprobs"}
            assert server.requests[-1][name] == unusual[name]


async def test_a_device_alone_refuses_such_a_value_by_its_name():
    async with routed(local=device(), policy="private") as one:
        for unusual, param in UNUSUAL:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(one, **unusual)
            assert (caught.value.status_code, caught.value.param) == (400, param)


@pytest.mark.parametrize("limit", [{"max_tokens": -1}, {"max_tokens": 50.0}, {"max_completion_tokens": -1}])
async def test_no_limit_and_a_whole_number_with_a_point_are_limits_for_every_endpoint(limit):
    server = MemoryServer(spoken(["Salt."]))
    async with routed(server, policy=preset("auto"), budget={"server_tokens": 10**6, "per": "day"}) as one:
        answer = await create(one, **limit)
        assert (answer.route.max_tokens, server.requests[0].items() >= limit.items()) == (
            50 if 50.0 in limit.values() else None,
            True,
        )
    async with routed(local=device(answer_tokens=60), policy="private") as one:
        answer = await create(one, **limit)
        assert answer.usage.completion_tokens == (50 if 50.0 in limit.values() else 60)


@pytest.mark.parametrize("by", ["backup", "budget", "device"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "seed", "timeout"])
async def test_a_number_that_no_float_can_hold_is_taken_as_by_the_sdk(name, by):
    server, more = MemoryServer(spoken(["Salt."])), {}
    if by == "backup":
        http = httpx2.AsyncClient(transport=server)
        address = server.also(spoken(["from the backup"]))
        more["backups"] = [Backup(base_url=address, api_key="k", model="b", price=(1, 1), http_client=http)]
    elif by == "budget":
        more["budget"] = {"usd": 1.0, "window_s": 60.0}
    else:
        more |= {"local": device(), "policy": preset("server_only")}
    async with routed(server, **more) as one:
        answer = await create(one, **{name: 10**400})
    assert answer.choices[0].message.content == "Salt."
    if name != "timeout" and (by, name) not in (
        ("budget", "max_tokens"),
        ("budget", "max_completion_tokens"),
    ):
        assert server.requests[0][name] == 10**400


def test_so_it_is_by_the_synchronous_client_and_for_responses_but_not_what_only_some_servers_refuse():
    with Disco(local=device(), policy=preset("device_only")) as one:
        with pytest.raises(openai.BadRequestError, match="stream_options"):
            create(one, stream_options=5)
        for wrong in ({"max_output_tokens": 0}, {"temperature": -1}):
            with pytest.raises(openai.BadRequestError) as caught:
                one.responses.create(model="m", input="Hi", **wrong)
            assert caught.value.param == next(iter(wrong))
        assert create(one, max_tokens=2, **FINE).choices


async def test_classes_are_refused_where_no_cascade_chooses_among_them():
    options = {"classes": ["spam", "ham"]}
    async with client("balanced") as one:
        with pytest.raises(
            disco.ConfigurationError, match=r"'balanced'.*policy is 'auto'.*preset=\"cascade\""
        ):
            await create(one, disco=options)
        assert (await create(one, disco={**options, "preset": "cascade"})).choices


def test_policy_is_the_former_name_of_preset():
    with warnings.catch_warnings(action="error"):
        client = AsyncDisco(local="smollm2-135m", policy="private")
    assert client.router.preset.name == "private"
    assert client.with_options(default_options={"policy": "cheap"}).default_options.preset == "cheap"
    with pytest.raises(ConfigurationError, match="preset only"):
        AsyncDisco(local="smollm2-135m", preset="cheap", policy="private")
    with pytest.raises(ConfigurationError, match='"preset" only'):
        client.with_options(default_options={"policy": "cheap", "preset": "cheap"})
