"""Logs, traces and metrics of answers: numbers and names, never text."""

from typing import TYPE_CHECKING

from disco._moved import former_names
from disco.telemetry.record_facts import RequestFacts
from disco.telemetry.reporter import AnswerReport, OnRoute, Reporter

__all__ = ["AnswerReport", "OnRoute", "Reporter", "RequestFacts"]

if not TYPE_CHECKING:  # type checkers find the former names
    __getattr__ = former_names("telemetry")
