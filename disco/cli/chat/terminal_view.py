"""A chat on a terminal: questions are edited with prompt_toolkit, and answers are written above a status line.

What is complete of an answer is printed once and scrolls away as any output does. Only its last line and the status
line are drawn again and again, below it. So what the terminal has scrolled is never touched, and can be selected and
searched there as usual.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.output import Output
from prompt_toolkit.renderer import print_formatted_text
from prompt_toolkit.styles import Style

from disco.cli.chat.commands import completions
from disco.cli.chat.terminal_output import terminal_output
from disco.cli.console import Screen
from disco.cli.word_wrap import Line, WordWrap, printable, wrapped

__all__ = ["TerminalView"]

PROMPT = "you: "
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse dim", "prompt": "bold"})
_REFRESH_S = 0.25  # of the seconds in the status line
_END = "Ctrl-C again, or Ctrl-D, ends the chat"


class TerminalView:
    """See `View`.

    Args:
        screen: gives the colours of endpoints, and prints between questions and answers.
        status: returns the status line for a window of so many columns.
        presets: the presets by name, with a summary of each, for completion.
        history: the earlier questions.
    """

    # Mutable: what was typed while an answer was written, whether Ctrl-C was the last key, whether an answer is shown,
    # notes that wait.
    is_live = True

    def __init__(
        self, screen: Screen, status: Callable[[int], str], presets: Mapping[str, str], history: History
    ) -> None:
        self._screen = screen
        self._status = status
        self._input: Input = create_input()
        self._output: Output = terminal_output()
        self._typed = ""
        self._is_ending = False
        self._is_answering = False
        self._notes: list[str] = []
        self._session: PromptSession[str] = PromptSession(
            [("class:prompt", PROMPT)],
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=history,
            completer=_CommandCompleter(presets),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            bottom_toolbar=self._toolbar,
            key_bindings=self._keys(),
            style=_STYLE,
            refresh_interval=_REFRESH_S,
            enable_suspend=True,
            input=self._input,
            output=self._output,
        )
        self._session.default_buffer.on_text_changed += lambda _: self._go_on()

    def open(self) -> AbstractContextManager[None]:
        """See `View.open`. Between a question and its answer, too, no key is echoed, and Ctrl-C is a key."""
        return self._input.raw_mode()

    async def question(self) -> str:
        """See `View.question`."""
        typed, self._typed, self._is_ending = self._typed, "", False
        self._screen.line()
        return await self._session.prompt_async(default=typed)

    @asynccontextmanager
    async def answering(self, on_stop: Callable[[], None]) -> AsyncIterator[_AnswerOnTerminal]:
        """See `View.answering`. What the user types meanwhile becomes the beginning of the next question."""
        shown = _AnswerOnTerminal(self._input, self._output, self._screen.colour, self._status, on_stop)
        async with anyio.create_task_group() as group:
            self._is_answering = True
            await group.start(shown.run)
            try:
                yield shown
            finally:
                shown.end()
        self._is_answering = False  # only now is nothing drawn any more
        shown.print_rest()
        self._print_notes()
        self._typed = shown.typed.rstrip("\n")

    def note(self, text: str) -> None:
        """See `View.note`."""
        self._notes.append(text)
        if self._session.app.is_running:
            self._session.app.create_background_task(self._interrupt())
        elif not self._is_answering:  # else it waits until the answer is over
            self._print_notes()

    async def _interrupt(self) -> None:
        async with in_terminal():
            self._print_notes()

    def _print_notes(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self._screen.line(note, style="yellow")

    def _toolbar(self) -> StyleAndTextTuples:
        columns = self._output.get_size().columns - 1
        return [("", _END if self._is_ending else self._status(columns))]

    def _go_on(self) -> None:
        self._is_ending = False

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(DEFAULT_BUFFER) & ~is_searching

        @keys.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.char_before_cursor == "\\":
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        @keys.add("c-j", filter=typing)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c", filter=typing)
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            if self._is_ending:
                event.app.exit(exception=EOFError)
                return
            event.current_buffer.reset()
            self._is_ending = True

        return keys


class _AnswerOnTerminal:
    """An answer while it is written, with the status line below it; see `AnswerView`. Mutable: the text, `typed`."""

    def __init__(
        self,
        keyboard: Input,
        output: Output,
        colour: Callable[[str], str],
        status: Callable[[int], str],
        on_stop: Callable[[], None],
    ) -> None:
        self._output = output
        self._colour = colour
        self._status = status
        self._wrap = WordWrap()
        self._complete: list[Line] = []  # not printed yet
        self.typed = ""
        # The cursor stands, hidden, where the drawing begins. So it can be erased, even where the terminal has wrapped
        # its lines anew because the window became narrower.
        control = FormattedTextControl(self._last_line, focusable=True, show_cursor=False)
        text = Window(control, wrap_lines=True, dont_extend_height=True)
        typed = Window(FormattedTextControl(self._typed_line), wrap_lines=True, dont_extend_height=True)
        bar = Window(FormattedTextControl(self._bar), height=1, style="class:bottom-toolbar")
        rows = [
            ConditionalContainer(text, Condition(lambda: bool(self._wrap.current.text))),
            ConditionalContainer(typed, Condition(lambda: bool(self.typed))),
            bar,
        ]
        self._app: Application[None] = Application(
            Layout(HSplit(rows), focused_element=text),
            key_bindings=self._keys(on_stop),
            style=_STYLE,
            erase_when_done=True,
            refresh_interval=_REFRESH_S,
            input=keyboard,
            output=output,
        )
        self._app.before_render += self._print_above

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Draw until `end` is called."""
        await self._app.run_async(pre_run=task_status.started)

    def end(self) -> None:
        """Erase the last line and the status line."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def print_rest(self) -> None:
        """Print what is left once nothing is drawn any more."""
        last = [self._wrap.current] if self._wrap.current.text else []
        self._print([*self._complete, *last])

    def write(self, text: str, endpoint: str) -> None:
        """See `AnswerView.write`."""
        self._complete += self._wrap.add(printable(text), endpoint, self._columns)
        self._app.invalidate()

    def remark(self, text: str) -> None:
        """See `AnswerView.remark`."""
        last = [self._wrap.current] if self._wrap.current.text else []
        self._complete += [*last, Line(((wrapped(text, self._columns), ""),))]
        self._wrap = WordWrap()
        self._app.invalidate()

    def _print_above(self, _: Application[None]) -> None:
        """Print the complete lines, before what stands below them is drawn again."""
        self._complete += self._wrap.add("", "", self._columns)  # the window may have become narrower
        if self._complete:
            lines, self._complete = self._complete, []
            self._app.renderer.erase()
            self._print(lines)

    @property
    def _columns(self) -> int:
        return (
            self._output.get_size().columns - 1
        )  # in the last one, terminals differ in where the cursor stands

    def _print(self, lines: Iterable[Line]) -> None:
        for line in lines:
            pieces = self._styled(line.visible(self._columns))
            print_formatted_text(self._output, [*pieces, ("", "\n")], _STYLE)

    def _styled(self, pieces: Iterable[tuple[str, str]]) -> StyleAndTextTuples:
        return [(f"ansi{self._colour(mark)}" if mark else "dim", text) for text, mark in pieces]

    def _last_line(self) -> StyleAndTextTuples:
        """Return the line that is being written; of a long line of code, the end that fits into the window."""
        size = self._output.get_size()
        line = self._wrap.current
        pieces, surplus = line.visible(self._columns), len(line.text) - size.columns * max(1, size.rows - 3)
        if surplus > 0:
            text = line.text[surplus:]
            pieces = ((text, pieces[-1][1]),)
        return self._styled(pieces)

    def _typed_line(self) -> StyleAndTextTuples:
        return [("class:prompt", PROMPT), ("", self.typed)]

    def _bar(self) -> StyleAndTextTuples:
        return [("", self._status(self._columns))]

    def _keys(self, on_stop: Callable[[], None]) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(_: KeyPressEvent) -> None:
            on_stop()

        @keys.add(Keys.Any)
        def _(event: KeyPressEvent) -> None:
            self.typed += event.data if event.data.isprintable() else ""

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self.typed += printable(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        @keys.add("enter")
        @keys.add("c-j")
        def _(_: KeyPressEvent) -> None:
            self.typed += "\n" * bool(self.typed)

        @keys.add("backspace")
        def _(_: KeyPressEvent) -> None:
            self.typed = self.typed[:-1]

        return keys


class _CommandCompleter(Completer):
    def __init__(self, presets: Mapping[str, str]) -> None:
        self._presets = presets

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - the base class's
    ) -> Iterable[Completion]:
        for found in completions(document.text_before_cursor, self._presets):
            yield Completion(found.text, -found.chars, display_meta=found.summary)
