"""A laptop's day: plugged in, on battery, low, asleep, offline and metered, with and without [power]."""

from papers.day.day_run import DayResult, run_day
from papers.day.day_schedule import DAY, Phase
from papers.day.day_tables import day_tables

__all__ = ["DAY", "DayResult", "Phase", "day_tables", "run_day"]
