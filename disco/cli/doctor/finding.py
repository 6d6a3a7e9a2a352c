"""What a check of `disco doctor` has found, and what the checks of one run know from each other."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from disco.client.endpoint_catalog.local_servers import is_address
from disco.client.endpoint_catalog.plugged import Plugin, as_plugin
from disco.endpoints.runtimes import Runtime

__all__ = [
    "Check",
    "Facts",
    "Finding",
    "Setup",
    "Verdict",
    "command",
    "does_not",
    "installs",
    "set_variables",
    "sets",
    "split_message",
    "typed",
    "unchecked",
    "works",
]

Verdict = Literal["works", "does not", "not checked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at, such as "memory" or "key"; docs/how-to/doctor.md lists them.
        verdict: whether it works.
        what: what was found, as a sentence. It may name paths and addresses, never a key or a text of the user's.
        remedy: what to type or to do; empty where there is nothing to do.
    """

    subject: str
    verdict: Verdict
    what: str
    remedy: str = ""


def works(subject: str, what: str, remedy: str = "") -> Finding:
    """Return that a subject works; the remedy is then something that would make it better."""
    return Finding(subject, "works", what, remedy)


def does_not(subject: str, what: str, remedy: str) -> Finding:
    """Return that a subject does not work."""
    return Finding(subject, "does not", what, remedy)


def unchecked(subject: str, what: str, remedy: str = "") -> Finding:
    """Return that a subject was not checked; `what` says why."""
    return Finding(subject, "not checked", what, remedy)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is examined.

    Attributes:
        local: as the client's `local`: a name, a path, `hf:owner/repo/file` or the address of a local server; None: no
            local model.
        preset: a preset's name or path.
        model: the server's model.
        runtime: as the client's `runtime`: what runs a local model that is named by a name or a file.
        state: the state file, "off", or None for the user's own.
        ask: whether the server may be asked short requests that cost money.
        within_s: limit for loading the local model and for its first tokens, seconds.
        port: of `disco serve`.
    """

    local: str | None
    preset: str
    model: str
    runtime: Runtime = "auto"
    state: str | None = None
    ask: bool = False
    within_s: float = 60.0
    port: int = 8642

    @property
    def plugin(self) -> Plugin | None:
        """The endpoint of an installed package that `local` names; None where it names anything else."""
        return as_plugin(self.local)

    @property
    def names_a_model(self) -> bool:
        """Whether `local` names a model that disco runs: neither a server's address nor a package's endpoint."""
        return self.local is not None and self.plugin is None and not is_address(self.local)

    @property
    def shown_local(self) -> str | None:
        """`local` as it may be shown: what stands behind the colon of a plug-in may be a key."""
        return self.local if self.plugin is None else f"{self.plugin.kind}:..."


@dataclass(slots=True)
class Facts:
    """What earlier checks of a run have found that later ones need. All fields are mutable; None: not known.

    Attributes:
        runtime_is_there: whether what runs the local model is installed, in a version that fits.
        model_file: the local model's file, once it was found to be whole.
        can_chat: whether the model's file has a chat template.
        model_fits: whether the local model fits into the free memory.
        served_port: the port of a running `disco serve` that has the local model.
        key: the server's key, without what does not belong to it. Not in repr.
        is_reached: whether a connection to the server could be made.
        models: the server's names of its models; None where it lists none.
        is_key_accepted: whether the server has accepted the key.
        continues: whether the server can continue a half-written answer.
        local_address: the first usable `local=` of a server that was found on this machine.
    """

    runtime_is_there: bool | None = None
    model_file: Path | None = None
    can_chat: bool | None = None
    model_fits: bool | None = None
    served_port: int | None = None
    key: str | None = None
    is_reached: bool = False
    models: tuple[str, ...] | None = None
    is_key_accepted: bool | None = None
    continues: bool | None = None
    local_address: str | None = None

    def __repr__(self) -> str:  # holds a key
        return "Facts(...)"


Found = Finding | list[Finding] | None


class Check(NamedTuple):
    """A check: what it is about, its limit in seconds, and the function."""

    subject: str
    limit_s: float
    look: Callable[[Setup, Facts], Found] | Callable[[Setup, Facts], Awaitable[Found]]


# Where an error's message passes from the cause to the remedy.
_TURN = re.compile(r"(?<=[.?!)]) (?=[A-Z\"'])|: (?=pip install)")


def split_message(error: Exception) -> tuple[str, str]:
    """Return the cause and the remedy that a message of disco's own names: its first sentence, and the others."""
    cause, *rest = _TURN.split(str(error), maxsplit=1)
    return cause if cause.endswith((".", "?")) else f"{cause}.", rest[0] if rest else ""


def sets(variable: str, value: str = "", *, like: str = "") -> str:
    """Return what to type so that an environment variable has this value, or that of the variable `like`."""
    if sys.platform == "win32":  # PowerShell
        return f"$env:{variable} = " + (f"$env:{like}" if like else f'"{value}"')
    return f"export {variable}=" + (f'"${like}"' if like else shlex.quote(value))


def installs(*requirements: str) -> str:
    """Return what to type to install packages into this Python."""
    return " ".join(
        ["pip install", *(f'"{one}"' if re.search(r"[\[<>,;]", one) else one for one in requirements)]
    )


def command(name: str, *arguments: str | None) -> str:
    """Return a command of disco's as it is typed; arguments that are None are left out."""
    return " ".join(["disco", name, *(typed(one) for one in arguments if one is not None)])


def typed(argument: str) -> str:
    """Return an argument as it is typed; the user's home becomes a `~` outside the quotes, which the shell expands."""
    home = f"{Path.home()}{os.sep}"
    if argument.startswith(home) and os.name == "posix":
        return f"~/{shlex.quote(argument.removeprefix(home))}"
    return shlex.quote(argument)


def set_variables(pattern: str) -> dict[str, str]:
    """Return the environment variables with a value whose names match. The values may be secrets."""
    return {
        name: value for name, value in os.environ.items() if value.strip() and re.fullmatch(pattern, name)
    }
