"""The server: its API, its answer to the key, its models, how it continues an answer, and its time to first token."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Mapping
from typing import Final

import anyio
import openai

from disco.amounts import money
from disco.cli.doctor.finding import (
    Facts,
    Finding,
    Setup,
    command,
    does_not,
    sets,
    split_message,
    unchecked,
    works,
)
from disco.cli.doctor.hidden_secrets import known_secrets, quoted
from disco.cli.doctor.model_list import Listed, list_models, why_no_connection
from disco.cli.doctor.server_address import ADDRESS, KEY, Address, address
from disco.client.endpoint_catalog.local_servers import is_loopback
from disco.endpoints.continuation import Continuation
from disco.endpoints.continuation.methods import LADDER
from disco.endpoints.continuation.probe import ProbeVerdict
from disco.endpoints.local_server.server_info import the_model
from disco.endpoints.openai_api.api_endpoint import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, nearest
from disco.profiles import load_prices
from disco.profiles.price_findings import look_up
from disco.request import Request

__all__ = [
    "check_answer",
    "check_api",
    "check_continuation",
    "check_model",
    "check_price",
    "continuation_finding",
]

_TOKENS: Final = 16
_PROMPT_TOKENS: Final = 12  # of the question, with what a chat template adds
_PROBE_TOKENS: Final = 80  # of one request of the probe, both ways, about
_ASK_S: Final = 30.0
_PAY: Final = "Pay the account's bill, or wait"


def _client(facts: Facts) -> openai.AsyncOpenAI:
    # Its own reading of the environment is a client's: base_url, organisation, project, proxies.
    return PlainClient(api_key=facts.key, max_retries=0, reads_environment=True)


async def check_api(setup: Setup, facts: Facts) -> list[Finding] | Finding | None:
    """Ask for the list of models: whether an OpenAI API answers, and whether it takes the key."""
    where = address()
    if where is None or not facts.is_reached:
        return None
    async with _client(facts) as client:
        listed = await list_models(client)
        if listed.kind == "nothing":
            why, remedy = why_no_connection(listed.error)
            return does_not("server", f"{where.shown}: {why}.", _with_scheme(where, remedy))
        if not listed.is_api and listed.status != 407:
            better = await _other_path(client, where)
            if better is not None:
                return does_not(
                    "address",
                    f"{where.shown} answers with {_what_came(listed)}: the API begins at another path.",
                    sets(ADDRESS, better),
                )
        return await _judged(client, where, listed, setup, facts)


async def _judged(
    client: openai.AsyncOpenAI, where: Address, listed: Listed, setup: Setup, facts: Facts
) -> list[Finding] | Finding:
    said = f' It says: "{listed.said}"' if listed.said else ""
    status = listed.status
    if status in (401, 403) and listed.kind != "web page":
        facts.is_key_accepted = False
        if status == 401:  # the server's text is left out: it quotes the key, often in part
            return does_not(
                "key accepted",
                f"{where.shown} refuses the key (401).",
                f"Make a new key in the server's settings, then: {sets(KEY, '...')}; or correct {ADDRESS}, if the key "
                f"belongs to another server{_organisation()}",
            )
        return does_not(
            "key accepted",
            f"{where.shown} does not allow this key to list its models (403).{said}",
            "Check the key's project, its permissions, and whether the provider serves your country",
        )
    if status == 407:
        return does_not(
            "proxy",
            "The proxy wants a password (407).",
            sets("HTTPS_PROXY", "http://USER:PASSWORD@HOST:PORT"),
        )
    if status == 429:
        quota = "insufficient_quota" in listed.code
        why = "the account has no credit" if quota else "too many requests"
        facts.is_key_accepted = not quota
        return does_not(
            "server", f"{where.shown} refuses for now (429): {why}.{said}", "Pay the account's bill, or wait"
        )
    if listed.kind == "web page":
        return does_not(
            "server",
            f"{where.shown} answers with a web page, not with JSON: no OpenAI API is there.",
            f"Correct {ADDRESS}: it must end where the API begins, mostly with /v1",
        )
    if status is not None and status >= 500:
        return does_not(
            "server",
            f"{where.shown} has a fault of its own ({status}).{said}",
            "Try again later; look at its log",
        )
    if listed.kind != "models":
        return [
            unchecked(
                "server",
                f"{where.shown} answers, but lists no models ({_what_came(listed)}), so neither the key nor the name "
                "of the model can be checked for free.",
                command("doctor", "--ask"),
            )
        ]
    facts.models = listed.models
    found = [
        works("server", f"An OpenAI API answers at {where.shown} and lists {_models(len(listed.models))}.")
    ]
    without = await list_models(client, with_key=False)
    if without.status in (401, 403):
        facts.is_key_accepted = True
        found.append(works("key accepted", "The server takes the key."))
    elif not setup.ask:  # else the answer will show it
        found.append(
            unchecked(
                "key accepted",
                "The server lists its models to anyone, so only an answer would show whether it takes the key.",
                command("doctor", "--ask"),
            )
        )
    return found


def check_model(setup: Setup, facts: Facts) -> Finding | None:
    """Look for the model's name in the server's list."""
    if not facts.is_reached or facts.models is None:
        return None
    known = the_model(setup.model, facts.models)
    if known is not None:
        return works("model", f"The server has {known}.")
    if not facts.models:
        return does_not(
            "model", f"The server lists no models, so not {setup.model} either.", "Load a model there first"
        )
    near = nearest(setup.model, facts.models)
    some = "" if near.startswith("Known") and len(facts.models) > 20 else f" {near}"
    first = near.split("'")[1] if "'" in near else facts.models[0]
    return does_not(
        "model",
        f"The server has no model {setup.model!r}.{some}",
        f"{command('chat', '--model', first)}; in a program, model={first!r}",
    )


async def check_answer(setup: Setup, facts: Facts) -> Finding | None:
    """With `--ask`: send one short request and measure the time to first token. Else say what that would cost."""
    where = address()
    if where is None or not _may_ask(setup, facts):
        return None
    if not setup.ask:
        return unchecked(
            "answer",
            f"No question was sent. One, and the probe of the continuation, cost {_cost(setup.model, where.host)}.",
            command("doctor", "--ask"),
        )
    async with _client(facts) as client:
        endpoint = _endpoint(client)
        request = Request([{"role": "user", "content": "Say hello."}], model=setup.model, cap=_TOKENS)
        began_at, ttft_s = time.perf_counter(), None
        try:
            with anyio.fail_after(_ASK_S):
                async with endpoint.open(request) as attempt:
                    async for item in attempt:
                        if isinstance(item, list) and any(one.kind.value != "role" for one in item):
                            ttft_s = time.perf_counter() - began_at
                            break
        except EndpointFailure as failure:
            return _refused(setup, failure)
        except TimeoutError:
            return does_not(
                "answer",
                f"The server wrote nothing within {_ASK_S:.0f} s.",
                "Try again later, or another model",
            )
    facts.is_key_accepted = True
    if ttft_s is None:
        return does_not(
            "answer", f"{setup.model} answered without a word.", "Name another model with --model"
        )
    return works("answer", f"{setup.model} wrote its first word after {ttft_s:.2f} s.")


async def check_continuation(setup: Setup, facts: Facts) -> Finding | None:
    """Say how the server continues a half-written answer: as the state file knows, or, with `--ask`, by a probe."""
    if not _may_ask(setup, facts):
        return None
    async with _client(facts) as client:
        endpoint = _endpoint(client)
        verdict = _remembered(setup, endpoint)
        if verdict is None and setup.ask:
            verdict = await endpoint.probe(setup.model)
    if verdict is None or not verdict.conclusive:
        return unchecked(
            "continuation",
            "Whether the server can continue a half-written answer is not known yet; disco finds out when an answer "
            "needs it.",
            "" if setup.ask else command("doctor", "--ask"),
        )
    facts.continues = verdict.method != "none"
    return continuation_finding(verdict)


def continuation_finding(verdict: ProbeVerdict, subject: str = "continuation") -> Finding:
    """Return what a probe's verdict means for an answer that is to move to the server."""
    if verdict.method == "none":
        did = ", ".join(f"{method}: {outcome}" for method, outcome in verdict.outcomes.items())
        return works(
            subject,
            f"The server cannot continue a half-written answer ({did}). Answers move from it to this machine, but not "
            "to it; races and failover before the first word need no continuation.",
            "Servers that can are listed in docs/concepts/continuation.md",
        )
    return works(
        subject,
        f"The server continues a half-written answer ({verdict.method}): running answers can move to it.",
    )


