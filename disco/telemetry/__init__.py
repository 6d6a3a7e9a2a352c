"""Logs, traces and metrics of answers: numbers and names, never text."""

from disco.telemetry.record_facts import RequestFacts
from disco.telemetry.reporter import AnswerReport, OnRoute, Reporter

__all__ = ["AnswerReport", "OnRoute", "Reporter", "RequestFacts"]
