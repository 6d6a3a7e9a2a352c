"""The text of one answer: which attempt wrote which part, what the reader has, and how to take text back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from disco.candidate import Candidate
from disco.events import Delta, DeltaKind
from disco.playback import Playback, last_word_start, playback_for
from disco.request import Prefix
from disco.session.answer_rule import Calls
from disco.session.attempt.attempt_state import AttemptState

__all__ = ["Aside", "KeptAnswer", "Segment", "Times", "Transcript"]

# A look-up of a member on its enum class runs Python code (3.11), and these members are needed for every token.
_TEXT, _ROLE, _TOOL = DeltaKind.TEXT, DeltaKind.ROLE, DeltaKind.TOOL


@dataclass(slots=True)
class Segment:
    """A stretch of the answer by one writer; it ends where the next segment starts.

    Attributes:
        start: position of the segment's first character in the answer.
        writer: the attempt that wrote it.
        tokens: how many tokens of the segment are in the answer. Mutable.
    """

    start: int
    writer: AttemptState
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Aside:
    """Text that was taken out of an answer and may be put back.

    Attributes:
        deltas: the text. Its writer may append to it.
        segments: (position of the first character, writer), in order.
    """

    deltas: list[Delta] = field(repr=False)
    segments: tuple[tuple[int, AttemptState], ...]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer that is there, and that the SDK would give, while another endpoint is to write a better one.

    Its end says that it failed, its server has cut the prompt, or it is empty. It is delivered if nobody does better.

    Attributes:
        writer: the attempt that ended it.
        reason: its finish reason.
        whole: all of it; None where the reader had some of it by then.
    """

    writer: AttemptState
    reason: str
    whole: Aside | None


class Times:
    """When tokens came, in two columns of equal length, both mutable; iterates over (time, tokens)."""

    __slots__ = ("at", "tokens")

    def __init__(self) -> None:
        self.at: list[float] = []
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return zip(self.at, self.tokens, strict=True)


