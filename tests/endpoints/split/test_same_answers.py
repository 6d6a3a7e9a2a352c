"""A split model answers what the whole model answers, however its prompt is cut and whatever is drafted."""

import functools

import anyio
import pytest

from disco.endpoints.event_coding import delta_of
from disco.endpoints.llamacpp.batching.engine import Limits
from disco.endpoints.split.engine_verifier import EngineVerifier
from disco.endpoints.split.wire import Dtype
from disco.events import Traffic
from disco.speculate.messages import Opening, Round
from tests.endpoints.split.asking import ask, asked, running, split_of, whole_of

pytestmark = pytest.mark.real

STORY = "Once upon a time there was a mill at a river, and the miller said: "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
JSON = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA}}
REQUESTS = {
    "greedy": ask(max_tokens=40),
    "sampled": ask(temperature=0.8, seed=11, max_tokens=40),
    "a shared beginning": ask("Hello there, how are we?"),
    "a long prompt": ask(STORY * 2, temperature=0.8, seed=3),
    "its beginning": ask(STORY, temperature=0.8, seed=4),
    "the same again, longer": ask(STORY * 2 + "go!"),
    "penalties": ask(STORY, frequency_penalty=0.9, presence_penalty=0.5, temperature=0.8, seed=9),
    "bias": ask(logit_bias={"300": 6, "301": -100, "310": 5}, temperature=0.8),
    "top-k, top-p": ask(top_k=5, top_p=0.8, temperature=1.1, seed=2),
    "a stop string": ask(stop=["N", "zz"], max_tokens=60),
    "log probabilities": ask(logprobs=True, top_logprobs=2, max_tokens=10),
    "a schema": ask(response_format=JSON, max_tokens=80, temperature=0.8, seed=21),
    "a tool": ask(tools=[TOOL], tool_choice="required", max_tokens=90, temperature=0.8, seed=22),
    "one token": ask(max_tokens=1),
    "the end of the context": ask(STORY * 14, max_tokens=None),
    "until its end": ask(temperature=1.4, seed=6, max_tokens=None),
}
SOME = (
    "greedy",
    "sampled",
    "a shared beginning",
    "penalties",
    "bias",
    "a stop string",
    "a schema",
    "a long prompt",
)


@pytest.fixture(scope="module")
def wanted(tiny):
    """Return a function: what the whole model answers, its prompt read in pieces of so many tokens."""

    @functools.cache
    def answers(batch_tokens, names=tuple(REQUESTS)):
        async def main():
            async with running(whole_of(tiny, batch_tokens=batch_tokens)) as whole:
                return {name: await asked(whole, REQUESTS[name]) for name in names}

        return anyio.run(main)

    return answers


@pytest.mark.slow
def test_the_requests_are_what_their_names_say(wanted):
    answers = wanted(512)
    assert answers["a schema"].finish_reason == answers["until its end"].finish_reason == "stop"
    assert answers["a tool"].tools
    assert answers["a tool"].finish_reason == "tool_calls"
    assert answers["a stop string"].finish_reason == "stop"
    assert answers["the end of the context"].finish_reason == "length"
    assert len(answers["log probabilities"].logprobs) == 10


def compare(tiny, stand_in, wanted, names=tuple(REQUESTS), **options):
    attempts = []
    chunks = options.get("chunks", "all")
    answers = wanted(512 if chunks == "all" else chunks, names)

    async def main():
        async with running(split_of(tiny, stand_in, **options)) as split:
            for name in names:
                assert await asked(split, REQUESTS[name], attempts) == answers[name], name

    anyio.run(main)
    return [one.speculation for one in attempts if one.speculation is not None]


@pytest.mark.slow
def test_undrafted(tiny, stand_in, wanted):
    compare(tiny, stand_in, wanted, chunks="all")


def test_undrafted_in_short(tiny, stand_in, wanted):
    compare(tiny, stand_in, wanted, SOME, chunks=16)


@pytest.mark.parametrize(("chunks", "branches"), [pytest.param("all", 0, marks=pytest.mark.slow), (16, 2)])
def test_drafted(tiny, stand_in, wanted, chunks, branches):
    """Many drafted tokens are wrong: both sides take back what they have computed for them."""
    reports = compare(tiny, stand_in, wanted, SOME, drafted=True, chunks=chunks, branches=branches)
    judged, accepted = sum(one.judged for one in reports), sum(one.accepted for one in reports)
    assert judged - accepted > 30, "wrong tokens"
    assert accepted > 30, "and right ones"


@pytest.mark.slow
@pytest.mark.parametrize("reply", ["last", "all"])
@pytest.mark.parametrize("chunks", [1, 16, 64, "all"])
@pytest.mark.parametrize("branches", [0, 1, 3])
def test_drafted_in_every_way(tiny, stand_in, wanted, chunks, branches, reply):
    compare(
        tiny,
        stand_in,
        wanted,
        drafted=True,
        chunks=chunks,
        branches=branches,
        reply=reply,
        window="confidence",
    )


