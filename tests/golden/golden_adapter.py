"""The one place of the golden replays that uses disco's own names: from drawn requests to projected records.

What a rename or a move breaks in the golden replays is mended here; nothing else is.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from golden_draws import Ask, Setting, attempt, draw_answer_tokens, draw_prompt_tokens

from disco.cost import Rates
from disco.cost.budget_limiter import BudgetLimiter
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch import Candidate, Dispatcher, Features, load_preset
from disco.dispatch.breakers.circuit_breaker import BreakerConfig
from disco.dispatch.breakers.endpoint_health import Asked, Health
from disco.dispatch.presets import with_limits
from disco.dispatch.within_budget import within_budget
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, script
from disco.errors import BudgetExceededError, FailureKind, NoEndpointError
from disco.playback import Pace, Playback
from disco.profiles import Empirical, Lengths
from disco.replay.simulator.device_queue import SharedDevice
from disco.replay.simulator.virtual_driver import Player, Shared, run_together
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.switching.answer_lengths import AnswerLengths

# The fields of record schema 2, and of the parts of a record: those that are added later change no digest.
CHARGE = "attempt endpoint phase prompt_tokens completion_tokens cached_tokens cost"
TRY = (
    "endpoint place role outcome failure cold started_s first_content_s ended_s prefix_chars tokens kept_tokens "
    "prompt_tokens completion_tokens cached_tokens cost"
)
TRANSFER = (
    "source target outcome decided_s switched_s cut_char cut_tokens expected_s took_s slack_s late_tokens"
)
PACE = (
    "ttft_raw_s ttft_released_s tbt_raw_p50_s tbt_raw_p99_s tbt_released_p50_s tbt_released_p99_s "
    "late_tokens pace_tps"
)
PARTS = {
    "endpoints": "name place cost_in cost_out cached_share continues",
    "starts": "endpoint after_s",
    "rested": "endpoint reason failure failures for_s",
    "withheld": "endpoint what why",
    "budget": "amount window_s reserved spent left",
    "tries": TRY,
    "pieces": "attempt endpoint start_char end_char written_crc32 delivered_crc32",
    "transfers": TRANSFER,
    "pace": PACE,
}
PLAIN = (
    "created_s policy finish_reason prompt_tokens answer_tokens max_tokens winner seamless duration_s "
    "generated released"
)
RENAMED = {
    "policy": "preset",
    "tries": "attempts",
    "pieces": "segments",
    "transfers": "migrations",
    "rested": "deprioritised",
    "withheld": "budget_cuts",
}
LIMITS = {"usd": "server_usd"}  # by today's name, that of the recorded hashes
RECORDED_ORDER = {"cheap": "break_before_make"}  # of migrations, by preset: the one that was shipped
KNOWN = "prefill_tps overhead_s decode_tps continues context_tokens standby"  # of an endpoint, to dispatch


def projected(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's `to_dict(timelines=True)` with the fields above, under the names of schema 2, and no others."""
    now = {**{name: name for name in (*PARTS, *PLAIN.split())}, **RENAMED}
    record = {name: record[now[name]] for name in (*PARTS, *PLAIN.split())} | {"ledger": record["ledger"]}
    record["tries"] = [{**one, "cost": one["policy_cost"]} for one in record["tries"]]
    record |= {part: _only(record[part], names.split()) for part, names in PARTS.items()}
    ledger = record["ledger"]
    charges = [{**one, "cost": one["policy_cost"]} for one in ledger["charges"]]
    ledger = {"total_cost": ledger["policy_cost"], "charges": _only(charges, CHARGE.split())}
    return {**record, "ledger": ledger}


def _only(part: Any, names: list[str]) -> Any:
    if isinstance(part, list):
        return [_only(item, names) for item in part]
    if part and all(isinstance(value, Mapping) for value in part.values()):  # budgets, by limit
        return {LIMITS.get(key, key): _only(value, names) for key, value in part.items()}
    return {name: part[name] for name in names} if part else {}


class _Reader(Player):
    """A player that tells when its session closes, at whatever moment that is."""

    __slots__ = ("on_closed",)

    def apply(self, effects: Any, now: float) -> None:
        super().apply(effects, now)
        if self.closed and self.on_closed is not None:
            tell, self.on_closed = self.on_closed, None
            tell(now)


