"""The parser of a command, which may have several forms, each with options of its own. It needs only argparse."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["CommandParser", "Form"]


class Form(NamedTuple):
    """One form of a command.

    Attributes:
        typed: the form as it is typed: `FILE`, `FILE --option` or `word`.
        add: adds its options, and the file.
        what: what it is for, a sentence.
    """

    typed: str
    add: Callable[[argparse.ArgumentParser], None]
    what: str


class CommandParser(argparse.ArgumentParser):
    """Parses a command. What the command does not know is an error beside its own usage, not that of `disco`."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `ArgumentParser`."""
        super().__init__(**settings)
        self._forms: Mapping[str, Form] = {}
        self._siblings: dict[str, CommandParser] = {}  # of a form: all forms as typed, itself included

    def add_forms(self, forms: Mapping[str, Form]) -> None:
        """Give the command several forms, which argparse sees as subcommands.

        Args:
            forms: by what tells them: a word in place of the file, an option anywhere, or "" for all else.
        """
        self._forms = forms
        subcommands = self.add_subparsers(required=True, metavar="FILE")
        siblings: dict[str, CommandParser] = {}
        for mark, (typed, add, what) in forms.items():
            # A word is no argument of its form. An option and the file are, and so in its usage anyway.
            prog = self.prog if mark in ("", *self._options()) else f"{self.prog} {mark}"
            form = subcommands.add_parser(
                typed, prog=prog, help=what[0].lower() + what[1:], description=f"{what}."
            )
            form._siblings = siblings  # noqa: SLF001 - of this class
            add(form)
            siblings[f"{self.prog} {typed}"] = form
        self.usage = "\n       ".join(f"{each} ..." for each in siblings)
        self.epilog = f"Each form has its own options: {self.prog} {next(iter(forms.values())).typed} --help"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as `ArgumentParser` does. What is left over is an error already here."""
        if self._forms and args and args[0] not in ("-h", "--help"):
            args = self._with_form(args)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            unknown_to_all = f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}"
            self.error(self._of_another_form(unknown[0]) or unknown_to_all)
        return known, unknown

    def _meant(self, argument: str) -> str:
        """Return a question that suggests the option nearest to a mistyped one; empty if none is near."""
        parsers = self._siblings.values() or [self]
        options = [option for one in parsers for option in one._option_string_actions]  # noqa: SLF001 - of this class
        near = difflib.get_close_matches(argument.partition("=")[0], options, n=1, cutoff=0.75)
        return f". Did you mean {near[0]}?" if near else ""

    def _options(self) -> list[str]:
        return [mark for mark in self._forms if mark.startswith("-")]

    def _with_form(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments behind the name of the form that they ask for."""
        word, *rest = arguments
        words = self._forms.keys() - {"", *self._options()}
        if word in words:
            return [self._forms[word].typed, *rest]
        if word.startswith("-") and (late := next((each for each in rest if each in words), None)):
            rest.remove(late)
            self.error(f"`{late}` stands before all options: {self.prog} {late} {' '.join([word, *rest])}")
        given = {argument.partition("=")[0] for argument in arguments}
        mark = next((option for option in self._options() if option in given), "")
        return [self._forms[mark].typed, *arguments]

    def _of_another_form(self, argument: str) -> str:
        """Return where an option belongs that this form does not have; empty if no form has it."""
        option = argument.partition("=")[0]
        mine = next((typed for typed, form in self._siblings.items() if form is self), "")
        others = [
            f"`{typed}`"
            for typed, form in self._siblings.items()
            if option in re.findall(r"--[\w-]+", form.format_usage())
        ]
        return f"{option} does not apply to `{mine}`; it is for {' and '.join(others)}" if others else ""
