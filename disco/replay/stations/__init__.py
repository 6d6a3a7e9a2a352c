"""Replay on any number of endpoints.

`replay.workload.scenario` and its evaluators handle one device and one server.
"""

from disco.replay.stations.as_live import AsLive
from disco.replay.stations.station import Station
from disco.replay.stations.station_outcome import StationOutcome
from disco.replay.stations.station_planning import PlanFunction, Planner
from disco.replay.stations.station_simulator import simulate_stations
from disco.replay.stations.station_workload import KnownTimes, StationWorkload, resolve_stations

__all__ = [
    "AsLive",
    "KnownTimes",
    "PlanFunction",
    "Planner",
    "Station",
    "StationOutcome",
    "StationWorkload",
    "resolve_stations",
    "simulate_stations",
]
