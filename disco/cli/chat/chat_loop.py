"""The chat itself: questions, answers and commands, wherever they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from openai import OpenAIError

from disco.amounts import spent
from disco.cli.chat.commands import COMMANDS, KEYS, parse, unknown
from disco.cli.chat.conversation import Conversation
from disco.cli.chat.error_lines import error_line
from disco.cli.chat.route_book import RouteBook
from disco.cli.chat.status_line import Status, budgets_left, status_line
from disco.cli.chat.view import AnswerView, View
from disco.cli.console import Screen
from disco.client import AsyncDisco
from disco.client.chat.revised_text import RevisedText
from disco.client.chat.stream_types import DiscoStream
from disco.dispatch import load_preset
from disco.errors import ConfigurationError
from disco.record import timeline_lines
from disco.session.records.route_record import RouteRecord

__all__ = ["Chat", "ChatSettings"]


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a chat is opened with.

    Attributes:
        local: the local model, as the user named it.
        preset: the name of the client's preset.
        model: the server's model.
        has_server: whether there is a server at all.
        max_tokens: the most tokens of an answer; None: no limit of the chat's own.
        presets: the shipped presets by name, with a summary of each.
    """

    local: str
    preset: str
    model: str
    has_server: bool
    max_tokens: int | None
    presets: Mapping[str, str]


