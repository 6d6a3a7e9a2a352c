"""What is known about endpoints and workloads: distributions, fits, and the files they are kept in."""

from disco.profiles.distributions import Empirical
from disco.profiles.fit import LinearFit, RollingLine, fit_line
from disco.profiles.lengths import Lengths
from disco.profiles.model import (
    DeviceProfile,
    Energy,
    FlopsPerToken,
    LengthsProfile,
    Price,
    PriceTable,
    Profile,
    QuantileTable,
    ServerProfile,
)
from disco.profiles.rolling import Rolling
from disco.profiles.store import (
    available_profiles,
    load_device,
    load_lengths,
    load_prices,
    load_profile,
    load_server,
    save_profile,
    user_profile_dir,
)

__all__ = [
    "DeviceProfile",
    "Empirical",
    "Energy",
    "FlopsPerToken",
    "Lengths",
    "LengthsProfile",
    "LinearFit",
    "Price",
    "PriceTable",
    "Profile",
    "QuantileTable",
    "Rolling",
    "RollingLine",
    "ServerProfile",
    "available_profiles",
    "fit_line",
    "load_device",
    "load_lengths",
    "load_prices",
    "load_profile",
    "load_server",
    "save_profile",
    "user_profile_dir",
]