class Transcript:
    """One answer as it grows: its text, its segments and its times. Playback holds what the reader has not got yet.

    Attributes:
        playback: the buffer between generation and the reader.
        streams: whether a reader gets the text while it is written; if not, all of it comes at the end.
        segments: in order; at least one once there is a writer.
        writer: the attempt that writes now; None before the race is won, and where the answer begins again.
        tokens: content tokens of the answer so far.
        only_text: whether the answer has had no tool call and no reasoning so far.
        has_more: whether it has had content besides text and reasoning: a tool call, a sound.
        calls: its tool calls, which are held back until they are whole; None: they are passed on as they come.
        dropped: the longest text that was dropped because the answer began anew.
        kept: the first such answer; None: there is none.
        generated: when tokens were written, those after a cut included.
        turns: (place in `generated`, the attempt's number) from which on that attempt wrote.
        released: when the reader got them.
    """

    def __init__(self, playback: Playback, *, streams: bool, holds_calls: bool = False) -> None:
        self.playback = playback
        self.streams = streams
        self.segments: list[Segment] = []
        self.writer: AttemptState | None = None
        self.tokens = 0
        self.only_text, self.has_more = True, False
        self._refuses = False
        self.calls = Calls() if holds_calls else None
        self.dropped = ""
        self.kept: KeptAnswer | None = None
        self._held: list[Delta] = []  # a call that is not whole yet, and all that came behind it
        self._was_only_text = True  # before it
        self.generated, self.released = Times(), Times()
        self.turns: list[tuple[int, int]] = []
        # Stored at release, so that a record can compare what was delivered with what was written.
        self._delivered: list[str] = []
        self._behind: list[Segment] = []  # segments whose whole text the latest cut took back
        self._removed: list[Delta] = []  # see `restore`
        self._removed_by: AttemptState | None = None  # the attempt that wrote it
        self._text: list[str] = []  # the text that was given to playback and not taken back
        self._ids: list[tuple[int, tuple[int, ...]]] | None = []  # (end character, ids); None once unknown

    @property
    def text(self) -> str:
        """The answer as the reader has it so far."""
        return "".join(self._delivered)

    @property
    def partial_text(self) -> str:
        """What an error that ends the answer carries: the text that the reader has, else the longest that came."""
        return self.text or self.dropped if self.streams else max(self.text, self.dropped, key=len)

    @property
    def written(self) -> str:
        """The answer as it is written so far."""
        return "".join(self._text)

    @property
    def shown_chars(self) -> int:
        """How many characters of the answer cannot be taken back any more."""
        return self.playback.released_chars if self.streams else 0

    @property
    def may_be_continued(self) -> bool:
        """Whether another endpoint could go on with it: it is text, and no refusal."""
        return self.only_text and not self._refuses

    @property
    def nothing_shown(self) -> bool:
        """Whether the reader has nothing yet, so that the answer may begin again."""
        return not self.streams or not self.released

    def writer_at(self, char: int) -> str | None:
        """Name of the endpoint that wrote the character at this position of the answer."""
        name = None
        for segment in self.segments:
            if segment.start > char:
                break
            name = segment.writer.candidate.name
        return name

    @property
    def first_writer(self) -> AttemptState | None:
        """The attempt whose text, tool calls or reasoning the answer begins with."""
        return next((s.writer for s in self.segments if s.tokens), None) or (
            self.segments[0].writer if self.segments else None
        )

    def kept_tokens(self, state: AttemptState) -> int:
        """How many tokens of the answer an attempt has written."""
        return sum(s.tokens for s in self.segments if s.writer is state)

    def hand_to(self, writer: AttemptState) -> None:
        """Make this attempt the writer, and forget what is held back: its writer has failed."""
        self._drop_calls()
        self._goes_on_by(writer)

    def _goes_on_by(self, writer: AttemptState) -> None:
        """Begin a new segment at the end of the answer."""
        self.writer = writer
        at = self.playback.pushed_chars
        if self.segments and self.segments[-1].start == at and not self.segments[-1].tokens:
            self.segments.pop()
        self.segments.append(Segment(at, writer))

    def add(self, state: AttemptState, deltas: list[Delta], now: float, beyond: list[Delta] | None) -> None:
        """Add what the writer wrote to the answer, or to `beyond` where a migration has cut the answer."""
        self._note_turn(state)
        for delta in deltas:
            if delta.kind is _ROLE:
                if state.prefix:  # only the attempt that begins the answer has one
                    continue
            else:
                tokens = delta.tokens
                state.tokens += tokens
                state.parts.append(delta.text)
                self.generated.at.append(now)
                self.generated.tokens.append(tokens)
            if beyond is not None:
                beyond.append(delta)
            else:
                self._put(delta, now)

    def _put(self, delta: Delta, now: float) -> None:
        """Add one piece to the end of the answer, or to what is held back."""
        if self._held or (delta.kind is _TOOL and self.calls is not None):
            self._hold(delta, now)
        else:
            self.push(delta, now)

    def _hold(self, delta: Delta, now: float) -> None:
        """Keep a call from the reader until it is whole, so that another endpoint can still begin anew."""
        assert self.calls is not None
        if not self._held:
            self._was_only_text, self.only_text = self.only_text, False
        self._held.append(delta)
        self.calls.read(delta.tool_calls)
        if self.calls.may_be_shown:
            self.show_calls(now)

    def show_calls(self, now: float) -> None:
        """Let the reader have what was held back: it is whole, or nothing more comes."""
        held, self._held = self._held, []
        for delta in held:
            self.push(delta, now)

    @property
    def holds(self) -> bool:
        """Whether a call is held back."""
        return bool(self._held)

    def _drop_calls(self) -> None:
        if self._held:
            self.only_text = self._was_only_text
        self._held = []
        self.calls = self.calls and Calls()

    def _note_turn(self, state: AttemptState) -> None:
        if not self.turns or self.turns[-1][1] != state.number:
            self.turns.append((len(self.generated), state.number))

    def push(self, delta: Delta, now: float) -> None:
        """Add one piece, by the writer of the last segment, to the end of the answer."""
        self.playback.push(now, delta)
        if delta.kind is _ROLE:
            return
        tokens = delta.tokens
        self._removed = []
        self.tokens += tokens
        self.segments[-1].tokens += tokens
        if delta.kind is not _TEXT:
            self.only_text = False
            self.has_more = self.has_more or delta.kind is _TOOL
            return
        self._refuses = self._refuses or delta.refusal
        self._text.append(delta.text)
        if self._ids is not None:
            if delta.ids is None:
                self._ids = None
            else:
                self._ids.append((self.playback.pushed_chars, delta.ids))

    def give_back(self, writer: AttemptState, beyond: list[Delta], now: float) -> None:
        """Put text back into the answer after a migration was given up, and let its source go on.

        Args:
            writer: the source of the migration.
            beyond: what was taken back at the cut and what the source has written since.
            now: the time, s.
        """
        for delta in beyond:
            if self._behind and self._behind[0].start <= self.playback.pushed_chars:
                self._goes_on_by(self._behind.pop(0).writer)
            self._put(delta, now)
        if self.segments[-1].writer is not writer:  # none of the text put back is by this writer
            self._goes_on_by(writer)

    def release(self, now: float) -> list[Delta]:
        """Return what the reader gets now, and store it as delivered."""
        deltas = self.playback.release(now)
        for delta in deltas:
            if delta.kind is not _ROLE:
                self.released.at.append(now)
                self.released.tokens.append(delta.tokens)
                if delta.text:
                    self._delivered.append(delta.text)
        return deltas

    def take_back(self, position: int) -> list[Delta]:
        """Remove unreleased text after `position` from the answer, and the call behind it that is held back."""
        taken, held = self.playback.retract(position), self._held
        self._drop_calls()
        self._behind = []
        if not taken:
            return held
        self._text = [self.written[:position]]
        tokens = sum(d.tokens for d in taken)
        self.tokens -= tokens
        for segment in reversed(self.segments):
            lost = min(tokens, segment.tokens)
            segment.tokens -= lost
            tokens -= lost
        self._behind = [s for s in self.segments[1:] if s.start >= position]
        self.segments = [s for s in self.segments if s.start < position] or self.segments[:1]
        if self._ids is not None:
            self._ids = [entry for entry in self._ids if entry[0] <= position]
            if position and (not self._ids or self._ids[-1][0] != position):
                self._ids = None  # the cut goes through a token
        return [*taken, *held]

    def set_aside(self, position: int) -> Aside:
        """Remove unreleased text after `position` from the answer, so that `put_back` can restore it."""
        ends = [*(s.start for s in self.segments[1:]), self.playback.pushed_chars + 1]
        behind = [(s.start, s.writer) for s, end in zip(self.segments, ends, strict=True) if end > position]
        return Aside(self.take_back(position), tuple(behind))

    def put_back(self, aside: Aside, now: float) -> None:
        """Restore text that was set aside; the answer must end where it did then."""
        left = list(aside.segments)
        for delta in aside.deltas:
            while left and left[0][0] <= self.playback.pushed_chars:
                _, writer = left.pop(0)
                if not self.segments or self.segments[-1].writer is not writer:
                    self._goes_on_by(writer)
                self.writer = writer
            self._put(delta, now)

    def rewrite(self, writer: AttemptState, text: str, now: float) -> None:
        """Replace the whole answer by this text of its writer's; the reader must have nothing of it."""
        taken = self.take_back(0)
        self._ids = None
        self.hand_to(writer)
        tokens, raw = sum(d.tokens for d in taken), next((d.raw for d in taken if d.kind is _TEXT), None)
        for delta in taken:
            if delta.kind is _ROLE:
                self.push(delta, now)
        self.push(Delta(text, tokens, raw=raw), now)
        writer.parts = [text]

    def begin_revision(self) -> Delta:
        """Forget the whole answer although the reader has text of it; return the retraction to give to the reader.

        Mutable here as nowhere else: `playback`, whose positions count from the beginning of the answer.
        """
        self.playback = playback_for(self.playback.pace)
        self.segments, self._text, self._ids, self._delivered = [], [], [], []
        self._removed, self._behind = [], []
        self.tokens, self.only_text, self.has_more, self._refuses = 0, True, False, False
        return Delta("", tokens=0, kind=DeltaKind.RETRACT)

    def begin_anew(self) -> None:
        """Forget the whole answer but for its text, which an error may need; the reader must have nothing of it."""
        text = self.written + "".join(delta.text for delta in self._removed)
        self.dropped = max(self.dropped, text, key=len)
        self.take_back(0)
        self._removed = []
        self._ids, self.only_text, self.has_more, self._refuses = [], True, False, False

    def prefix_for(self, target: Candidate, source: Candidate | None, end: int, withheld: str = "") -> Prefix:
        """Return the answer up to character `end`, as the prefix that `target` continues.

        Args:
            target: the endpoint that reads the prefix.
            source: the endpoint that wrote the answer; token ids are included where both have the same vocabulary.
            end: the length of the answer, in characters; the text after it must have been taken back.
            withheld: see `Prefix`.
        """
        ids = vocabulary = None
        shared = (
            source is not None and target.vocabulary is not None and target.vocabulary == source.vocabulary
        )
        if self._ids and not withheld and shared:
            ids = tuple(i for _, piece in self._ids for i in piece)
            vocabulary = target.vocabulary
        return Prefix(self.written[:end], self.tokens, ids, vocabulary, withheld)

    def last_good_prefix(self, target: Candidate, source: Candidate | None) -> Prefix:
        """Return the answer without its last word, which may be incomplete, as the prefix that `target` continues.

        The last word is removed from the answer. If the reader has seen it already, it becomes `Prefix.withheld`. Where
        it is removed for a target that then wrote nothing, the next one continues from there: no second word is lost.
        """
        text, shown = self.written, self.shown_chars
        cut = min(last_word_start(text + "".join(delta.text for delta in self._removed)), len(text))
        if cut >= shown and cut > 0:
            self._remove(cut)
            return self.prefix_for(target, source, cut)
        self._remove(shown)
        return self.prefix_for(target, source, shown, withheld=text[cut:shown])

    def _remove(self, position: int) -> None:
        """Take back the text after `position`, which a target writes again."""
        by = next((s.writer for s in reversed(self.segments) if s.tokens), None)
        taken = self.take_back(position)
        if self._removed:
            self._removed = [*taken, *self._removed]
        else:
            self._removed, self._removed_by = taken, by

    def restore(self, now: float) -> None:
        """Put back what was removed for a target that then wrote nothing: the answer ends there."""
        removed, by = self._removed, self._removed_by
        if removed and by is not None:
            self.hand_to(by)
            for delta in removed:
                self.push(delta, now)

    def keep(self, state: AttemptState, reason: str, beyond: list[Delta], now: float) -> bool:
        """Remember the answer as an attempt has ended it, if it is the first such one; return whether it is kept.

        `beyond`: as for `add`; of one that is not the writer, all that it has written.
        """
        if self.kept is not None:
            return False
        whole = None
        if state is not self.writer:
            if not self.nothing_shown:
                return False
            whole = Aside(list(beyond), ((0, state),))
        elif self.nothing_shown:
            aside = self.set_aside(0)
            self.put_back(aside, now)
            whole = Aside([*aside.deltas, *beyond], aside.segments)
        self.kept = KeptAnswer(state, reason, whole)
        return True

    def take_kept(self, now: float) -> KeptAnswer | None:
        """Let the kept answer be the answer; None where there is none."""
        kept, removed = self.kept, self._removed
        if kept is None:
            return None
        if kept.whole is not None and self.nothing_shown:
            self.begin_anew()
            self.put_back(kept.whole, now)
        elif self.writer is not kept.writer:
            self._drop_calls()  # of whoever went on
            while len(self.segments) > 1 and not self.segments[-1].tokens:
                self.segments.pop()
            if self.segments[-1].writer is not kept.writer:
                self._goes_on_by(kept.writer)
            for delta in removed:
                self.push(delta, now)
        self.writer = kept.writer
        return kept
