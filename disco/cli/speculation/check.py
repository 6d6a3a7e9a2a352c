"""`disco speculate check`: what a server can verify, what drafting costs here, and whether it pays."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import openai

from disco._resources import resource_text
from disco.cli.console import Screen
from disco.cli.model_argument import open_model
from disco.cli.serving.serve_setup import KEY_VARIABLE, callers_key
from disco.cli.shared_options import (
    LOCAL_MODEL,
    WHOLE_MODEL,
    add_json,
    add_key_file,
    add_prompts,
    add_threads,
)
from disco.cli.speculation.check_report import MODES, WINDOWS, Pace, Result, best, remedies, table
from disco.cli.speculation.pair_measurement import Drafts, PairMeasurement, Proof, Written
from disco.cli.speculation.prefixes_probe import Prefixes, probe_prefixes
from disco.endpoints.drafter import Drafter, NgramDrafter
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.endpoints.speculative.verifier_client import verifier_facts
from disco.errors import ConfigurationError, EndpointFailure
from disco.record.text_files import text_of
from disco.speculate.messages import VerifierFacts

__all__ = ["add", "base_url_of", "read_prompts", "run_check"]

_WARM: Final = 0.8
"""The temperature of the answers that prove the rounds besides those at 0."""
_LEAST_TOKENS: Final = 8
_TOKENS: Final = 48
_HERE: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_OTHER_RUNGS: Final = (
    "positions (SGLang) and prediction (hosted APIs) are not probed: no server was at hand to prove a probe with. "
    "docs/concepts/speculate.md has their requests."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco speculate`."""
    subcommands = parser.add_subparsers(required=True)
    check = subcommands.add_parser(
        "check",
        help="prove what a server can verify, measure, and say whether drafting pays",
        description="Proves that the server's answers do not depend on drafts, measures drafter, network and server, "
        "predicts the time per token for each window and mode, and measures the best one from end to end. Exit status "
        "0 whether it pays or not; 1 where the server cannot verify; 2 for a mistake, such as a wrong key. A server "
        f"that asks for a key gets the one in {KEY_VARIABLE} or --key-file.",
    )
    check.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8642")
    check.add_argument(
        "--local",
        default=LOCAL_MODEL,
        metavar="MODEL",
        help=f"the model that drafts: {WHOLE_MODEL} (default: %(default)s)",
    )
    add_threads(check)
    check.add_argument(
        "--drafter",
        choices=("local", "ngram"),
        default="local",
        help="what drafts: the local model, or copies from prompt and answer (default: local)",
    )
    add_key_file(check, KEY_VARIABLE)
    add_prompts(check, tokens=_TOKENS)
    check.add_argument(
        "--model", default="", help="name of the server's model in requests (default: its own)"
    )
    add_json(check)
    check.set_defaults(run=run_check)


async def run_check(screen: Screen, arguments: argparse.Namespace) -> int:
    """Check the server; return the exit status.

    Raises:
        ConfigurationError: an option is not usable, the server's key is wrong, or its vocabulary is another one.
        DiscoError: the server or the drafter failed.
    """
    if arguments.tokens < _LEAST_TOKENS:
        raise ConfigurationError(f"--tokens must be at least {_LEAST_TOKENS}, not {arguments.tokens}")
    url, prompts, key = (
        base_url_of(arguments.url),
        read_prompts(arguments.prompts),
        callers_key(arguments.key_file),
    )
    if arguments.json:
        screen = Screen(sys.stderr)
    async with PlainClient(api_key=key or "none", base_url=url, max_retries=0) as client:
        facts = await _facts(client)
        if facts is None:
            found = await probe_prefixes(client, prompts[0], arguments.tokens)
            return _of_another_make(screen, found, with_json=arguments.json)
        screen.line(
            f"A verify server: model {facts.model}, {facts.slots} slots of {facts.context_tokens} tokens, "
            f"{facts.busy} of them busy."
        )
        try:
            async with _drafter(screen, arguments, facts) as drafter:
                measurement = PairMeasurement(
                    client, arguments.model or facts.model, drafter, arguments.tokens
                )
                result = await _measure(screen, measurement, facts, drafter, prompts)
        except EndpointFailure as failure:
            raise failure.error from failure
    if result is None:
        return 1
    _show(screen, result, client.base_url.host in _HERE)
    if arguments.json:
        print(json.dumps(result.to_json(), indent=2))
    return 0


