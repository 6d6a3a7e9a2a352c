"""What the live page is told of models, endpoints and budgets: as they are now."""

from __future__ import annotations

from typing import Any

from disco.client import AsyncDisco
from disco.server.live_page.live_board import LiveBoard, Sums
from disco.server.named_models import NamedModels

__all__ = ["model_states"]


def model_states(models: NamedModels, board: LiveBoard, now: float, unix_s: float) -> list[dict[str, Any]]:
    """Return each model with its endpoints and budgets, ready for JSON. No addresses: they may hold secrets.

    Args:
        models: those of the server.
        board: has the sums so far.
        now: on the event loop's clock, s.
        unix_s: the same moment, Unix time, s.
    """
    only = models.only_client
    if only is not None:
        return [{"name": None, **_state(only, "", "", board, now, unix_s)}]
    return [
        {
            "name": m.name,
            "default": m.name == models.default,
            **_state(m.client, m.name, m.model, board, now, unix_s),
        }
        for m in models.named
    ]


def _state(
    client: AsyncDisco, name: str, asked: str, board: LiveBoard, now: float, unix_s: float
) -> dict[str, Any]:
    router = client.router
    members = router.endpoints.members(client.server)
    watch = router.watch(members, asked)
    resting, probing = watch.look(now, [m.name for m in members if not m.endpoint.has_route])
    endpoints = []
    for member in members:
        rest = resting.get(member.name)
        able = member.endpoint.capabilities(asked)
        state = "probed" if member.name in probing else "ready" if able.ready else "not loaded"
        sums = board.sums.get((name, member.name), Sums())
        endpoints.append(
            {
                "name": member.name,
                "model": member.answers_with(asked) or None,
                "reach": member.endpoint.reach,
                "standby": member.standby,
                "state": state if rest is None else rest.reason,
                "failure": None if rest is None else rest.failure,
                "for_s": None if rest is None or rest.for_s is None else round(rest.for_s, 1),
                "waiting": able.waiting,
                "answers": sums.answers,
                "tokens": sums.tokens,
                "bill_usd": sums.bill_usd,
                "device_energy_j": sums.device_energy_j,
                "losers_usd": sums.losers_usd,
            }
        )
    budgets = []
    for limit in router.preset.limits.budgets:
        counter = router.limiter.counter(limit)
        budgets.append(
            {
                "limit": limit.name,
                "unit": limit.unit,
                "amount": limit.amount,
                "left": counter.amount(counter.left(unix_s)),
                **limit.period,
                "account": limit.account,
            }
        )
    return {"preset": router.preset.name, "endpoints": endpoints, "budgets": budgets}
