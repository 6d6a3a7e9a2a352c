"""`disco speculate check`: its verdict and its words, and one real run against a real verify server."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from cli.test_screen import made
from hypothesis import given
from hypothesis import strategies as st
from server.command_process import KEY, running, signals

from disco.cli import main
from disco.cli.speculation import check
from disco.cli.speculation.check import base_url_of, read_prompts
from disco.cli.speculation.check_report import (
    MODES,
    WINDOWS,
    Choice,
    Costs,
    Pace,
    Result,
    best,
    remedies,
    table,
    verdict,
)
from disco.cli.speculation.pair_measurement import Drafts, PairMeasurement, Proof, Written, _common, _misled
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.errors import ConfigurationError
from disco.speculate.messages import Verdict, VerifierFacts
from disco.speculate.predict import token_s

# As in shared notes: an F32 target on one core with a Q8_0 draft, and a target that a draft cannot help.
PAYS = Costs(0.009, 0.010, 0.0, ((1, 0.029), (2, 0.051), (5, 0.063), (9, 0.088)), 97, 100)
LOSES = Costs(0.012, 0.060, 0.001, ((1, 0.009), (5, 0.054), (9, 0.065)), 40, 100)
PLACE = st.floats(0.0001, 0.2)


def test_the_verdict_says_what_is_faster_and_by_how_much():
    choice = Choice(4, 2)
    worth_it, words = verdict(0.0288, 0.0180, choice)
    assert worth_it
    assert words == (
        "Worth it: window 4, two in flight: 1.60 x; the server alone writes a token in 28.8 ms, the best "
        "(window 4, two in flight) needs 18.0 ms."
    )
    worth_it, words = verdict(0.009, 0.0142, Choice(4, 1))
    assert not worth_it
    assert words == (
        "Not worth it here: the server alone writes a token in 9.0 ms, the best (window 4, in turn) needs 14.2 ms."
    )
    worth_it, words = verdict(0.100, 0.095, choice)
    assert not worth_it
    assert words.startswith("Hardly worth it here: 1.05 x, and 1.11 x is asked for: ")


@given(alone=st.floats(0.001, 1.0), share=st.floats(0.05, 20.0), gain=st.floats(0.0, 0.9))
def test_it_is_worth_it_exactly_where_the_share_is_saved(alone, share, gain):
    worth_it, words = verdict(alone, alone * share, Choice(1, 1), gain)
    assert worth_it == (alone * share < (1 - gain) * alone)
    assert words.startswith("Worth it") == worth_it


@given(
    st.builds(
        Costs,
        PLACE,
        PLACE,
        PLACE,
        st.lists(PLACE, min_size=3, max_size=3).map(lambda s: tuple(zip((1, 5, 13), sorted(s), strict=True))),
        st.integers(0, 50),
        st.just(50),
    )
)
def test_the_best_is_the_lowest_of_the_table_without_the_server_alone(costs):
    seen = costs.seen()
    choice, seconds = best(seen)
    assert choice.window in WINDOWS[1:]
    assert choice.parallel in MODES
    rows = table(seen)
    assert [row[0] for row in rows] == [str(window) for window in WINDOWS]
    assert rows[0][2] == "–"
    cells = [float(cell) for row in rows[1:] for cell in row[1:]]
    assert f"{1000 * seconds:.1f}" == f"{min(cells):.1f}"
    assert seconds == token_s(choice.window, seen, choice.parallel)


def test_what_would_help_is_named_only_if_it_would():
    near = Costs(0.012, 0.060, 0.0, ((1, 0.029), (5, 0.030), (13, 0.031)), 70, 100)
    assert remedies(near.seen()) == (
        "By prediction it would be worth it with any one of these: a network without delay (1.3 x), drafts that are "
        "always right (2.4 x)."
    )
    assert remedies(LOSES.seen()).startswith("No single one of these would change that")


def test_drafts_are_misled_at_some_places_and_compared_up_to_the_first_wrong_token():
    known = tuple(range(10, 40))
    draft = _misled(known, 2, 8)
    assert [at for at, (one, other) in enumerate(zip(draft, known[2:], strict=False)) if one != other] == [1]
    assert _misled((0,) * 8, 0, 8)[3] == 1  # an id below 0 would be refused
    assert (_common((1, 2, 3), (1, 2, 4)), _common((), (1,)), _common((1,), (1, 2))) == (2, 0, 1)


def test_costs_are_medians_and_a_batch_of_one_row_is_that_of_the_server_alone():
    proof = Proof()
    for took_s, compute_s in ((0.050, 0.030), (0.040, 0.030), (0.900, 0.030)):
        proof.learn(Verdict(1, 5, (1, 2, 3), rows=3, queue_s=0.001, compute_s=compute_s), 2, took_s)
    proof.learn(Verdict(1, 5, (1,), rows=0, queue_s=0.001, compute_s=0.0), 2, 0.012)  # it was settled already
    alone = Written([], 0.0, (1,), (1, 2, 3), (0.010, 0.011, 0.090))
    costs = PairMeasurement.costs([alone], proof, Drafts(10, 0.2, 6, 8))
    assert costs.verify_s == ((1, 0.011), (3, 0.030))
    assert costs.draft_s == pytest.approx(0.02)
    assert costs.round_trip_s == pytest.approx(0.015)  # of 9, 11, 19 and 869 ms
    assert costs.seen().acceptance == 0.75
    assert Costs(0, 0, 0, ((1, 0.1),), 0, 0).seen().acceptance == 0.0


def test_the_result_is_json_and_says_the_same_as_the_words():
    seen = PAYS.seen()
    choice, _ = best(seen)
    result = Result("m", "device", 10, 99, 0, PAYS, choice, Pace(100, 2.9), Pace(100, 1.6), 9, 4, 4)
    content = json.loads(json.dumps(result.to_json()))
    assert content["gain"] == pytest.approx(2.9 / 1.6)
    assert (content["worth_it"], content["verdict"]) == result.verdict
    assert len(content["predicted"]) == 1 + 2 * (len(WINDOWS) - 1)
    assert content["measured"]["token_s"] == 0.016
    screen, out = made()
    check._show(screen, result, here=True)
    text = out.getvalue()
    assert "97% of drafted tokens (97 of 100;" in text
    assert "share its cores" in text
    assert "Worth it: " in text
    assert "By prediction" not in text
    assert Pace().token_s == float("inf")


def test_a_prediction_that_did_not_come_true_is_explained():
    def shown(costs: Costs, drafted_s: float) -> str:
        choice, _ = best(costs.seen())
        result = Result(
            "m", "device", 10, 99, 0, costs, choice, Pace(100, 2.9), Pace(100, drafted_s), 19, 4, 4
        )
        screen, out = made()
        check._show(screen, result, here=False)
        return " ".join(out.getvalue().split())

    said = shown(PAYS, 3.5)
    assert "Not worth it here" in said
    assert (
        "Predicted were 13.7 ms, 2.11 x. Measured are whole answers: the server wrote 19 of their 104 tokens alone"
        in said
    )
    assert "By prediction" not in said
    assert "share its cores" not in said
    said = shown(LOSES, 3.5)
    assert "Predicted were" not in said
    assert "No single one of these would change that" in said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:8642", "http://127.0.0.1:8642/v1"),
        ("127.0.0.1:8642/", "http://127.0.0.1:8642/v1"),
        ("https://host/api/v1/", "https://host/api/v1"),
    ],
)
def test_an_address_may_be_given_without_its_path(given, expected):
    assert base_url_of(given) == expected


@pytest.mark.parametrize(
    "given", ["", "ftp://host", "http://", "http://user:secret@host", "http://host/v1?key=secret"]
)
def test_no_other_address_is_taken_and_no_secret_repeated(given):
    with pytest.raises(ConfigurationError) as refused:
        base_url_of(given)
    assert "secret" not in str(refused.value)


def test_prompts_are_lines(tmp_path):
    path = tmp_path / "prompts"
    path.write_text("one\n\n  two  \n", encoding="utf-8")
    assert read_prompts(str(path)) == ["one", "two"]
    assert len(read_prompts(None)) == 4
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="holds no prompt"):
        read_prompts(str(path))
    with pytest.raises(ConfigurationError, match="is a folder"):
        read_prompts(str(tmp_path))


class OtherModel:
    """Its tokens mean something else. Mutable: whether it was closed."""

    name, vocabulary, closed = "other", "another", False

    async def warm_up(self):
        pass

    def drafter(self):
        return self

    async def aclose(self):
        self.closed = True


@pytest.mark.anyio
async def test_a_drafter_with_another_vocabulary_is_refused_and_closed(monkeypatch):
    model = OtherModel()
    monkeypatch.setattr(check, "open_model", lambda name, *, threads: model)
    arguments = argparse.Namespace(drafter="local", local="other", threads=None)
    facts = VerifierFacts("target", "vocab", 4096, 4)
    screen, _ = made()
    with pytest.raises(
        ConfigurationError, match="other and the server's model target have other vocabularies"
    ):
        async with check._drafter(screen, arguments, facts):
            pass
    assert model.closed
    async with check._drafter(screen, argparse.Namespace(drafter="ngram"), facts) as drafter:
        assert drafter.vocabulary is None


@pytest.mark.slow
@pytest.mark.real
@signals
def test_a_real_pair_is_proved_measured_and_judged(tmp_path: Path, capsys):
    prompts, key = tmp_path / "prompts", tmp_path / "key"
    prompts.write_text("Count from one to twenty in words.\n", encoding="utf-8")
    key.write_text(KEY, encoding="utf-8")
    verify = (
        "--verify",
        str(resolve_model("smollm2-135m")),
        "--slots",
        "1",
        "--context",
        "128",
        "--threads",
        "1",
    )
    with running(*verify, "--preset", "private", DISCO_SERVER_KEY=KEY) as (_, (host, port)):
        url = f"http://{host}:{port}"
        assert main(["speculate", "check", url]) == 2  # no key
        assert re.search(r"refuses the key \(status 401\)", capsys.readouterr().err)
        asked = [
            "speculate",
            "check",
            url,
            "--key-file",
            str(key),
            "--prompts",
            str(prompts),
            "--tokens",
            "16",
        ]
        assert main([*asked, "--json", "--threads", "1"]) == 0
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert found["proof"]["answers"] == 10
        assert found["proof"]["windows"] > 10
        assert found["proof"]["differing"] == 0
        assert "10 of 10 answers" in said.err
        rows = [rows for rows, _ in found["verify_s"]]
        assert {1, 2, 3, 5} <= set(rows)
        assert found["acceptance"] > 0.9  # the same model
        assert 0 < found["draft_s"] < 1
        assert 0 < found["round_trip_s"] < 1
        assert found["measured"]["alike"] == found["measured"]["answers"] == 1
        assert found["verdict"].rstrip(".") in said.err.replace("\n", " ")
    assert main(["speculate", "check", url]) == 2
    assert "No server answers at " in capsys.readouterr().err
