"""S16: an answer of disco's equals the SDK's, and its copies equal it."""

from __future__ import annotations

import copy
import pickle

import pytest
from sdk_parity.side_by_side import CHAT, answering, ask, behind, both

from disco import BudgetExceededError

pytestmark = pytest.mark.anyio


def create(client):
    return client.chat.completions.create(**CHAT)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_copies_of_an_answer_equal_it(kinds, alone):
    answer = (await ask(kinds[1], create, **({} if alone else behind()))).value
    other = (await ask(kinds[1], create, **({} if alone else behind()))).value
    pickled = pickle.loads(pickle.dumps(answer))
    for same in (
        pickled,
        copy.copy(answer),
        copy.deepcopy(answer),
        answer.model_copy(),
        answer.model_copy(deep=True),
    ):
        assert same == answer
        assert answer == same
        assert same.route.answer_tokens == answer.route.answer_tokens
    changed = answer.model_copy(update={"model": "another"})
    assert changed != answer
    assert (other == answer) is (other.model_dump() == answer.model_dump())


async def test_an_answer_equals_the_sdks(kinds):
    plain, ours = await both(kinds, create)
    assert ours.value == plain.value
    assert plain.value == ours.value
    plain.value.model = "another"
    assert plain.value != ours.value
    assert ours.value != plain.value
    assert ours.value != "an answer"


async def test_the_ids_of_requests_make_no_difference(kinds):
    def another(request):
        response = answering(request)
        response.headers["x-request-id"] = "req_2"
        return response

    for kind in kinds:
        one, other = [(await ask(kind, create, answer)).value for answer in (answering, another)]
        assert (one._request_id, other._request_id) == ("req_1", "req_2")
        assert one == other


async def test_an_answer_with_a_local_model_behind_equals_the_sdks_object_of_the_same_fields(kinds):
    plain, ours = await both(kinds, create, ours=behind())
    same = type(plain.value).model_validate_json(ours.value.model_dump_json())
    assert ours.value == same
    assert same == ours.value


async def test_an_answer_has_a_hash_where_the_sdks_has(kinds):
    for outcome in await both(kinds, create):
        with pytest.raises(TypeError, match="unhashable"):
            hash(outcome.value)


def test_an_error_comes_out_of_a_worker_process_as_it_was():
    error = BudgetExceededError("too little is left", limit="usd", retry_after_s=3.2, account="app")
    error.partial_text = "The sea"
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(same) is BudgetExceededError
        assert str(same) == str(error)
        assert (same.limit, same.retry_after_s, same.account) == ("usd", 3.2, "app")
        assert (same.code, same.partial_text) == ("insufficient_quota", "The sea")
        assert same.response.headers["retry-after"] == "4"