def base_url_of(text: str) -> str:
    """Return the base URL of a server's API from what a user gave: with or without its `/v1`.

    Raises:
        ConfigurationError: it is no address, or holds a password.
    """
    try:
        url = httpx2.URL(text if "://" in text else f"http://{text}")
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("URL must be the address of a server, such as http://127.0.0.1:8642")
    if url.userinfo or url.query:
        raise ConfigurationError(
            f"URL must hold no password and no query. Put the server's key into {KEY_VARIABLE} or --key-file."
        )
    path = url.path.rstrip("/")
    return str(url.copy_with(path=path or "/v1"))


def read_prompts(file: str | None) -> list[str]:
    """Return the sample prompts: the lines of a file, or the shipped ones.

    Raises:
        ConfigurationError: the file cannot be read, or holds none.
    """
    text = resource_text("disco.cli.speculation", "sample_prompts.txt") if file is None else text_of(file)
    prompts = [line.strip() for line in text.split("\n") if line.strip()]
    if not prompts:
        raise ConfigurationError(f"--prompts {file} holds no prompt. Write one on each line.")
    return prompts


async def _facts(client: openai.AsyncOpenAI) -> VerifierFacts | None:
    """Return what the server says of itself; None where it is no verify server.

    Raises:
        ConfigurationError: it cannot be reached, or refuses the key.
    """
    shown = client.base_url.copy_with(path="")
    try:
        return await verifier_facts(client)
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        raise ConfigurationError(
            f"The server at {shown} refuses the key (status {error.status_code}). Put its key into {KEY_VARIABLE} or "
            "into a file named by --key-file."
        ) from None
    except openai.APIStatusError as error:
        raise ConfigurationError(
            f"The server at {shown} fails: it answers with status {error.status_code}."
        ) from None
    except (openai.APIConnectionError, httpx2.HTTPError, OSError):
        raise ConfigurationError(
            f"No server answers at {shown}. Start one with `disco serve --verify MODEL`, or correct the URL."
        ) from None


@asynccontextmanager
async def _drafter(
    screen: Screen, arguments: argparse.Namespace, facts: VerifierFacts
) -> AsyncIterator[Drafter]:
    """Yield the drafter, loaded.

    Raises:
        ConfigurationError: its tokens mean something else to the server.
    """
    if arguments.drafter == "ngram":
        yield NgramDrafter()
        return
    endpoint = open_model(arguments.local, threads=arguments.threads)
    try:
        with screen.step(f"Loading {endpoint.name}, which drafts"):
            await endpoint.warm_up()
        drafter = endpoint.drafter()
        if drafter is None:
            raise ConfigurationError(f"--local {arguments.local} cannot draft: name a model, not a server")
        if drafter.vocabulary != facts.vocabulary:
            raise ConfigurationError(
                f"{endpoint.name} and the server's model {facts.model} have other vocabularies, so drafted tokens mean "
                "something else to the server. Draft with a smaller model of the same family, or --drafter ngram."
            )
        yield drafter
    finally:
        await endpoint.aclose()