def check_price(setup: Setup, facts: Facts) -> Finding | None:
    """Look for the price by which the server's answers are counted."""
    where = address()
    if where is None or not facts.is_reached or is_loopback(where.host):
        return None
    try:
        known = look_up(load_prices(), setup.model, where.host, datetime.datetime.now(tz=datetime.UTC).date())
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not("price", what, remedy or "Correct the file, or delete it")
    check = command("prices", "check", setup.model, "--base-url", where.shown)
    if known.found is None:
        return unchecked(
            "price", known.text, f"In a program, price=(USD per million tokens in, out); {check}"
        )
    price = known.found.price
    read, written = money(price.usd_per_mtok_in), money(price.usd_per_mtok_out)
    told = f"{read} in and {written} out per million tokens."
    return works("price", f"{known.text} {told}", "" if known.remedy is None else check)


def _may_ask(setup: Setup, facts: Facts) -> bool:
    """Return whether a question could be answered, by what is known. With `--ask` a missing name is tried, too."""
    lacks = facts.models is not None and the_model(setup.model, facts.models) is None
    return facts.is_reached and facts.is_key_accepted is not False and (setup.ask or not lacks)


def _endpoint(client: openai.AsyncOpenAI) -> OpenAIEndpoint:
    return OpenAIEndpoint(client=client, name="server", continuation=Continuation("auto"))


