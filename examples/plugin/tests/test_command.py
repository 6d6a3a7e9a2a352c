"""The endpoint keeps disco's contract, and says what is wrong with a command."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from disco_plugin_example.command import CommandEndpoint, command, command_here, prompt_of

from disco.errors import EndpointFailure, FailureKind
from disco.request import Request
from disco.testing import CHECKS, Check, Subject

PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).parent / "program.py")]
# The answers do not depend on a cache. A program has no context that disco knows of.
SUBJECT = Subject(exact=True, limits=frozenset({"no context"}))


T = TypeVar("T")


def with_endpoint(use: Callable[[CommandEndpoint], Awaitable[T]], *arguments: str) -> T:
    async def main() -> T:
        endpoint = CommandEndpoint([*PROGRAM, *arguments], name="command")
        try:
            with anyio.fail_after(60):
                return await use(endpoint)
        finally:
            await endpoint.aclose()

    return anyio.run(main)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_is_kept(check: Check) -> None:
    with_endpoint(lambda endpoint: check(SUBJECT, endpoint))


@pytest.mark.parametrize(
    ("arguments", "params", "kind", "said"),
    [
        (["fail"], {}, FailureKind.CRASHED, "ended with the status 3"),
        (["silent"], {}, FailureKind.INCOMPLETE, "wrote nothing"),
        ([], {"stop": ["x"]}, FailureKind.UNSERVED, "Leave `stop` out"),
    ],
)
def test_a_program_that_fails_is_a_failure_of_its_kind(
    arguments: list[str], params: dict[str, Any], kind: FailureKind, said: str
) -> None:
    async def ask(endpoint: CommandEndpoint) -> EndpointFailure:
        async with endpoint.open(Request([{"role": "user", "content": "secret"}], "m", params)) as attempt:
            with pytest.raises(EndpointFailure) as failure:
                async for _ in attempt:
                    pass
        return failure.value

    failure = with_endpoint(ask, *arguments)
    assert failure.kind is kind
    assert said in str(failure.error)
    assert "secret" not in str(failure.error)


def test_only_a_command_that_the_user_vouches_for_gets_prompts_that_stay_here() -> None:
    argument = f'"{sys.executable}" -m this --key "a b"'
    anywhere, here = command(argument, name="c"), command_here(argument, name="c")
    assert (anywhere.reach, anywhere.place) == ("any", "server")
    assert (here.reach, here.place) == ("device", "device")
    with pytest.raises(ValueError, match="no program 'no-such-program'") as error:
        command("no-such-program --key secret", name="c")
    assert "secret" not in str(error.value)


def test_a_conversation_becomes_one_text() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": [{"type": "text", "text": "Why?"}]})
    assert prompt_of(Request(messages[1:], "m")) == "Why?"
    assert prompt_of(Request(messages, "m")) == "System: Be brief.\n\nUser: Why?\n\nAssistant:"