async def _measure(
    screen: Screen,
    measurement: PairMeasurement,
    facts: VerifierFacts,
    drafter: Drafter,
    prompts: Sequence[str],
) -> Result | None:
    """Measure everything; None where the rounds do not give what the server alone gives."""
    alone: list[Written] = []
    with screen.bar(f"{len(prompts) + 1} answers of the server alone") as so_far:
        warm = await measurement.alone(prompts[0], _WARM)
        for number, prompt in enumerate(prompts, 1):
            alone.append(await measurement.alone(prompt))
            so_far(number, len(prompts))
    proof = Proof()
    windows = [window for window in WINDOWS if window > 0]
    with screen.bar("The same answers in windows of drafted tokens, some wrong on purpose") as so_far:
        for number, window in enumerate(windows):
            await measurement.prove(alone[number % len(alone)], window, proof)
            await measurement.prove(warm, window, proof)
            so_far(number + 1, len(windows))
    equal = proof.answers - proof.differing
    screen.line(
        f"rounds: {equal} of {proof.answers} answers, at temperatures 0 and {_WARM}, equal those of the server alone, "
        f"token for token, over {proof.windows} windows."
    )
    if proof.differing:
        screen.line(
            "Where they differ, the server's arithmetic depends on how many tokens it computes at once: two tokens "
            "were almost equally probable. Both are the model's own."
        )
    if equal <= proof.answers // 2:
        screen.line("That is too few: this server does not verify reliably.", style="bold red")
        return None
    drafts = Drafts()
    with screen.bar(f"The same answers, drafted by {drafter.name}") as so_far:
        for number, written in enumerate(alone, 1):
            await measurement.draft(written, drafts)
            so_far(number, len(alone))
    costs = measurement.costs(alone, proof, drafts)
    choice, _ = best(costs.seen())
    total = {False: Pace(), True: Pace()}
    alike = waited = 0
    async with measurement.pair(choice) as pair:
        with screen.bar(f"Answers from end to end: the server alone, and {choice}, by turns") as so_far:
            for number, prompt in enumerate(prompts, 1):
                texts = set()
                for drafted in (False, True):
                    text, pace, alone_tokens = await measurement.answer(pair, prompt, drafts=drafted)
                    total[drafted] += pace
                    texts.add(text)
                    waited += alone_tokens * drafted
                alike += len(texts) == 1
                so_far(number, len(prompts))
    return Result(
        model=facts.model,
        drafter=drafter.name,
        answers=proof.answers,
        windows=proof.windows,
        differing=proof.differing,
        costs=costs,
        choice=choice,
        alone=total[False],
        drafted=total[True],
        waited=waited,
        alike=alike,
        asked=len(prompts),
    )


def _show(screen: Screen, result: Result, here: bool) -> None:  # noqa: FBT001 - one caller, right above
    costs, seen = result.costs, result.costs.seen()
    batch = ", ".join(f"{rows}: {1000 * s:.1f}" for rows, s in costs.verify_s)
    screen.line()
    screen.line(f"draft        {1000 * costs.draft_s:.1f} ms a token ({result.drafter})")
    compared = f"{costs.accepted} of {costs.compared}; none counts behind a wrong one"
    screen.line(f"right        {seen.acceptance:.0%} of drafted tokens ({compared})")
    screen.line(
        f"round trip   {1000 * costs.round_trip_s:.1f} ms, and {1000 * costs.queue_s:.1f} ms of waiting there"
    )
    screen.line(f"server       ms for a batch of so many tokens: {batch}")
    if here:
        screen.line("The server runs on this machine, so both models share its cores.", style="dim")
    screen.line()
    screen.table(
        "Predicted ms a token",
        ("window", *MODES.values()),
        table(seen),
    )
    screen.line("window: drafted tokens of a round; 0 is the server alone", style="dim")
    screen.line(
        f"Measured: the server alone {1000 * result.alone.token_s:.1f} ms a token; {result.choice} "
        f"{1000 * result.drafted.token_s:.1f} ms; {result.alike} of {result.asked} texts are the same."
    )
    worth_it, words = result.verdict
    screen.line(words, style="bold")
    if not worth_it:
        screen.line(result.disappointment or remedies(seen))


def _of_another_make(screen: Screen, found: Prefixes | None, *, with_json: bool) -> int:
    """Say what a server that is no verify server could do; return the exit status."""
    screen.line(
        "This is no verify server: it has no /v1/disco/verifier. `disco serve --verify MODEL` starts one."
    )
    if found is None:
        screen.line(
            "prefixes: no; it does not take prompts of token ids and return the token that it chooses for each."
        )
    else:
        screen.line(found.in_words())
        screen.line(
            "disco does not use this rung; docs/concepts/speculate.md says why."
            if found.pays
            else "So it gains nothing even at best, and disco does not use it."
        )
    screen.line(_OTHER_RUNGS)
    if with_json:
        prefixes = (
            None
            if found is None
            else {
                "exact": found.differing == 0,
                "tokens": found.tokens,
                "window": found.window,
                "rows": found.rows,
                "token_s": found.token_s,
                "alone_token_s": found.plain_s,
            }
        )
        print(json.dumps({"rung": None, "prefixes": prefixes}, indent=2))
    return 1