class _Scripts:
    """What the endpoints of one request do; every attempt is drawn anew."""

    def __init__(self, setting: Setting, ask: Ask) -> None:
        self.setting, self.ask = setting, ask
        self.tries: Counter[str] = Counter()
        params = {} if ask.max_tokens is None else {"max_tokens": ask.max_tokens}
        self.request = Request([{"role": "user", "content": f"request {ask.row}"}], "m", params)

    def script(self, start: Any, *, kept: int | None) -> tuple[Iterator[Any], int, int]:
        name, prefix = start.endpoint, start.prefix
        rng = self.ask.rng(name, self.tries[name])
        self.tries[name] += 1
        profile = _profile(**attempt(self.setting, self.ask, name, prefix.tokens, rng))
        prompt_tokens = self.ask.prompt_tokens + prefix.tokens
        cached_tokens = self.ask.prompt_tokens if kept is not None else 0
        request = self.request if start.max_tokens is None else self.request.limited(start.max_tokens)
        tokens = {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        return script(profile, request, prefix, rng, endpoint=name, **tokens), prompt_tokens, cached_tokens

    def charged(self, endpoint: str, tokens: int, cached_tokens: int, worked_s: float) -> tuple[int, int]:
        return tokens, cached_tokens


def _profile(*, fault: dict[str, Any] | None, **numbers: Any) -> SimulatedProfile:
    if fault is None:
        return SimulatedProfile(**numbers)
    kind = None if fault["kind"] is None else FailureKind(fault["kind"])
    return SimulatedProfile(**numbers, fault=Fault(**{**fault, "kind": kind}))


class Episode:
    """Runs the requests of one episode, as `client/router.py` does live. Mutable: `kept`, the results by row."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        own = Path(__file__).parent / f"{setting.preset}.toml"  # a preset of this folder's, not a shipped one
        preset = load_preset(own if own.is_file() else setting.preset)
        order = RECORDED_ORDER.get(setting.preset, "make_before_break")
        preset = preset.model_copy(update={"migration": preset.migration.model_copy(update={"order": order})})
        self.preset = with_limits(preset, setting.limits)
        rng = setting.rng("dispatcher")
        lengths = Lengths.from_samples([draw_prompt_tokens(rng) for _ in range(200)])
        ttft = Empirical.from_samples(rng.lognormal(math.log(0.5), 0.7, 200))
        self.dispatcher = Dispatcher(self.preset, lengths=lengths, ttft=ttft, rng=rng)
        self.answers = AnswerLengths.from_samples([draw_answer_tokens(rng) for _ in range(100)])
        self.health, self.limiter, self.shared = Health(), BudgetLimiter(), Shared()
        self.device = SharedDevice(slots=1, load_s=setting.load_s, idle_unload_s=setting.idle_unload_s)
        self.kept: dict[int, dict[str, Any]] = {}

    def run(self, asks: list[Ask]) -> list[dict[str, Any]]:
        """The results of all requests, in order."""
        players: dict[int, Player] = {}

        def come(ask: Ask) -> Player | None:
            player = self._open(ask)
            if player is not None:
                players[ask.row] = player
            return player

        def leave(ask: Ask) -> None:
            player = players.get(ask.row)
            if player is not None and not player.closed:
                player.apply(player.session.cancelled(ask.cancel_at), ask.cancel_at)
                if not player.closed:
                    player.wake_me(ask.cancel_at)

        events = [(ask.at, ask.row, ask, come) for ask in asks]
        events += [(ask.cancel_at, ask.row, ask, leave) for ask in asks if ask.cancel_at < math.inf]
        events.sort(key=lambda event: event[:2])
        arrivals: Any = ((at, lambda ask=ask, act=act: act(ask)) for at, _, ask, act in events)
        for player in run_together(arrivals, self.shared):
            player.forget()
        return [self.kept[ask.row] for ask in asks]

    def _open(self, ask: Ask) -> Player | None:
        """Plan a request and make its session; None when it is refused."""
        at, preset, sides = ask.at, self.preset, {s.name: s for s in self.setting.sides if ask.sees(s)}
        rates = {s.name: Rates(s.cost_in, s.cost_out, s.cached_share) for s in sides.values()}
        cold_s = self.setting.load_s if self.device.is_cold(at) else 0.0
        candidates = {
            s.name: Candidate(
                s.name,
                "device" if s.place == "device" else "any",
                rates=rates[s.name],
                load_s=cold_s if s.place == "device" else 0.0,
                parks=s.place == "device",
                **{field: getattr(s, field) for field in KNOWN.split()},
            )
            for s in sides.values()
        }
        features = Features(
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.max_tokens,
            needs=frozenset({"tools"}) if ask.tools else frozenset(),
            reach="device" if ask.local_only or preset.limits.local_only else "any",
            stream=ask.streams,
            may_migrate=not ask.tools,
        )
        served = {s.name: None if s.serves_tools else frozenset[str]() for s in sides.values()}
        watch = self.health.watch({name: Asked(name, "m") for name in sides})
        reservation: BudgetReservation | None = None
        try:
            resting, probing = watch.look(at, [name for name in sides if ask.is_offline(name)])
            plan = self.dispatcher.plan(
                features,
                list(candidates.values()),
                served,
                budget_class=ask.budget_class,
                resting=resting,
                probing=probing,
            )
            if preset.limits.budgets:
                reservation = BudgetReservation(
                    self.limiter,
                    preset.limits.budgets,
                    {name: c.payers for name, c in candidates.items()},
                    4 * ask.prompt_tokens + 144,
                    max_tokens=ask.max_tokens,
                    unreported=preset.limits.unreported,
                )
                plan = within_budget(
                    plan,
                    candidates,
                    reservation,
                    at,
                    known=[name for name in sides if ask.knows(name)],
                    prompt_tokens=ask.prompt_tokens,
                    urgent=ask.budget_class == "urgent",
                )
        except (NoEndpointError, BudgetExceededError) as error:
            limit, wait_s = getattr(error, "limit", None), getattr(error, "retry_after_s", None)
            self.kept[ask.row] = {"refused": type(error).__name__, "limit": limit, "retry_after_s": wait_s}
            return None
        watch.claim(plan, at)
        wanted = preset.playback.pace_tps if ask.pace is None else ask.pace
        paced = wanted != "off" and ask.streams and not ask.tools
        pace = Pace(float(wanted), max_hold_s=preset.playback.max_hold_s or 1e-3) if paced else None
        terms = SessionConfig(
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.max_tokens,
            streams=ask.streams,
            may_migrate=ask.may_move,
            may_continue=features.may_migrate,
            pace_tps=None if pace is None else pace.tps,
            timeouts=Timeouts(connect_s=None, first_content_s=30.0, gap_s=15.0, total_s=ask.total_s),
            max_retries=ask.max_retries,
            may_be_empty=True,  # some of the drawn answers are
        )
        session = Session(plan, candidates, terms, Playback(pace), self.answers, watch, reservation)
        player = _Reader(
            session,
            _Scripts(self.setting, ask),
            shared=self.shared,
            devices={"device": self.device},
            cancel_takes_s=ask.cancel_takes_s,
        )

        def closed(now: float) -> None:
            watch.close()
            if reservation is not None:
                reservation.close(now)
            record = make_record(session, settle_accounts(session), preset=preset.name)
            self.kept[ask.row] = {
                "record": projected(record.to_dict(timelines=True)),
                "text_crc32": zlib.crc32(session.transcript.text.encode()),
                "error": None if session.error is None else type(session.error).__name__,
            }

        player.on_closed = closed
        return player


# Rules changed on purpose, to see that the digests notice: a name of this module, and what stands in its place.
MUTATIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "migration margin": ("SessionConfig", partial(SessionConfig, margin=1.5)),
    "breaker": ("Health", partial(Health, BreakerConfig(failures=4.0))),
    "playback rate": ("Pace", lambda tps, max_hold_s, made=Pace: made(tps * 1.02, max_hold_s)),
    "longest hold": ("Pace", lambda tps, max_hold_s, made=Pace: made(tps, max_hold_s * 1.1)),
    "price of cached tokens": (
        "Rates",
        lambda cost_in, cost_out, _, made=Rates: made(cost_in, cost_out, 0.9),
    ),
    "queue at the device": ("SharedDevice", lambda made=SharedDevice, **given: made(**{**given, "slots": 2})),
}
