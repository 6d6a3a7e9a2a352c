"""The state of this machine: battery, clock, load and network, as far as the platform tells."""

from disco.power.readings import UNKNOWN, PowerReadings
from disco.power.sensors import MachineSensors, Sensors, has_sensors

__all__ = ["UNKNOWN", "MachineSensors", "PowerReadings", "Sensors", "has_sensors"]
