"""What an application's logs, traces and metrics are told about answers: numbers and names, never text."""

from typing import TYPE_CHECKING

from disco._moved import former_names
from disco.telemetry.record_facts import RequestFacts
from disco.telemetry.reporter import AnswerReport, OnRoute, Reporter

__all__ = ["AnswerReport", "OnRoute", "Reporter", "RequestFacts"]

if not TYPE_CHECKING:  # a type checker finds the former names
    __getattr__ = former_names("telemetry")
