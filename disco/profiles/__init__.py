"""Profiles of endpoints and workloads: distributions, fits, and the files in which they are stored."""

from disco.profiles.adaptive_rolling import AdaptiveRolling
from disco.profiles.length_distribution import Lengths
from disco.profiles.line_fit import LinearFit, RollingLine, fit_line
from disco.profiles.price_lookup import ASSUMED, STALE_AFTER_DAYS, KnownPrice, PriceTables, basis_of
from disco.profiles.price_table import Price, PriceTable, ProviderPrices
from disco.profiles.profile_store import (
    available_profiles,
    load_device,
    load_lengths,
    load_paper_prices,
    load_prices,
    load_profile,
    load_server,
    save_profile,
    user_profile_dir,
)
from disco.profiles.profile_types import (
    DeviceProfile,
    Energy,
    FlopsPerToken,
    LengthsProfile,
    Profile,
    QuantileTable,
    ServerProfile,
)
from disco.profiles.rolling_distribution import Rolling
from disco.profiles.time_distribution import Empirical
from disco.profiles.told_times import trust, with_told
from disco.profiles.upper_tail import UpperTail

__all__ = [
    "ASSUMED",
    "STALE_AFTER_DAYS",
    "AdaptiveRolling",
    "DeviceProfile",
    "Empirical",
    "Energy",
    "FlopsPerToken",
    "KnownPrice",
    "Lengths",
    "LengthsProfile",
    "LinearFit",
    "Price",
    "PriceTable",
    "PriceTables",
    "Profile",
    "ProviderPrices",
    "QuantileTable",
    "Rolling",
    "RollingLine",
    "ServerProfile",
    "UpperTail",
    "available_profiles",
    "basis_of",
    "fit_line",
    "load_device",
    "load_lengths",
    "load_paper_prices",
    "load_prices",
    "load_profile",
    "load_server",
    "save_profile",
    "trust",
    "user_profile_dir",
    "with_told",
]
