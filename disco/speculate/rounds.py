"""The machine of rounds: a drafter guesses, the target answers. Events in, effects out; no I/O, no clock.

The answer consists of the target's own tokens and of nothing else. What the machine decides is only when to draft, how
much, and when to let the target go on alone. Positions count the answer's tokens from 0.

Modes. "alone": the target streams its tokens. The drafter, once it has read the prompt, follows; when the window asks
for a draft, it makes one that is not sent (a shadow), and the stream shows what it is worth. So acceptance and draft
time stay fresh at no cost in time. If the window still asks for a draft then, the stream is stopped and the mode is
"distributed": windows are drafted and sent, up to `parallel` of them in flight. The way back: the window asks for
none, the drafter is late, fails, or has nothing to say.

Parallel drafting: with windows in flight the drafter goes on from its own last token, so the next window begins with
its guess of the token that the target adds to the window before it.

Verdicts may come twice, late, or in another order than their rounds. Only what lies behind the answer's end is
written; a verdict that begins beyond it waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, Literal

from disco.speculate.effects import Effect, Fail, Finish, StopStream, Write
from disco.speculate.estimates import Estimates
from disco.speculate.flights import Flight, Flights, new_deltas
from disco.speculate.lines import Line, Shadow
from disco.speculate.messages import LONGEST_DRAFT, Verdict
from disco.speculate.orders import DrafterState, Order, Orders
from disco.speculate.seen import Seen
from disco.speculate.tally import Tally
from disco.speculate.windows.contract import Window

__all__ = ["ALONE_TOKENS", "Mode", "Rounds"]

ALONE_TOKENS: Final = 256
"""Tokens that the target is asked to write alone in one round."""

Mode = Literal["distributed", "alone"]


class Rounds:
    """Rounds of one answer. Each event returns what the driver must do, in this order.

    After `Finish` or `Fail`, every event returns nothing.

    Attributes:
        mode: "distributed" or "alone".
        estimates: of the pair of drafter and target.
        tally: counts and seconds so far.
    """

    def __init__(
        self,
        window: Window,
        *,
        parallel: int = 1,
        estimates: Estimates | None = None,
        has_drafter: bool = True,
        ids: Iterable[int] = (),
        limit: int | None = None,
        alone_tokens: int = ALONE_TOKENS,
        retries: int = 2,
    ) -> None:
        """Begin an answer.

        Args:
            window: chooses how many tokens to draft.
            parallel: windows in flight; 1 is strictly in turn.
            estimates: those of the pair, which its answers may share; new ones by default.
            has_drafter: whether there is a drafter; it then reads the prompt until `drafter_ready`.
            ids: tokens that the answer has already; they are not written.
            limit: most tokens of the answer, `ids` included. The server keeps it; here it bounds drafts.
            alone_tokens: tokens that the target is asked to write alone in one round.
            retries: how often in a row a round is sent again after a failure.
        """
        self.mode: Mode = "alone"
        self.estimates = estimates or Estimates()
        self.tally = Tally()
        self._window, self._parallel, self._limit = window, parallel, limit
        self._alone_tokens, self._retries = alone_tokens, retries
        self._seen = Seen()
        self._line, self._flights = Line(ids), Flights()
        self._orders = Orders(has_drafter=has_drafter)
        self._is_proved = False  # a shadow was judged since the window last asked for none
        self._dry_at = -1  # where the drafter had nothing to say
        self._failures = 0  # of the target, in a row
        self._written_s: float | None = None
        self._over = False

    @property
    def ids(self) -> tuple[int, ...]:
        """The answer's tokens so far: what an `Opening` needs where the server has lost the answer."""
        return tuple(self._line.settled)

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete, or the target failed."""
        return self._over

    @property
    def drafter_state(self) -> DrafterState:
        """What the drafter does."""
        return self._orders.state

    @property
    def in_flight(self) -> int:
        """Rounds whose reply has not ended: at most twice `parallel`, and a stream."""
        return len(self._flights)

    @property
    def wake_at(self) -> float:
        """When the machine wants to be woken (`woken`), on the driver's clock; infinity for never."""
        order = self._orders.order
        return inf if self._over or order is None or order.is_late else order.late_s

    # -- events --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Send the first round: the target begins alone, and the drafter reads the prompt meanwhile."""
        effects: list[Effect] = []
        self._go_on(now, effects)
        return effects

    def opened(self, now: float, verdict: Verdict) -> list[Effect]:
        """Take the first verdict of the first round, as `verified` does."""
        return self.verified(now, verdict)

    def drafter_ready(self, now: float) -> list[Effect]:
        """Note that the drafter has read the prompt."""
        effects: list[Effect] = []
        if self._orders.has_read():
            self._consider(now, effects)
        return effects

    def drafted(self, now: float, number: int, ids: Iterable[int], took_s: float) -> list[Effect]:
        """Take what the drafter drafted, in a time of `took_s`; fewer than ordered, or none, is in order."""
        effects: list[Effect] = []
        taken = None if self._over else self._orders.took(number, ids)
        if taken is None:
            return effects
        order, drafted = taken
        self.tally.drafted += len(drafted)
        self.tally.draft_s += took_s
        self.estimates.drafted(len(drafted), len(order.draft.append), took_s)
        if order.is_shadow and not order.is_useless:
            self._orders.shadow = Shadow(order.at, drafted) if drafted else None
            if self._judge_shadow():
                self._consider(now, effects)
        elif not order.is_useless and self.mode == "distributed":
            self._use(now, order, drafted, effects)
        self._go_on(now, effects)
        return effects

    def verified(self, now: float, verdict: Verdict) -> list[Effect]:
        """Take a verdict, new or repeated, of a round in flight or of one that was given up."""
        effects: list[Effect] = []
        if self._over:
            return effects
        self._flights.measure(now, verdict, self.estimates, self.tally)
        if verdict.at > len(self._line.settled) and (verdict.ids or verdict.finish_reason is not None):
            if not self._flights.keep_early(verdict):
                self._stop_streams(effects)  # tokens of it are missing; the next one begins with them
        else:
            self._apply(now, verdict, effects)
        while not self._over and (early := self._flights.take_early(len(self._line.settled))) is not None:
            self._apply(now, early, effects)
        self._go_on(now, effects)
        return effects

    def ended(self, now: float, number: int) -> list[Effect]:
        """Note that the reply to a round has ended; needed for those sent with `alone`, harmless for others."""
        effects: list[Effect] = []
        flight = self._flights.pop(number)
        if flight is not None:
            self._give_up(now, flight, effects)
            self._go_on(now, effects)
        return effects

    def failed(self, now: float, part: Literal["drafter", "verifier"], number: int = -1) -> list[Effect]:
        """Note that the drafter failed, for good, or a round; `number`: of that round.

        A failed round is sent again, unless nobody needs it any more or too many failed in a row.
        """
        effects: list[Effect] = []
        if self._over:
            return effects
        if part == "drafter":
            self._orders.died()
        elif (flight := self._flights.pop(number)) is not None:
            self._failures += 1
            if self._failures > self._retries:
                self._end(now, Fail(f"{self._failures} rounds failed in a row"), effects)
            elif flight.is_window and not flight.is_stale:
                self.tally.retries += 1
                effects.append(self._flights.send_again(now, flight))
        self._go_on(now, effects)
        return effects

    def woken(self, now: float) -> list[Effect]:
        """Look at the time: a draft may be late."""
        effects: list[Effect] = []
        order = self._orders.order
        if now < self.wake_at or order is None:
            return effects
        if self._flights.fresh and not order.is_shadow:
            order.late_s = now + order.patience_s  # verdicts come: nothing waits for the draft alone
            return effects
        self.tally.late += 1
        self._is_proved = False
        self._orders.drop(now, effects)
        order.is_late = True
        self._go_on(now, effects)
        return effects

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _apply(self, now: float, verdict: Verdict, effects: list[Effect]) -> None:
        """Add what is new of a verdict that begins within the answer."""
        line, before = self._line, len(self._line.settled)
        known = max(0, before - verdict.at)
        if tuple(line.settled[verdict.at : verdict.at + len(verdict.ids)]) != verdict.ids[:known]:
            self._end(now, Fail("a verdict contradicts tokens that the target chose before"), effects)
            return
        new = verdict.ids[known:]
        finished = verdict.finish_reason is not None
        deltas = new_deltas(verdict, before)
        flight = self._flights.get(verdict.number)
        by: Mode = "distributed" if flight is not None and flight.is_window else "alone"
        judged = line.settle(new)
        for place, right in judged.places:
            self.estimates.acceptance.add(place, right=right)
        self.tally.judged += len(judged.places)
        self.tally.accepted += judged.accepted
        self.tally.tokens[by] += len(new)
        if new:
            self._failures = 0
            if self._written_s is not None:
                self.estimates.written(len(new), now - self._written_s)
            self._written_s = now
        if new or (finished and deltas):
            effects.append(Write(before, new, deltas, by))
        if finished:
            if flight is not None and not flight.is_stale:
                right_until = len(line.settled) if judged.wrong_at is None else judged.wrong_at
                flight.time(now, right_until, self.tally)
            self._end(now, Finish(verdict.finish_reason or ""), effects)
            return
        self._settle_flights(now, verdict.number, judged.wrong_at, effects)
        if new:
            self._judge_shadow()
            self._consider(now, effects)

    def _settle_flights(self, now: float, number: int, wrong_at: int | None, effects: list[Effect]) -> None:
        """Give up what a verdict refutes: windows behind a wrong token, and the draft that continues them."""
        if wrong_at is not None:
            for refuted in self._flights.refute(wrong_at):
                self._report(now, refuted, wrong_at)
            self._drop_draft(now, effects)
        flight = self._flights.get(number)
        if flight is None or flight.send.alone:
            return
        self._flights.pop(number)
        if not flight.is_stale:
            self._report(now, flight, len(self._line.settled))
            self._give_up(now, flight, effects)

    def _report(self, now: float, flight: Flight, right_until: int) -> None:
        """Tell the window how many of a flight's tokens were right, unless not even the first was compared."""
        flight.time(now, right_until, self.tally)
        drafted = len(flight.send.draft)
        if drafted and len(self._line.settled) > flight.send.at:
            self._window.judged(drafted, flight.right_tokens(right_until))

    def _give_up(self, now: float, flight: Flight, effects: list[Effect]) -> None:
        """Drop tokens of a flight that came back without judging them, and all that continues them."""
        if not flight.is_stale and flight.is_window and flight.end > len(self._line.settled):
            position = max(flight.send.at, len(self._line.settled))
            self._line.cut(position)
            self._flights.refute(position)
            self._drop_draft(now, effects)

    def _drop_draft(self, now: float, effects: list[Effect]) -> None:
        """Stop a draft that continues the line; a shadow is judged anyway."""
        if self._orders.order is not None and not self._orders.order.is_shadow:
            self._orders.drop(now, effects)

    def _end(self, now: float, how: Finish | Fail, effects: list[Effect]) -> None:
        self._over = True
        self._orders.drop(now, effects)
        self._flights.clear()
        effects.append(how)

    # -- decisions -----------------------------------------------------------------------------------------------

    def _go_on(self, now: float, effects: list[Effect]) -> None:
        """Decide what comes next: a draft, the target alone, or to wait for what is under way."""
        if self._over:
            return
        for flight in self._flights.take_hopeless():
            self._give_up(now, flight, effects)
        if self.mode == "distributed":
            has_place = len(self._flights.fresh) < self._parallel and len(self._flights) < 2 * self._parallel
            if has_place and self._orders.state == "ready" and self._dry_at != self._line.end:
                count = self._choose()
                if count > 0:
                    self._draft(now, count, effects)
            if self._orders.state == "busy" or self._flights.fresh or not has_place:
                return
            self._switch("alone")
        if not self._flights.streams():
            alone = self._alone_tokens
            if self._limit is not None:
                alone = max(0, min(alone, self._limit - len(self._line.settled) - 1))
            self.tally.rounds += 1
            effects.append(self._flights.send(now, len(self._line.settled), (), alone))

    def _consider(self, now: float, effects: list[Effect]) -> None:
        """While the target goes on alone: let the window choose, after each of its verdicts; see the module."""
        idle = self._orders.state == "ready" and self._orders.shadow is None
        if self._over or self.mode != "alone" or not idle or self._flights.count == 0:
            return
        count = self._choose()
        if count == 0:
            self._is_proved = False
            return
        if self._is_proved:
            self._stop_streams(effects)
            self._switch("distributed")
        self._draft(now, count, effects)

    def _stop_streams(self, effects: list[Effect]) -> None:
        for number in self._flights.streams():
            self._flights.pop(number)
            effects.append(StopStream(number))

    def _switch(self, mode: Mode) -> None:
        self.mode = mode
        self.tally.switches += 1
        self._is_proved = False

    def _choose(self) -> int:
        """Return how many tokens to draft: the window's choice, within the message's and the answer's limits."""
        self.estimates.fill(self._seen)
        count = min(self._window.choose(self._seen), LONGEST_DRAFT)
        if self._limit is not None:
            count = min(count, self._limit - self._line.end - 1)  # the target adds one of its own
        self._seen.last_window = max(0, count)
        return self._seen.last_window

    def _draft(self, now: float, count: int, effects: list[Effect]) -> None:
        """Order a draft; while the target writes alone, it is a shadow."""
        draft = self._orders.place(
            now,
            self._line,
            count,
            stop_below=self._window.stop_below,
            patience_s=self.estimates.patience_s,
            is_shadow=self.mode == "alone",
        )
        effects.append(draft)

    def _use(self, now: float, order: Order, drafted: tuple[int, ...], effects: list[Effect]) -> None:
        """Send a draft, without what was settled while it was made."""
        shadow = Shadow(order.at, drafted)
        if not self._compare(shadow):
            return
        if not drafted:
            self._dry_at = self._line.end
        elif not shadow.is_done:
            at = self._line.end
            self._line.extend(shadow.rest)
            self.tally.rounds += 1
            self.tally.sent += len(shadow.rest)
            self.tally.windows[len(shadow.rest)] += 1
            effects.append(self._flights.send(now, at, shadow.rest))

    def _judge_shadow(self) -> bool:
        """Compare the shadow with the target's tokens; return whether that is done, now."""
        shadow = self._orders.shadow
        if shadow is None:
            return False
        self._compare(shadow)
        if shadow.is_done:
            self._orders.shadow, self._is_proved = None, True
        return shadow.is_done

    def _compare(self, shadow: Shadow) -> bool:
        """Learn from drafted tokens that were not sent; return whether none was wrong."""
        right = True
        for place, right in shadow.compare(self._line.settled):
            self.estimates.acceptance.add(place, right=right)
            self.tally.compared += 1
            self.tally.agreed += right
        return right
