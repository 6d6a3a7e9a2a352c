"""The last rung: which words are quoted, what is sent, and that only a reply that begins with them is spliced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cost.token_bounds import MOST_PROOF
from disco.endpoints.continuation import CannotContinueError, SeamMismatchError
from disco.endpoints.continuation.instruction import (
    INSTRUCTION,
    MOST_CHARS,
    RepeatedSeam,
    instructed_call,
    quoted_from,
)
from disco.endpoints.continuation.probe import MOST_PROMPT_TOKENS, MOST_TOKENS
from disco.request import Prefix, Request

MESSAGES = [{"role": "user", "content": "Hi"}]
SEA = "The sea is wide and the sea is deep, and the old boats sail on it every morning"


def ask(messages=MESSAGES, **params) -> Request:
    return Request(messages=messages, model="m", params=params)


def test_the_roles_take_turns_and_a_few_unique_words_are_quoted():
    call = instructed_call(ask(max_tokens=100, temperature=0.5), Prefix(SEA, tokens=20))
    *before, answer, told = call.body["messages"]
    assert before == MESSAGES
    assert answer == {"role": "assistant", "content": SEA}
    quoted = "boats sail on it every morning"
    assert (told["role"], SEA[call.repeats_from :]) == ("user", quoted)
    assert told["content"].endswith(f"<last_words>{quoted}</last_words>")
    # The limit leaves room for all that may be written again; what is new is counted by the attempt.
    assert (call.body["max_tokens"], call.new_tokens) == (100 + 8, 80)
    assert (call.body["temperature"], call.method, call.echoes) == (0.5, "instructed", False)
    again = instructed_call(ask(), Prefix(SEA, asked_again=True))
    assert SEA[again.repeats_from :].endswith(f"deep, and the old {quoted}")
    # What the reader has seen of a last word is not quoted: the target must write it.
    withheld = instructed_call(ask(), Prefix(SEA + " at da", withheld=" da"))
    assert withheld.body["messages"][-1]["content"].endswith("it every morning at</last_words>")


def test_words_that_come_twice_are_quoted_with_more_before_them():
    text = "One: so it goes, and so it goes on and on. Two: so it goes, and so it goes on and on."
    assert text[quoted_from(text, again=False) :].startswith("Two: so")
    assert quoted_from("ha ha ha", again=False) == 0
    assert (
        quoted_from(
            "海は広いな大きいな、月がのぼるし、日が沈む。海は大波、青い波、ゆれてどこまで続くやら",
            again=False,
        )
        > 0
    )
    with pytest.raises(CannotContinueError, match="more than once"):
        quoted_from("ha " * MOST_CHARS + "ha", again=False)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ask([*MESSAGES, {"role": "assistant", "content": "The"}]), "ends with a message of the assistant"),
        (ask(stop=["every m"]), "stop sequence"),
        (ask(), "no words"),
    ],
)
def test_what_could_go_wrong_is_not_tried(request_, says):
    with pytest.raises(CannotContinueError, match=says):
        instructed_call(request_, Prefix(" " if says == "no words" else SEA))


def test_a_proof_costs_no_more_than_budgets_reserve_for_it():
    bytes_of_quotation = MOST_CHARS * len("\U0001f30a".encode())
    assert MOST_PROMPT_TOKENS + len(INSTRUCTION) + bytes_of_quotation + 64 <= MOST_PROOF[0]
    assert MOST_TOKENS + bytes_of_quotation <= MOST_PROOF[1]


def fed(seam, pieces) -> str:
    return "".join([*(seam.feed(piece) for piece in pieces), seam.end()])


@pytest.mark.parametrize(
    "reply",
    [
        '"{}" then',  # in quotation marks
        "```\n{}``` then",
        "Sure: {} then",
        "{} then".replace("{}", "Boats sail on it every morning"),  # another capital letter
        "boats sail upon it every morning then",
        "boats sail on it every",
        "The sea is wide. Then",
        "",
        " \n",
    ],
)
def test_a_rephrased_beginning_is_refused(reply):
    seam = RepeatedSeam(Prefix(SEA), quoted_from(SEA, again=False))
    with pytest.raises(SeamMismatchError):
        fed(seam, [reply.replace("{}", "boats sail on it every morning")])


def test_the_last_word_must_not_become_another_one_unless_the_reader_has_only_a_part_of_it():
    start = quoted_from(SEA, again=False)
    for prefix, passes in ((Prefix(SEA), False), (Prefix(SEA, ends_in_word=True), True)):
        seam = RepeatedSeam(prefix, start)
        if passes:
            assert fed(seam, [SEA[start:], "s, they"]) == "s, they"
        else:
            with pytest.raises(SeamMismatchError, match="another word"):
                fed(seam, [SEA[start:], "s, they"])
    for rest in (".", " then", "'s end", "", "\n"):
        assert fed(RepeatedSeam(Prefix(SEA), start), [SEA[start:] + rest]) == rest


TEXTS = st.lists(
    st.sampled_from(["sea", "Sea", "is", "wide.", "海は", "🌊", "\n\n", "a", "it's"]), min_size=1
).map(" ".join)
PREFIXES = st.builds(
    lambda lead, text, withheld: Prefix(lead + text.strip() + withheld, withheld=withheld),
    st.sampled_from(["", " ", "\n"]),
    TEXTS.filter(str.strip),
    st.sampled_from(["", " wi", " deep"]),
)


@given(PREFIXES, st.data())
def test_a_reply_is_spliced_exactly_where_it_repeats_the_words_or_refused_with_nothing_passed_on(
    prefix, data
):
    """However it comes in pieces. The oracle is the definition, on the whole reply at once."""
    text = prefix.text
    try:
        start = quoted_from(prefix.sent, again=data.draw(st.booleans()))
    except CannotContinueError:
        return
    assert text.find(text[start:]) == start
    assert not text[start].isspace()
    rest = data.draw(TEXTS.map(lambda made: f" {made}") | st.just("") | st.just("."))
    begins = [text[start:], text.lstrip(), text[start + 1 :], text[:-1], "Sure! " + text[start:], rest]
    reply = data.draw(st.sampled_from(["", "\n", "  "])) + data.draw(st.sampled_from(begins)) + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=8)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]

    seam, passed = RepeatedSeam(prefix, start), []
    refused = False
    try:
        for piece in pieces:
            passed.append(seam.feed(piece))  # noqa: PERF401 - what was passed on before an error counts
        passed.append(seam.end())
    except SeamMismatchError:
        refused = True
    came = reply.lstrip()
    found = next((known for known in (text[start:], text.lstrip()) if came.startswith(known)), None)
    if found is None:
        assert refused
        assert not "".join(passed), "nothing is shown of what does not belong there"
        return
    assert not refused
    assert "".join(passed) == came[len(found) :]
    report = seam.report
    assert report.written_chars - report.swallowed_chars == len(came) - len(found)
    whole = found == text.lstrip() and start > len(text) - len(text.lstrip())
    assert report.verdict == ("echo" if whole else "continued")
    assert report.swallowed_chars == len(text) - (0 if whole else report.sent_chars)
