"""Playback for a voice: whole sentences, as early as they are complete, and parts of one where it would fall silent."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco.events import Delta, DeltaKind
from disco.playback import (
    Pace,
    Playback,
    SentencePlayback,
    last_sentence_end,
    playback_for,
    sentence_playback,
)
from disco.playback.reader_metrics import silences_s
from disco.playback.sentence_playback import LEAD_S
from disco.playback.spoken_pieces import LONGEST_CHARS, clause_end, ends_in_fence, piece_ends

PACE = Pace(3.5, max_hold_s=2.0, release="sentence")
SEA = "The sea is salty, e.g. from rivers. Dr. Smith says so! It has 3.5 percent of it.\nThat is all"
CODE = "Look at all of this here and see:\n```python\nprint('a. b.')\nx = 1\n```\nDone. Bye"

WORDS = st.sampled_from(
    ["Yes", "the sea", "Dr.", "e.g.", "3.5", "wait,", "so:", "and", "。", "你好", "！", "?", "!", ".", "\n", "\n\n",
     " ", "```\n", "~~~", "- item", "3. Oktober", '"Stop!"', "x" * 70, "1.", "…", "word word word", ";", "a\u0301"]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=40).map(" ".join) | st.lists(WORDS, max_size=40).map("".join)


def tokens_of(text: str) -> list[str]:
    return re.findall(r"\s?\S{1,5}|\s", text)


def play(
    text: str, tps: float = 20.0, pace: Pace = PACE, *, ends: bool = True, **state
) -> list[tuple[float, Delta]]:
    """Drive a buffer as a session does."""
    playback, now, out = playback_for(pace), 0.0, []
    for name, value in state.items():
        setattr(playback, name, value)

    def release(at: float) -> None:
        out.extend((at, delta) for delta in playback.release(at))

    for token in tokens_of(text):
        now += 1 / tps
        while playback.next_at is not None and playback.next_at < now:
            release(playback.next_at)
        playback.push(now, Delta(token))
        release(now)
    if ends:
        playback.end(now)
        release(now)
        assert playback.next_at is None
        assert playback.banked_tokens == pytest.approx(0)
        assert playback.released_chars == playback.pushed_chars
    return out


def texts(out: list[tuple[float, Delta]]) -> list[str]:
    return [delta.text for _, delta in out]


def test_sentences_leave_whole_and_abbreviations_numbers_and_code_do_not_end_them():
    assert texts(play(SEA)) == [
        "The sea is salty, e.g. from rivers.",
        " Dr. Smith says so!",
        " It has 3.5 percent of it.",
        "\nThat is all",
    ]
    code = "\n```python\nprint('a. b.')\nx = 1\n```"
    assert texts(play(CODE)) == ["Look at all of this here and see:", code, "\nDone.", " Bye"]
    assert texts(play("Drei. Am 3. Oktober 1990 war es. Ja")) == [
        "Drei.",
        " Am 3. Oktober 1990 war es.",
        " Ja",
    ]
    chinese = ["你好。", "我很好！", "「再见。」", "他说。", "好"]
    assert texts(play("".join(chinese), tps=5)) == chinese
    listed = "A list:\n- one\n- two. More\n\nEnd"
    assert texts(play(listed)) == ["A list:", "\n- one", "\n- two.", " More\n", "\nEnd"]


def test_a_sentence_leaves_as_soon_as_the_next_one_begins():
    out = play("It is so. And so", tps=10)
    at = {text: now for now, text in ((now, delta.text) for now, delta in out)}
    assert at["It is so."] == pytest.approx(0.1 * (tokens_of("It is so. And").index(" And") + 1))


def test_the_first_clause_of_a_long_first_sentence_goes_ahead_and_no_later_one_does():
    long = "Because the rivers carry it down, and since the sun is hot, the sea is salty. "
    out = texts(play(long + long))
    assert out[0] == "Because the rivers carry it down,"
    assert out[1:] == [" and since the sun is hot, the sea is salty.", f" {long}"]
    assert texts(play("Yes, the sea is salty. So"))[0] == "Yes, the sea is salty."  # too short to go ahead


def test_a_listener_who_would_fall_silent_gets_the_clause_in_time_and_words_after_the_longest_wait():
    """The writer is slower than the voice."""
    slow = "It is so. " + "and it goes on and on, " * 3 + "until the end of all of it comes. "
    out = play(slow, tps=2.5)
    assert any(text.endswith(",") for text in texts(out)[1:])
    wordy = "It is so. " + "and it goes on " * 10
    waits = silences_s([(at, d.tokens) for at, d in play(wordy, tps=2.0)], PACE.tps)
    assert max(waits) <= PACE.max_hold_s + 1e-6
    assert all(text[:1] in "I " for text in texts(play(wordy, tps=2.0)))  # no piece begins inside a word


def test_text_without_an_end_is_cut_at_the_longest_piece():
    pieces = texts(play("word " * 400, tps=1e4))
    assert max(map(len, pieces)) <= LONGEST_CHARS
    assert all(piece.replace(" ", "") == "word" * len(piece.split()) for piece in pieces)
    assert max(map(len, texts(play("x" * 1000, tps=1e4)))) <= LONGEST_CHARS


def test_while_text_is_banked_a_sentence_leaves_just_before_the_voice_reaches_it():
    fast = play("One two three four. " * 4, tps=1e3, banking=True, ends=False)
    times = [at for at, _ in fast]
    assert times[0] < 0.02  # the first one at once
    playback = playback_for(PACE)
    playback.banking = True
    for token in tokens_of("One two three four. " * 4):
        playback.push(0.0, Delta(token))
    (first,) = playback.release(0.0)
    due_at = playback.next_at
    assert due_at == pytest.approx(first.tokens / PACE.tps - LEAD_S)
    assert playback.release(due_at - 0.01) == []
    assert len(playback.release(due_at)) == 1
    assert playback.retract(playback.released_chars) != []  # what has not left can be taken back
    playback.banking = False
    assert playback.next_at is None


def test_however_much_is_banked_only_the_beginning_is_read_for_a_piece(monkeypatch):
    """Otherwise the work for each token grows with the text in hand."""
    read = []

    def ends(text: str, *rest, **more) -> list[int]:
        read.append(len(text))
        return piece_ends(text, *rest, **more)

    monkeypatch.setattr(sentence_playback, "piece_ends", ends)
    text = "It is so, and it goes on. " * 60
    assert "".join(texts(play(text, tps=1e3, banking=True))) == text
    assert max(read) < 2 * LONGEST_CHARS


def test_a_block_within_a_list_is_one_piece_however_far_it_is_indented():
    text = "1. Do this:\n\n    ```sh\n    ls. Go. On\n    ```\n\n2. It is so. And so on. "
    pieces = [piece.strip() for piece in texts(play(text))]
    assert pieces == ["1. Do this:", "```sh\n    ls. Go. On\n    ```", "2. It is so.", "And so on."]


def test_code_within_a_line_opens_no_block():
    text = "Write this. ```x = 1``` is code.\nIt is so. And so on. "
    assert texts(play(text))[:3] == ["Write this.", " ```x = 1``` is code.", "\nIt is so."]


def test_one_delta_for_each_sentence_with_all_tokens_and_ids_and_the_first_ones_chunk():
    playback = SentencePlayback(PACE)
    for number, token in enumerate(("Yes", ".", " No", ". ", "So")):
        playback.push(0.0, Delta(token, ids=(number,), raw=f"chunk {number}"))
    one, two = playback.release(0.0)
    assert (one.text, one.tokens, one.ids, one.raw) == ("Yes.", 2, (0, 1), "chunk 0")
    assert (two.text, two.tokens, two.ids, two.raw) == (" No. ", 2, (2, 3), "chunk 2")


def test_what_is_no_text_keeps_its_place_and_an_empty_chunk_does_not_end_a_sentence():
    playback = SentencePlayback(PACE)
    role, tool = Delta("", kind=DeltaKind.ROLE), Delta("", kind=DeltaKind.TOOL)
    for delta in (role, Delta("It"), role, Delta(" is")):
        playback.push(0.0, delta)
    assert playback.release(0.0) == [role]
    playback.push(0.0, tool)
    piece, between, last = playback.release(0.0)
    assert (piece.text, between, last) == ("It is", role, tool)
    assert playback.next_at is None


def test_the_text_behind_a_gate_tells_where_a_sentence_ends():
    playback = SentencePlayback(PACE)
    playback.gate = 9
    for token in ("It is so.", " And", " so on."):
        playback.push(0.0, Delta(token))
    assert [d.text for d in playback.release(0.0)] == ["It is so."]
    playback.gate = None
    playback.end(0.0)
    assert "".join(d.text for d in playback.release(0.0)) == " And so on."


def test_the_slack_is_what_the_voice_has_to_speak():
    playback = SentencePlayback(PACE)
    playback.push(0.0, Delta("", kind=DeltaKind.ROLE))
    assert playback.slack_s(0.5) == 0.0
    for token in tokens_of("One two three. Four"):
        playback.push(1.0, Delta(token))
    playback.release(1.0)
    assert playback.slack_s(2.0) == pytest.approx(len(tokens_of("One two three. Four")) / PACE.tps - 1.0)
    assert isinstance(playback_for(None), Playback)
    assert type(playback_for(Pace(3.5))) is Playback


@settings(max_examples=300)
@example("x" * 70 + " \n ~~~", 20.0, False)  # a fence may begin at the text's end, and then never does
@given(TEXTS, st.sampled_from([1.0, 3.0, 20.0, 1e4]), st.booleans())
def test_nothing_is_lost_the_order_is_kept_and_only_forced_pieces_end_inside_a_sentence(text, tps, banking):
    out = play(text, tps, banking=banking)
    assert "".join(texts(out)) == text
    assert all(later >= at for (at, _), (later, _) in pairwise(out))
    assert all(0 < len(piece) <= LONGEST_CHARS for piece in texts(out))
    lengths = [len(token) for token in tokens_of(text)]
    position, in_fence, spoken_at = 0, False, None
    for now, delta in out[:-1]:
        piece, rest = delta.text, text[position:]
        space = len(rest) - len(rest[len(piece) :].lstrip()) - len(piece)
        ends = {len(piece), len(piece) + space}  # the space before a word may have stayed with it
        # With a line's end behind it, the last line may be a fence.
        known = {
            end for all_ in (rest, f"{rest}\n") for end in piece_ends(all_, in_fence=in_fence, is_all=True)
        }
        if ends.isdisjoint(known):
            waits = sum(lengths[: int(now * tps + 1e-6)]) - position
            dry_at = 1 / tps if spoken_at is None else spoken_at - 1 / PACE.tps  # a token may be divided
            clause = clause_end(rest[: len(piece) + space + 1], in_fence=in_fence) in ends
            in_time = clause and (spoken_at is None or now >= dry_at - LEAD_S)
            assert waits > LONGEST_CHARS or in_time or now >= dry_at + PACE.max_hold_s - 1e-6
        in_fence = ends_in_fence(piece, in_fence=in_fence)
        position += len(piece)
        spoken_at = (now if spoken_at is None else max(now, spoken_at)) + delta.tokens / PACE.tps


@settings(max_examples=300)
@given(TEXTS, st.integers(0, 60))
def test_an_end_that_was_found_is_still_one_when_the_text_goes_on(text, cut):
    """A piece that has left cannot be taken back, so no later text may show that it was no sentence."""
    early = piece_ends(text[:cut])
    late = piece_ends(text, is_all=True)
    assert early == sorted(set(early))
    assert all(0 < end <= cut for end in early)
    assert not early or any(not text[min(early[0], end) : max(early[0], end)].strip() for end in late)


@settings(max_examples=200)
@given(
    TEXTS,
    st.lists(
        st.tuples(st.integers(0, 80), st.booleans(), st.none() | st.integers(0, 120), st.floats(0, 3)),
        min_size=1,
    ),
)
def test_gates_banking_and_retractions_lose_nothing(text, steps):
    playback, now, written, shown = SentencePlayback(PACE), 0.0, "", ""
    for step, token in enumerate(tokens_of(text)):
        back, playback.banking, gate, wait_s = steps[step % len(steps)]
        playback.gate = gate
        now += wait_s
        playback.push(now, Delta(token))
        written += token
        before = len(shown)
        shown += "".join(d.text for d in playback.release(now))
        assert gate is None or len(shown) <= max(gate, before)
        if step % 7 == 3 and back >= len(shown):
            cut = min(back, len(written))
            taken = "".join(d.text for d in playback.retract(cut))
            assert written == written[:cut] + taken
            written = written[:cut]
        assert written.startswith(shown)
        assert (playback.pushed_chars, playback.released_chars) == (len(written), len(shown))
        assert playback.next_at is None or playback.next_at > now
    playback.gate = None
    playback.end(now)
    shown += "".join(d.text for d in playback.release(now))
    assert shown == written
    assert playback.banked_tokens == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("Hello. ", 6),
        ("Hello.", 0),  # 3.5 may follow
        ("Ask Dr. ", 0),
        ("It is so. Dr. ", 9),
        ("你好。", 3),
        ("A line\n", 7),
        ("Sure. So.\n\n", 11),
        ("", 0),
    ],
)
def test_the_last_sentence_of_a_text_that_goes_on(text, end):
    assert last_sentence_end(text) == end
