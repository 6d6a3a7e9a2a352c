"""What an application's logs, traces and metrics are told about answers: numbers and names, never text."""

from disco.telemetry.record_facts import Asked
from disco.telemetry.reporter import OnRoute, Report, Reporter

__all__ = ["Asked", "OnRoute", "Report", "Reporter"]
