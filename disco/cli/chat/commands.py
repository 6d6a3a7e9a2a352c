"""The commands of a chat, such as `/preset cheap`: their names, how a line is read, and how one is completed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from disco.errors import nearest

__all__ = ["COMMANDS", "KEYS", "Command", "Completed", "completions", "parse", "unknown"]

_COMMAND = re.compile(r"/([A-Za-z]*)(?:[ \t]+(\S.*))?")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the chat.

    Attributes:
        name: what is typed, without the slash.
        summary: what it does.
        argument: the name of its argument, which may be left out; empty: it has none.
    """

    name: str
    summary: str
    argument: str = ""

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name}" + (f" [{self.argument}]" if self.argument else "")


COMMANDS = (
    Command("preset", "choose another preset for the next questions; alone: list them", "NAME"),
    Command("local", "keep the next questions on this machine, or no longer"),
    Command("why", "how the last answer was made: its time line"),
    Command("retry", "ask the last question again, in place of its answer"),
    Command("clear", "begin a new conversation"),
    Command("help", "this list"),
    Command("quit", "end the chat"),
)

KEYS = (
    ("Enter", "send the question"),
    ("Alt-Enter, Ctrl-J, or \\ at the end", "a new line in the question"),
    ("Up, Down, Ctrl-R", "earlier questions"),
    ("Tab", "complete a command"),
    ("Ctrl-C", "stop the answer; clear the line; twice: end the chat"),
    ("Ctrl-D", "end the chat"),
)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a typed text may be completed to.

    Attributes:
        text: replaces the last `chars` characters.
        chars: how many characters of the typed text it replaces.
        summary: what it is.
    """

    text: str
    chars: int
    summary: str


def parse(line: str) -> tuple[str, str] | None:
    """Return the name and the argument of a command, "" for none; None: the line is a question.

    The beginning of a name stands for it if no other command begins so. A question may begin with a slash, as a path
    does, if that is not followed by a single word of letters.
    """
    found = _COMMAND.fullmatch(line.rstrip())
    if found is None:
        return None
    typed = found[1].lower() or "help"
    meant = [command.name for command in COMMANDS if command.name.startswith(typed)]
    return meant[0] if len(meant) == 1 else typed, found[2] or ""


def unknown(name: str) -> str:
    """Return what to say of a command that does not exist."""
    hint = nearest(f"/{name}", (f"/{command.name}" for command in COMMANDS)).replace("'", "")
    return f"There is no command /{name}. {hint} A question that begins with a slash needs a space before it."


def completions(typed: str, presets: Mapping[str, str]) -> Iterator[Completed]:
    """Yield what a line may be completed to.

    Args:
        typed: the text before the cursor.
        presets: the presets by name, with a summary of each.
    """
    name, space, argument = typed.partition(" ")
    if not typed.startswith("/") or "\n" in typed:
        return
    if not space:
        for command in COMMANDS:
            if f"/{command.name}".startswith(name.lower()):
                yield Completed(f"/{command.name}", len(typed), command.summary)
    elif name.lower() == "/preset":
        for preset, summary in presets.items():
            if preset.startswith(argument.lstrip()):
                yield Completed(preset, len(argument.lstrip()), summary)
