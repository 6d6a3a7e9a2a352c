"""The loser of a race that reads on: it holds the prompt, and is given the answer while another attempt writes it.

A hand-over to its endpoint then has to wait for the last few words only. What the follower makes of the answer, its
model's probability of each token, is known as well.
"""

from __future__ import annotations

from disco.events import Parked
from disco.plan import FOLLOW_TOKENS
from disco.playback import last_word_start
from disco.request import Prefix
from disco.session.attempt.attempt_state import AttemptState
from disco.session.effects import Effect, FollowAttempt, ParkAttempt
from disco.session.transcript import Transcript

__all__ = ["Follower"]


class Follower:
    """The parked attempt of one session, if there is one. Mutable: all attributes.

    Attributes:
        state: the attempt; None: no attempt was parked.
        agreement: the sum of the log probabilities (natural) that its model gives to the tokens read, and their number.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.state: AttemptState | None = None
        self.agreement: tuple[float, int] = 0.0, 0
        self._transcript = transcript
        self._given_chars = 0

    def adopt(self, state: AttemptState, out: list[Effect]) -> None:
        """Let the attempt, which has lost its race, finish its prefill and keep it."""
        self.state = state
        state.follows = state.is_reading = state.candidate.follows
        out.append(ParkAttempt(state.number, state.follows))

    def keep_up(self, out: list[Effect]) -> None:
        """Give the follower the whole words that it has not got, where it waits and there are enough of them."""
        state, transcript = self.state, self._transcript
        if state is None or not state.awaits_text or transcript.tokens - state.given_tokens < FOLLOW_TOKENS:
            return
        cut = last_word_start(transcript.written)
        self.reads_on(Prefix(transcript.written[:cut], transcript.tokens), out)

    def reads_on(self, prefix: Prefix, out: list[Effect]) -> bool:
        """Give the follower this beginning of the answer, if it waits and has not got it; return whether it reads."""
        state, text = self.state, prefix.sent
        if state is None or not state.awaits_text or len(text) <= self._given_chars:
            return False
        self._given_chars, state.given_tokens, state.is_reading = len(text), prefix.tokens, True
        out.append(FollowAttempt(state.number, Prefix(text, prefix.tokens)))
        return True

    def has_read(self, parked: Parked) -> None:
        """Store that the follower has read all that it was given."""
        state = self.state
        assert state is not None
        state.is_reading, state.read_tokens = False, state.given_tokens
        if parked.logp:
            total, tokens = self.agreement
            self.agreement = total + sum(parked.logp), tokens + len(parked.logp)