def test_a_prompt_goes_up_in_its_chunks_and_one_row_comes_down(tiny, stand_in):
    async def main(reply):
        async with running(split_of(tiny, stand_in, chunks=16, reply=reply)) as split:
            before = len(stand_in.frames)
            await asked(split, ask(STORY, max_tokens=1))
            return [(at, rows, wanted) for *_, at, rows, wanted in stand_in.frames[before:]]

    frames = anyio.run(main, "last")
    assert [at for at, _, _ in frames] == list(range(0, 16 * len(frames), 16))
    assert {wanted for *_, wanted in frames} == {1}
    assert all(rows == wanted for _, rows, wanted in anyio.run(main, "all"))


@pytest.mark.parametrize("drafted", [False, True])
def test_answers_at_once(tiny, stand_in, wanted, drafted):
    """More answers than slots; they take turns, some share their beginnings, and some leave in the middle."""
    names = SOME
    found = {}

    async def main():
        async with running(split_of(tiny, stand_in, drafted=drafted, branches=2, chunks=16)) as split:

            async def one(name):
                found[name] = await asked(split, REQUESTS[name])

            async def leaves(request, events):
                attempt = split.open(request)
                async for _ in attempt:
                    events -= 1
                    if events <= 0:
                        break
                await attempt.aclose()

            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(one, name)
                tasks.start_soon(leaves, ask(STORY * 2), 1)
                tasks.start_soon(leaves, ask(STORY, temperature=0.8), 3)

    anyio.run(main)
    assert found == wanted(16, names)


def test_an_answer_that_lost_its_slot_is_read_again(tiny, stand_in):
    """Two answers share one slot, round by round: each time, the other's tokens are in the way."""

    async def writes(engine):
        openings = {
            name: Opening(ask(text).messages, {"temperature": 0.0, "max_tokens": 12}, 7)
            for name, text in (("a" * 32, STORY), ("b" * 32, "Hello!"))
        }
        texts = dict.fromkeys(openings, "")
        verifier = EngineVerifier(engine, lambda: None, Traffic)
        lengths = dict.fromkeys(openings, 0)
        for number in range(6):
            for key, opening in openings.items():
                asked_round = Round(
                    key=key,
                    number=number,
                    at=lengths[key],
                    draft=(),
                    opening=opening if number == 0 else None,
                )
                verdict = await verifier.round(asked_round)
                lengths[key] += len(verdict.ids)
                texts[key] += "".join(delta_of(one, one).text for one in verdict.deltas)
        return texts

    async def main():
        options = {"slots": 1, "limits": Limits(hold_s=0.0), "batch_tokens": 16}
        async with running(whole_of(tiny, **options)) as whole:
            wanted = await writes(whole.engine)
        split = split_of(tiny, stand_in, slots=1, chunks=16)
        split.engine._limits = options["limits"]
        async with running(split):
            assert await writes(split.engine) == wanted
        assert all(len(text) >= 6 for text in wanted.values())

    anyio.run(main)


def test_float16_halves_what_is_sent(tiny, stand_in):
    async def main(dtype):
        attempts = []
        async with running(split_of(tiny, stand_in, dtype=dtype, chunks=16)) as split:
            await asked(split, ask(STORY, max_tokens=2), attempts)
        return attempts[0].traffic

    half, full = anyio.run(main, Dtype.F16), anyio.run(main, Dtype.F32)
    assert 1.8 < full.bytes_up / half.bytes_up < 2.0
    assert half.bytes_down < full.bytes_down
    # Without a prompt's rows, of which nobody needs more than the last.
    assert full.bytes_down < full.bytes_up / 4


def test_the_first_answer_counts_its_bytes_though_it_loads_the_model(tiny, stand_in):
    async def main():
        attempts = []
        async with running(split_of(tiny, stand_in), warm=False) as split:
            await asked(split, ask(STORY, max_tokens=2), attempts)
        return attempts[0].traffic

    assert anyio.run(main).bytes_up > 4 * 64 * len(STORY)


def test_shorter_windows_of_others_are_not_filled_up(tiny, stand_in):
    """Rows that nobody reads would cost as much of the uplink as any."""
    draft = (5, 5, 5, 5)

    async def main():
        async with running(split_of(tiny, stand_in)) as split:
            assert split.model.fills_up is False
            verifier = EngineVerifier(split.engine, lambda: None, Traffic)
            both_began = anyio.Event()
            began = []

            async def one(key, text, draft):
                opening = Opening(ask(text).messages, {"temperature": 0.0, "max_tokens": 20}, 7)
                await verifier.round(Round(key=key, number=0, at=0, draft=(), opening=opening))
                began.append(key)
                if len(began) == 2:
                    both_began.set()
                    stand_in.frames.clear()
                    stand_in.delay_s = 0.02  # so that one waits while the other is computed
                await both_began.wait()
                for number in range(1, 6):
                    await verifier.round(Round(key=key, number=number, at=number, draft=draft))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, "a" * 32, STORY, draft)
                tasks.start_soon(one, "b" * 32, "Hello!", ())

    anyio.run(main)
    assert sorted({rows for *_, rows, _ in stand_in.frames}) == [1, len(draft) + 1]