def _remembered(setup: Setup, endpoint: OpenAIEndpoint) -> ProbeVerdict | None:
    """Return the verdict in the state file; None where there is none. Later verdicts are kept there."""
    from disco.client.learnt.kept_verdicts import VERDICT, KeptVerdicts  # noqa: PLC0415 - as below
    from disco.state import Database, state_path  # noqa: PLC0415 - only where there is a server
    from disco.state.facts import read_facts  # noqa: PLC0415 - as above

    path = state_path(setup.state)
    if path is None or not path.exists():
        return None
    database = Database(path, warns=False)
    try:
        kept = KeptVerdicts(database)
        kept.restore(database.read(lambda connection: read_facts(connection, VERDICT), []), time.time())
        kept.fill(endpoint)
        return endpoint.verdicts.get((endpoint.base_url, setup.model))
    finally:
        database.close()


async def _other_path(client: openai.AsyncOpenAI, where: Address) -> str | None:
    """Return the address at which the API begins, if not where it was said to, but near; None where it is not found."""
    path = where.parts.path.rstrip("/")
    begins = path
    for end in ("/chat/completions", "/completions", "/responses", "/models", "/chat"):
        begins = begins.removesuffix(end)
    paths = [begins] if begins != path else []
    paths += [f"{begins}/v1"] if not begins.endswith("/v1") else []
    paths += ["/v1", "/api/v1", "/openai/v1"]
    for one in dict.fromkeys(paths):
        if one == path:
            continue
        there = where.with_path(one)
        if (await list_models(client, f"{there}/models")).is_api:
            return there
    return None


def _refused(setup: Setup, failure: EndpointFailure) -> Finding:
    error = failure.error
    said = quoted(_own_words(error), known_secrets())
    status = getattr(error, "status_code", None)
    where = f" ({status})" if status is not None else ""
    if failure.kind is FailureKind.ACCOUNT:
        if status == 401:  # the server's text is left out: it quotes the key, often in part
            return does_not(
                "key accepted",
                f"The server refuses the key{where}.",
                f"Make a new key, then: {sets(KEY, '...')}",
            )
        return does_not(
            "answer",
            f'The server refuses the key or its account{where}. It says: "{said}"',
            f"{_PAY}; or check the key's permissions",
        )
    if failure.kind is FailureKind.MODEL or status == 404:
        return does_not(
            "model", f"The server has no model {setup.model!r} (404).", "Name one that it has with --model"
        )
    if failure.kind is FailureKind.RATE_LIMIT:
        return does_not(
            "answer",
            f'The server refuses for now{where}. It says: "{said}"',
            _PAY,
        )
    if failure.kind is FailureKind.GARBAGE:
        return does_not("answer", "What the server answered is outside the protocol.", f"Correct {ADDRESS}")
    told = f' It says: "{said}"' if said else ""
    what = f"The question failed{where}: {failure.kind.value.replace('_', ' ')}.{told}"
    return does_not("answer", what, "Look at what the server says, and at its log")


def _own_words(error: Exception) -> object:
    """Return the server's message in an error, without what the SDK puts before it."""
    body = getattr(error, "body", None)
    return body.get("message") if isinstance(body, Mapping) else getattr(error, "message", "")


def _organisation() -> str:
    named = [name for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID") if os.environ.get(name)]
    return f"; or unset {' and '.join(named)}, which is sent with it" if named else ""


def _with_scheme(where: Address, remedy: str) -> str:
    if remedy.startswith("write http://"):
        return sets(ADDRESS, where.shown.replace("https://", "http://", 1))
    return remedy


def _what_came(listed: Listed) -> str:
    came = {
        "web page": "a web page",
        "document": "JSON of another kind",
        "other": "something that is no JSON",
    }
    return f"{came.get(listed.kind, 'a list')} ({listed.status})"


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _cost(model: str, host: str) -> str:
    requests = len(LADDER)
    reads, writes = _PROMPT_TOKENS + requests * _PROBE_TOKENS, _TOKENS + requests * 8
    try:
        found = load_prices().find(model, host)
    except ConfigurationError:  # told under "price"
        found = None
    tokens = f"about {reads} tokens to read and at most {writes} to write"
    if found is None:
        return f"{tokens}; the price of {model} is not known"
    return f"{tokens}, {money(found.price.usd(reads, writes))} at the price of {found.model} of {found.date}"
