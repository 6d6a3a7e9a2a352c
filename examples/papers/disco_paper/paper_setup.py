"""The paper's set-up: endpoints, prices and requests of the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from disco.cost import (
    PAPER_DEVICE_CONSTRAINED,
    PAPER_SERVER_CONSTRAINED,
    ExchangeRate,
)
from disco.dispatch import Regime
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, ServerProfile, load_device, load_paper_prices, load_server
from disco.replay import Scenario, scenario_for

__all__ = [
    "BUDGETS",
    "DEVICES",
    "MAX_TOKENS",
    "PACE_TPS",
    "REGIMES",
    "SERVERS",
    "Pair",
    "Server",
    "pairs",
]

BUDGETS: Final = tuple(step / 10 for step in range(11))
MAX_TOKENS: Final = 128
PACE_TPS: Final = 4.8

REGIMES: Final[tuple[Regime, Regime]] = ("server-constrained", "device-constrained")
_EXCHANGE: Final[Mapping[Regime, ExchangeRate]] = MappingProxyType(
    {"server-constrained": PAPER_SERVER_CONSTRAINED, "device-constrained": PAPER_DEVICE_CONSTRAINED}
)
_POLICY: Final[Mapping[Regime, str]] = MappingProxyType(
    {"server-constrained": "length_threshold", "device-constrained": "wait_time"}
)

DEVICES: Final[Mapping[str, str]] = MappingProxyType(
    {"B-1.1B": "pixel7pro-bloom-1.1b", "B-560M": "pixel7pro-bloom-560m", "Q-0.5B": "xiaomi14-qwen1.5-0.5b"}
)
"""The paper's names for its devices, and our profiles of them, which hold the printed rates."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the paper, and the profile used for it: none of the paper's own traces is public.

    Attributes:
        key: the server's name in the paper's tables.
        profile: name of a shipped profile.
        price: name in the price table, which holds the paper's prices.
        what: description of the profile, for tables.
    """

    key: str
    profile: str
    price: str
    what: str


SERVERS: Final = (
    Server(
        "GPT",
        "gpt-4.1-nano-2026",
        "gpt-4o-mini",
        "stand-in for GPT-4o-mini: OpenAI's gpt-4.1-nano, January 2026, 769 requests",
    ),
    Server(
        "LLaMA",
        "llama-2-70b-together-2023",
        "llama-3.1-70b-hyperbolic",
        "stand-in for LLaMA-3-70b on Hyperbolic: Llama-2-70b on Together, December 2023, 150 requests",
    ),
    Server(
        "DeepSeek",
        "deepseek-v3-2025",
        "deepseek-v2.5",
        "the real DeepSeek API, V3 for V2.5: January 2025, 3,159 requests; 50 tokens/s assumed",
    ),
    Server(
        "Command",
        "llama-2-70b-anyscale-2023",
        "command",
        "stand-in for Command (no public trace): Llama-2-70b on Anyscale, December 2023, 150 requests",
    ),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A device and a server in one of the two regimes.

    Attributes:
        device, server: the paper's names.
        scenario: the endpoints with their prices, labelled with the regime.
    """

    device: str
    server: str
    scenario: Scenario

    @property
    def regime(self) -> Regime:
        """The regime as labelled in the paper."""
        return self.scenario.regime

    @property
    def policy(self) -> str:
        """DiSCo's policy in this regime: DiSCo-S or DiSCo-D."""
        return _POLICY[self.regime]

    @property
    def prices_say(self) -> Regime:
        """The regime that follows from the prices, without the label."""
        return replace(self.scenario, labelled=None).regime


def pairs(servers: Mapping[str, ServerProfile] | None = None) -> tuple[Pair, ...]:
    """Return the pairs: 3 devices × 4 servers × 2 regimes.

    Args:
        servers: profiles to use instead of the shipped ones, by the paper's name of the server.

    Raises:
        ConfigurationError: a name that no server of the paper has.
    """
    others = dict(servers or {})
    known = [server.key for server in SERVERS]
    if unknown := sorted(others.keys() - set(known)):
        raise ConfigurationError(
            f"the paper has no server called {unknown[0]!r}; its servers are {', '.join(known)}"
        )
    made = []
    for server in SERVERS:
        profile = others.get(server.key) or load_server(server.profile)
        for regime in REGIMES:
            for key, device in DEVICES.items():
                scenario = _scenario(load_device(device), profile, server.price, regime)
                made.append(Pair(key, server.key, replace(scenario, name=f"{key} × {server.key}")))
    return tuple(made)


def _scenario(device: DeviceProfile, server: ServerProfile, price: str, regime: Regime) -> Scenario:
    scenario = scenario_for(
        device,
        server,
        exchange_rate=_EXCHANGE[regime],
        price=load_paper_prices().price(price),
        max_tokens=MAX_TOKENS,
        pace_tps=PACE_TPS,
    )
    return replace(scenario, labelled=regime)
