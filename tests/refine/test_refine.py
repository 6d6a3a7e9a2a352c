"""Refining: what may be left out, how much is kept, that answered turns stay as they were, and the mask."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.dispatch import estimate_tokens
from disco.errors import ConfigurationError, WrongMaskError
from disco.refine import SELECTORS, apply_mask, decode_mask, encode_mask, refine, turns_of

SENTENCES = (
    "The mill at Orrin ground rye for the whole valley. ",
    "It burned down in 1802, on a night in March. ",
    "A ferry crosses the lake twice a day in summer. ",
    "The baker bought flour from his cousin in the hills. ",
    "Nobody remembers the name of the last miller there. ",
    "In winter the road over the pass is often closed. ",
    "The church has a bell that was cast from cannons. ",
    "Sheep are still driven through the village in May. ",
)
TEXT = "".join(SENTENCES).strip()
QUESTION = "When did the mill burn?"


def user(*texts):
    return {"role": "user", "content": "\n\n".join(texts)}


def texts_of(messages):
    return [message["content"] for message in messages]


def test_the_sentences_that_share_words_with_the_question_are_kept_in_their_order():
    refined = refine([user(TEXT, QUESTION)], keep=0.25)
    assert refined.messages == [user((SENTENCES[0] + SENTENCES[1]).strip(), QUESTION)]
    assert refined.kept_share == pytest.approx(0.25, abs=0.05)
    assert refined.kept_share < refined.prompt_share < 0.4


def test_nothing_is_left_out_at_a_share_of_one():
    messages = [user(TEXT, QUESTION)]
    refined = refine(messages, keep=1.0)
    assert refined.messages == messages
    assert (refined.kept_share, refined.prompt_share) == (1.0, 1.0)


CODE = "```\n" + TEXT + "\n```"
SCHEMA = json.dumps({"type": "object", "description": TEXT})
EXAMPLES = f"Input: {TEXT}\nOutput: sad\n\nInput: {TEXT}\nOutput: glad"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": TEXT}, user(QUESTION)],
        [{"role": "developer", "content": TEXT}, user(QUESTION)],
        [user(TEXT)],  # one paragraph: it may all be the question
        [user("The text is this:", TEXT)],
        [user(CODE, QUESTION)],
        [user(SCHEMA, QUESTION)],
        [user(EXAMPLES, QUESTION)],
        [user("Rye is good. Oats are better.", QUESTION)],  # short
        [user("Rye is good. It is old."), {"role": "assistant", "content": TEXT}, user(QUESTION)],
        [
            {**user(TEXT, QUESTION), "name": "example_user"},
            {"role": "assistant", "content": "1802"},
            user(QUESTION),
        ],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": TEXT}}]}, user(QUESTION)],
        [
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": TEXT}}]},
            user(QUESTION),
        ],
        [],
    ],
)
def test_what_is_never_left_out(messages):
    refined = refine(messages, keep=0.1)
    assert refined.messages == messages
    assert refined.kept_share == 1.0


def test_a_long_question_behind_a_message_with_the_content_stays_whole():
    question = user("Tell me.", QUESTION, "And why did nobody help?")
    refined = refine([user(TEXT, TEXT), question], keep=0.3)
    assert refined.messages[1] == question
    assert "1802" in refined.messages[0]["content"]
    assert refined.kept_share < 0.4


def test_the_results_of_tools_are_refined_by_the_question_and_the_call():
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"about": "ferry lake"}'},
    }
    messages = [
        user("What do the documents say?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": TEXT},
    ]
    refined = refine(messages, keep=0.1)
    assert texts_of(refined.messages) == ["What do the documents say?", None, SENTENCES[2]]
    assert refined.messages[2]["tool_call_id"] == "1"


def test_named_messages_lose_units_whatever_their_role_but_the_question_stays():
    messages = [{"role": "system", "content": TEXT}, user(TEXT, QUESTION)]
    refined = refine(messages, keep=0.2, named=[0])
    assert refined.messages[1] == messages[1]
    assert "1802" in refined.messages[0]["content"]
    assert refined.kept_share < 0.35
    assert refine(messages, keep=0.2, named=[-2]).mask == refined.mask
    assert refine(messages, keep=0.2, named=[1]).messages[1]["content"].endswith(QUESTION)
    with pytest.raises(ConfigurationError, match="message 2; the conversation has 2"):
        refine(messages, keep=0.2, named=[2])


def test_parts_of_a_message_are_refined_and_none_is_left_empty():
    far = "".join(SENTENCES[2:]).strip()
    parts = [{"type": "text", "text": text} for text in ("".join(SENTENCES[:2]), far, QUESTION)]
    refined = refine([{"role": "user", "content": parts}], keep=0.25)
    # The first part is as short as an instruction.
    assert refined.messages[0]["content"][0] == parts[0]
    assert refined.messages[0]["content"][-1] == parts[-1]
    assert all(part["text"].strip() for part in refined.messages[0]["content"])
    assert parts[1]["text"] == far


def test_paragraphs_stay_apart():
    text = "\n\n".join(
        ["".join(SENTENCES[:3]).strip(), "".join(SENTENCES[3:6]).strip(), "".join(SENTENCES[6:]).strip()]
    )
    question = "Which ferry? Which winter road? Which sheep?"
    refined = refine([user("Read this.", text, question)], keep=0.4)
    assert refined.messages[0]["content"] == "\n\n".join(
        ["Read this.", SENTENCES[2].strip(), SENTENCES[5].strip(), SENTENCES[7].strip(), question]
    )


def test_hints_count_for_the_selector_that_takes_them():
    messages = [user(TEXT, "What should I see?")]
    hinted = {
        name: refine(messages, keep=0.1, selector=name, hints="A bell") for name in ("lexical", "feedback")
    }
    assert "cannons" in hinted["feedback"].messages[0]["content"]
    assert hinted["lexical"] == refine(messages, keep=0.1)


@pytest.mark.parametrize("selector", SELECTORS)
def test_every_selector_is_deterministic_and_keeps_about_the_share(selector):
    messages = [user(TEXT * 4, QUESTION)]
    one, other = (refine(messages, keep=0.5, selector=selector) for _ in range(2))
    assert one == other
    assert one.kept_share == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan")])
def test_shares_and_selectors_out_of_range_are_refused(keep):
    with pytest.raises(ConfigurationError, match="keep must be above 0"):
        refine([], keep=keep)
    with pytest.raises(ConfigurationError, match=r"no selector 'lexicol'.*lexical"):
        refine([user(TEXT, QUESTION)], keep=0.5, selector="lexicol")


# Conversations

BODIES = st.lists(st.sampled_from([*SENTENCES, "\n\n", CODE + "\n", QUESTION]), max_size=24).map("".join)
ANSWERS = st.builds(lambda text: {"role": "assistant", "content": text}, BODIES)
OTHERS = st.builds(
    lambda role, text, parts: {"role": role, "content": [{"type": "text", "text": text}] if parts else text},
    st.sampled_from(["system", "user", "user", "tool"]),
    BODIES,
    st.booleans(),
)
CONVERSATIONS = st.lists(st.one_of(OTHERS, OTHERS, ANSWERS), max_size=8)
KEEPS = st.floats(0.05, 1.0)


@given(CONVERSATIONS, ANSWERS, CONVERSATIONS, KEEPS)
def test_an_answered_turn_stays_as_it_was(before, answer, after, keep):
    """So the KV cache of the conversation so far serves the next request."""
    long = refine([*before, answer, *after], keep=keep).messages
    assert long[: len(before)] == refine(before, keep=keep).messages


@given(CONVERSATIONS, KEEPS, st.sampled_from(sorted(SELECTORS)))
def test_a_mask_makes_the_same_conversation_and_the_rest_is_as_before(messages, keep, selector):
    before = json.dumps(messages)
    refined = refine(messages, keep=keep, selector=selector)
    assert apply_mask(messages, refined.mask) == refined.messages
    assert json.dumps(messages) == before
    whole = estimate_tokens(json.dumps(messages))
    assert estimate_tokens(json.dumps(refined.messages)) <= whole
    for old, new in zip(messages, refined.messages, strict=True):
        assert new["role"] == old["role"]
        assert new == old or old["role"] in ("user", "tool")
        assert json.dumps(new["content"]).count("```") == json.dumps(old["content"]).count("```")


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(1, 40))
def test_a_mask_is_small_and_read_as_it_was_written(bits, count):
    turns = turns_of([user(TEXT * count, QUESTION)])
    kept = (bits * count)[: len(turns[0].optional())]
    mask = encode_mask(turns, kept)
    assert decode_mask(turns, mask) == kept
    assert len(mask) <= 21 + 4 * (len(kept) / 8 + 3) / 3


def test_a_mask_for_another_text_is_refused():
    mask = refine([user(TEXT, QUESTION)], keep=0.4).mask
    for other in (
        TEXT.replace("1802", "1803"),
        TEXT + " More of it, of course.",
        TEXT.replace(". ", ".  ", 1),
    ):
        with pytest.raises(WrongMaskError, match="another text"):
            apply_mask([user(other, QUESTION)], mask)
    version, digest, _ = mask.split(".")
    for wrong, reason in [
        (f"2.{mask[2:]}", "another version"),
        (f"{version}.{digest}.cA", "damaged"),
        (f"{version}.{digest}.!", "damaged"),
        (f"{version}.{digest}.eg____", "damaged"),
        ("", "another version"),
    ]:
        with pytest.raises(WrongMaskError, match=reason) as caught:
            apply_mask([user(TEXT, QUESTION)], wrong)
        assert "mill" not in str(caught.value)


@given(st.floats(0.0, 1.0))
def test_what_the_device_has_read_stays_whatever_the_mask_says(read_share):
    messages = [user(TEXT, QUESTION)]
    mask = refine(messages, keep=0.2).mask
    text = apply_mask(messages, mask, read_share=read_share)[0]["content"]
    whole = messages[0]["content"]
    assert text.startswith(whole[: int(read_share * len(whole))])
    assert (text == whole) == (read_share > sum(map(len, SENTENCES[:7])) / len(whole))