class Chat:
    """One chat. Mutable: the view, which is set once; the conversation; the choices; what is going on.

    Attributes:
        settings: what it was opened with.
        view: where it is shown.
    """

    view: View

    def __init__(self, screen: Screen, client: AsyncDisco, settings: ChatSettings, book: RouteBook) -> None:
        self.settings = settings
        self._screen = screen
        self._client = client
        self._book = book
        # ---
        self._conversation = Conversation()
        self._preset: str | None = None  # chosen in the chat: a name or a file
        self._preset_name = settings.preset
        self._local_only = False
        self._loading_from: float | None = None
        self._asked_at: float | None = None
        self._stream: DiscoStream | None = None
        self._before: RouteRecord | None = None  # the record of the answer before
        self._has_failed = False  # whether a question got no whole answer

    async def run(self) -> int:
        """Read questions and commands until the user ends the chat; return the exit status.

        Of questions through a pipe it is 1 where one of them got no whole answer, so that a script can tell.
        """
        if not self.settings.has_server:
            self._say("OPENAI_API_KEY is not set: every answer comes from this machine.")
        self._loading_from = monotonic()
        self._book.budgets = budgets_left(self._client.router.budgets_left())
        if not self.view.is_live:
            with self._screen.step(f"Loading {self.settings.local}"):
                await self._load()
            await self._turns()
            return int(self._has_failed)
        self._screen.legend(["device", "server"] if self.settings.has_server else ["device"])
        self._say("/help shows the commands and keys.")
        async with anyio.create_task_group() as group:
            group.start_soon(self._load)
            await self._turns()
            group.cancel_scope.cancel()
        return 0

    def status_line(self, columns: int) -> str:
        """Return the status line for a window of so many columns."""
        progress = None if self._stream is None else self._stream.progress
        since = self._loading_from if self._asked_at is None else self._asked_at
        is_entered = (
            self._book.last is not self._before
        )  # the running answer is over, and its bill is in the book
        bill_usd, energy_j = self._book.bill_usd, self._book.device_energy_j
        if progress is not None and not is_entered:
            bill_usd += progress.bill_usd or 0.0
            energy_j += progress.device_energy_j or 0.0
        status = Status(
            preset=self._preset_name,
            local_only=self._local_only,
            bill_usd=bill_usd,
            device_energy_j=energy_j,
            budgets=self._book.budgets,
            loading=None if self._loading_from is None else self.settings.local,
            waited_s=None if since is None else monotonic() - since,
            answering=self._asked_at is not None,
            progress=progress,
        )
        return status_line(status, columns)

    async def _load(self) -> None:
        """Load the model. Questions may be asked meanwhile: the first answer waits for it, or the server gives it."""
        try:
            await self._client.warm_up()
        except OpenAIError as error:
            self.view.note(self._in_words(error))
        finally:
            self._loading_from = None

    async def _turns(self) -> None:
        """Read questions and commands, and carry them out, until the user ends the chat."""
        while True:
            try:
                line = await self.view.question()
            except EOFError:
                return
            command = parse(line)
            if command is None:
                if line.strip():
                    await self._ask(line.strip())
            elif command[0] == "quit":
                return
            else:
                await self._obey(*command)

    # ------------------------------------------------------------------ commands

    async def _obey(self, name: str, argument: str) -> None:
        if name == "preset":
            self._choose(argument)
        elif name == "local":
            self._toggle_local()
        elif name == "why":
            self._explain()
        elif name == "retry":
            question = self._conversation.take_back()
            if question is None:
                self._say("Nothing was asked yet.")
            else:
                await self._ask(question)
        elif name == "clear":
            self._conversation.clear()
            self._say("A new conversation.")
        elif name == "help":
            rows = [*((command.usage, command.summary) for command in COMMANDS), *KEYS]
            self._screen.table("", ["type", "for"], rows)
        else:
            self._say(unknown(name))

    def _choose(self, given: str) -> None:
        """Choose the preset of the next questions; without a name, list the presets."""
        if not given:
            rows = [
                ("→ " * (name == self._preset_name) + name, summary)
                for name, summary in self.settings.presets.items()
            ]
            self._screen.table("", ["preset", "what it does"], rows)
            return
        try:
            preset = load_preset(str(Path(given).expanduser()) if given.endswith(".toml") else given)
        except ConfigurationError as error:
            self._say(str(error), style="red")
            return
        self._preset, self._preset_name = given, preset.name
        summary = f": {preset.summary}" if preset.summary else "."
        self._say(f"The next questions are answered under {preset.name}{summary}")

    def _toggle_local(self) -> None:
        self._local_only = not self._local_only
        if not self.settings.has_server:
            self._say("There is no server: every answer comes from this machine anyway.")
        elif self._local_only:
            self._say("The next questions stay on this machine. /local again asks the server, too.")
        else:
            self._say("The next questions may go to the server again.")

    def _explain(self) -> None:
        if self._book.last is None:
            self._say("There is no answer yet.")
        else:
            self._screen.show(timeline_lines(self._book.last))

    # ------------------------------------------------------------------ questions and answers

    async def _ask(self, question: str) -> None:
        """Ask a question and show the answer; what came of it stays in the conversation, whatever happens."""
        messages = self._conversation.ask(question)
        answer, error, scope = RevisedText(), None, anyio.CancelScope()
        self._before, self._asked_at = self._book.last, monotonic()
        try:
            async with self.view.answering(scope.cancel) as shown:
                with scope:
                    try:
                        await self._show_answer(messages, answer, shown)
                    except OpenAIError as raised:
                        error, self._has_failed = raised, True
        finally:
            self._stream = self._asked_at = None
        self._conversation.answered(answer.text)
        if error is not None:
            self._say(self._in_words(error), style="red")
        record = None if self._book.last is self._before else self._book.last
        if error is None or answer.text:
            self._say(_in_brief(record, stopped=scope.cancelled_caught))

    async def _show_answer(
        self, messages: list[dict[str, Any]], answer: RevisedText, shown: AnswerView
    ) -> None:
        options: dict[str, Any] = {}
        if self._preset is not None:
            options["preset"] = self._preset
        if self._local_only:
            options["local_only"] = True
        limit = {} if self.settings.max_tokens is None else {"max_tokens": self.settings.max_tokens}
        stream = self._stream = await self._client.chat.completions.create(
            model=self.settings.model,
            messages=messages,
            stream=True,
            extra_body={"disco": options},
            **limit,
        )
        async for chunk in stream:
            before = answer.revisions
            text = answer.add(chunk)
            if answer.revisions > before:  # a terminal cannot take text back
                shown.remark("[in doubt: the next tier answers]")
            shown.write(text, stream.writer or "device")

    # ------------------------------------------------------------------ what is said

    def _say(self, text: str, *, style: str = "dim") -> None:
        self._screen.line(text, style=style)

    def _in_words(self, error: Exception) -> str:
        settings = self.settings
        is_alone = self._local_only or not settings.has_server
        return error_line(error, model=settings.model, local_only=is_alone)


def _in_brief(record: RouteRecord | None, *, stopped: bool) -> str:
    """Return what happened to an answer, in a line of numbers and names."""
    parts = ["stopped"] if stopped else []
    if record is not None:
        parts += [" → ".join(dict.fromkeys(p.endpoint for p in record.segments)) or "no text"]
        parts += dict.fromkeys(f"{t.endpoint} failed: {t.failure}" for t in record.attempts if t.failure)
        if record.pace.ttft_released_s is not None:
            parts += [f"first word after {record.pace.ttft_released_s:.2f} s"]
        parts += [spent(record.bill_usd, record.device_energy_j)]
        if record.finish_reason == "length":
            parts += ["cut at the limit of its length"]
    return f"[{'; '.join(parts)}]"
