"""Former names of modules and classes. Each still works in this version; a `DeprecationWarning` names the new one.

The next version drops this file.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["CLASSES", "MODULES", "former_names", "install"]

MODULES = {
    "cli.chaos": "cli.demonstration.chaos",
    "cli.demo": "cli.demonstration.demo",
    "cli.local_server": "cli.demonstration.demo_server",
    "cli.measure": "cli.profile",
    "cli.options": "cli.replay_options",
    "cli.output": "cli.output_files",
    "cli.paper": "cli.replay_paper",
    "cli.parse": "cli.option_types",
    "cli.screen": "cli.console",
    "cli.shaper": "cli.demonstration.shaping_proxy",
    "cli.situation": "cli.scenario_options",
    "cli.stage": "cli.demonstration.scene",
    "client.background_tasks": "endpoints.background_tasks",
    "client.backup_server": "client.endpoint_catalog.backup_server",
    "client.backups": "client.endpoint_catalog.backups",
    "client.catalog": "client.endpoint_catalog.catalog",
    "client.chunks": "client.chat.chat_chunks",
    "client.completions": "client.chat.completions",
    "client.driver": "client.live_driver",
    "client.helper_events": "client.chat.helper_events",
    "client.host": "endpoints.background_tasks",
    "client.local_servers": "client.endpoint_catalog.local_servers",
    "client.options": "client.request_options",
    "client.parsed": "client.chat.object_stream",
    "client.portal": "client.sync.portal",
    "client.responses_in": "client.responses.responses_request",
    "client.responses_out": "client.responses.responses_reply",
    "client.routed": "client.chat.routed_request",
    "client.statistics": "client.endpoint_catalog.observed.statistics",
    "client.stream": "client.chat.answer_stream",
    "client.sync_client": "client.sync.sync_client",
    "client.sync_http": "client.sync.sync_calls",
    "client.sync_stream": "client.sync.sync_stream",
    "client.wire": "client.chat.http_encoding",
    "cost.bounds": "cost.token_bounds",
    "cost.governor": "cost.budget_limiter",
    "cost.purse": "cost.budget_reservation",
    "cost.unified": "cost.unified_cost",
    "dispatch.base": "dispatch.policies.policy",
    "dispatch.breaker": "dispatch.breakers.circuit_breaker",
    "dispatch.eligible": "dispatch.eligibility",
    "dispatch.features": "dispatch.request_features",
    "dispatch.fixed": "dispatch.policies.baselines",
    "dispatch.health": "dispatch.breakers.endpoint_health",
    "dispatch.length_threshold": "dispatch.policies.length_threshold",
    "dispatch.optimal_plan": "dispatch.planners.optimal_plan",
    "dispatch.optimal_wait": "dispatch.policies.optimal_wait",
    "dispatch.random_split": "dispatch.policies.random_split",
    "dispatch.ranks": "dispatch.planners.rank_selection",
    "dispatch.registry": "dispatch.policies.policy_registry",
    "dispatch.server_times": "dispatch.planners.ttft_integral",
    "dispatch.shares": "dispatch.planners.token_shares",
    "dispatch.wait_time": "dispatch.policies.wait_time",
    "dispatch.waits": "dispatch.planners.wait_quantiles",
    "endpoints.base": "endpoints.contract",
    "endpoints.continuation.ladder": "endpoints.continuation.methods",
    "endpoints.continuation.templates": "endpoints.continuation.rendering",
    "endpoints.continuation.token_ids": "endpoints.continuation.prefix_token_ids",
    "endpoints.gguf": "endpoints.gguf_header",
    "endpoints.llamacpp.attempt": "endpoints.llamacpp.llamacpp_attempt",
    "endpoints.llamacpp.backoff": "endpoints.llamacpp.runtime.restart_backoff",
    "endpoints.llamacpp.calls": "endpoints.llamacpp.tool_calls.call_stream",
    "endpoints.llamacpp.chat_template": "endpoints.chat_template",
    "endpoints.llamacpp.endpoint": "endpoints.llamacpp.llamacpp_endpoint",
    "endpoints.llamacpp.files": "endpoints.llamacpp.model.model_files",
    "endpoints.llamacpp.generation": "endpoints.llamacpp.output.generation",
    "endpoints.llamacpp.handover": "endpoints.llamacpp.runtime.thread_mailbox",
    "endpoints.llamacpp.healing": "endpoints.llamacpp.prompting.token_healing",
    "endpoints.llamacpp.job": "endpoints.llamacpp.runtime.job",
    "endpoints.llamacpp.measure": "endpoints.llamacpp.runtime.speed_benchmark",
    "endpoints.llamacpp.messages": "endpoints.llamacpp.prompting.template_messages",
    "endpoints.llamacpp.native": "endpoints.llamacpp.model.native",
    "endpoints.llamacpp.params": "endpoints.llamacpp.request_params",
    "endpoints.llamacpp.process": "endpoints.llamacpp.runtime.child_process",
    "endpoints.llamacpp.process_main": "endpoints.llamacpp.runtime.child_main",
    "endpoints.llamacpp.prompt": "endpoints.llamacpp.prompting.prompt_tokens",
    "endpoints.llamacpp.sampler": "endpoints.llamacpp.model.sampler",
    "endpoints.llamacpp.text": "endpoints.llamacpp.output.text_assembly",
    "endpoints.llamacpp.tool_forms": "endpoints.llamacpp.tool_calls.call_formats",
    "endpoints.llamacpp.tool_reader": "endpoints.llamacpp.tool_calls.call_parser",
    "endpoints.llamacpp.tools": "endpoints.llamacpp.tool_calls.tool_request",
    "endpoints.llamacpp.wire": "endpoints.llamacpp.runtime.child_protocol",
    "endpoints.llamacpp.worker": "endpoints.llamacpp.runtime.worker",
    "endpoints.local_server.about": "endpoints.local_server.server_info",
    "endpoints.local_server.attempt": "endpoints.local_server.local_attempt",
    "endpoints.local_server.endpoint": "endpoints.local_server.local_endpoint",
    "endpoints.local_server.prompt_cache": "endpoints.local_server.cache_estimate",
    "endpoints.local_server.turns": "endpoints.local_server.turn_queue",
    "endpoints.openai_api.attempt": "endpoints.openai_api.api_attempt",
    "endpoints.openai_api.chunks": "endpoints.openai_api.chunk_reader",
    "endpoints.openai_api.endpoint": "endpoints.openai_api.api_endpoint",
    "endpoints.openai_api.failures": "endpoints.openai_api.error_mapping",
    "endpoints.openai_api.mold": "endpoints.openai_api.chunk_template",
    "endpoints.openai_api.payload": "endpoints.openai_api.chunk_repair",
    "endpoints.openai_api.plain": "endpoints.openai_api.sdk_client",
    "endpoints.openai_api.transport": "endpoints.openai_api.http_transport",
    "endpoints.simulated": "endpoints.simulation.simulated_endpoint",
    "endpoints.simulated_script": "endpoints.simulation.simulated_script",
    "endpoints.simulated_text": "endpoints.simulation.simulated_text",
    "playback.boundaries": "playback.text_boundaries",
    "playback.items": "playback.queued_items",
    "playback.metrics": "playback.reader_metrics",
    "profiles.distributions": "profiles.time_distribution",
    "profiles.fit": "profiles.line_fit",
    "profiles.lengths": "profiles.length_distribution",
    "profiles.model": "profiles.profile_types",
    "profiles.rolling": "profiles.rolling_distribution",
    "profiles.store": "profiles.profile_store",
    "profiles.toml": "profiles.profile_toml",
    "replay.aim": "replay.tuning.objective",
    "replay.arms": "replay.vector.arm_delays",
    "replay.choice": "replay.tuning.preset_file",
    "replay.chunks": "replay.sweeps.chunked_sweep",
    "replay.delays": "replay.vector.policy_delays",
    "replay.device": "replay.simulator.device_queue",
    "replay.events": "replay.simulator.event_evaluator",
    "replay.executors": "replay.sweeps.executors",
    "replay.figures": "replay.metrics.per_seed",
    "replay.formats.adapter": "replay.formats.format_adapter",
    "replay.formats.assemble": "replay.formats.columns.assemble",
    "replay.formats.azure": "replay.formats.vendors.azure",
    "replay.formats.batches": "replay.formats.sources.batches",
    "replay.formats.burstgpt": "replay.formats.vendors.burstgpt",
    "replay.formats.cells": "replay.formats.columns.cells",
    "replay.formats.csv_source": "replay.formats.sources.csv_source",
    "replay.formats.features": "replay.formats.columns.extra_columns",
    "replay.formats.files": "replay.formats.sources.text_files",
    "replay.formats.json_source": "replay.formats.sources.json_source",
    "replay.formats.llmperf": "replay.formats.vendors.llmperf",
    "replay.formats.mooncake": "replay.formats.vendors.mooncake",
    "replay.formats.own": "replay.formats.vendors.own_format",
    "replay.formats.parquet_source": "replay.formats.sources.parquet_source",
    "replay.formats.pieces": "replay.formats.columns.trace_pieces",
    "replay.formats.problems": "replay.formats.columns.row_problems",
    "replay.formats.read": "replay.formats.reader",
    "replay.formats.registry": "replay.formats.format_registry",
    "replay.formats.routes": "replay.formats.vendors.route_records",
    "replay.formats.units": "replay.formats.unit_checks",
    "replay.formats.vllm": "replay.formats.vendors.vllm",
    "replay.formats.write": "replay.formats.writer",
    "replay.oracle": "replay.vector.oracle",
    "replay.outcome": "replay.metrics.outcome",
    "replay.paper": "replay.papers.disco",
    "replay.paper.curves": "replay.papers.disco.ttft_curves",
    "replay.paper.moves": "replay.papers.disco.migration_runs",
    "replay.paper.planning": "replay.papers.disco.planning_times",
    "replay.paper.printed": "replay.papers.disco.printed_figures",
    "replay.paper.requests": "replay.papers.disco.paper_requests",
    "replay.paper.result": "replay.papers.disco.paper_result",
    "replay.paper.run": "replay.papers.disco.paper_run",
    "replay.paper.setup": "replay.papers.disco.paper_setup",
    "replay.paper.tables": "replay.papers.disco.paper_tables",
    "replay.reading": "replay.simulator.reader_columns",
    "replay.recorded": "replay.workload.from_recording",
    "replay.report.data": "replay.report.report_data",
    "replay.report.figures": "replay.report.charts",
    "replay.report.machine_readable": "replay.report.json_report",
    "replay.report.page": "replay.report.html_page",
    "replay.report.plot": "replay.report.chart_style",
    "replay.report.terminal": "replay.report.terminal_tables",
    "replay.scenario": "replay.workload.scenario",
    "replay.stations.outcome": "replay.stations.station_outcome",
    "replay.stations.planning": "replay.stations.station_planning",
    "replay.stations.scripts": "replay.stations.station_scripts",
    "replay.stations.simulate": "replay.stations.station_simulator",
    "replay.stations.workload": "replay.stations.station_workload",
    "replay.summary": "replay.metrics.over_seeds",
    "replay.survey": "replay.workload.trace_survey",
    "replay.sweep": "replay.sweeps.sweep",
    "replay.synthetic": "replay.workload.synthetic",
    "replay.tally": "replay.metrics.running_tally",
    "replay.trace": "replay.workload.trace",
    "replay.tune": "replay.tuning.search",
    "replay.vectorised": "replay.vector.evaluator",
    "replay.virtual": "replay.simulator.virtual_driver",
    "server.body": "server.request_body",
    "server.desk": "server.admission",
    "server.errors": "server.api_errors",
    "server.guards": "server.access_guards",
    "server.metrics": "server.prometheus",
    "server.reply": "server.http_reply",
    "server.run": "server.serving",
    "session.allowance": "session.attempt.token_allowance",
    "session.answer_lengths": "session.switching.answer_lengths",
    "session.attempt_table": "session.attempt.attempt_table",
    "session.attempts": "session.attempt.attempt_state",
    "session.billing": "session.records.billing",
    "session.failover": "session.switching.failover_rule",
    "session.handover": "session.switching.migration",
    "session.migration": "session.switching.migration_rule",
    "session.record": "session.records.route_record",
    "session.recording": "session.records.record_writer",
    "session.takeover": "session.switching.failover",
    "session.terms": "session.session_config",
    "telemetry.facts": "telemetry.record_facts",
    "telemetry.instruments": "telemetry.otel_metrics",
    "telemetry.lines": "telemetry.log_lines",
    "telemetry.names": "telemetry.otel_names",
    "telemetry.otel": "telemetry.otel_setup",
    "telemetry.spans": "telemetry.otel_spans",
}
"""Former module -> module, both below `disco`."""

CLASSES = {
    "cli.demonstration.demo_server": {"LocalServer": "DemoServer", "LocalServerError": "DemoServerError"},
    "cli.demonstration.scene": {"Device": "DemoDevice"},
    "cli.scenario_options": {"Situation": "ScenarioOptions"},
    "client.chat.chat_chunks": {"Chunks": "ChatChunks"},
    "client.chat.helper_events": {
        "QuickManager": "StreamManager",
        "QuickState": "StreamState",
        "QuickSyncManager": "SyncStreamManager",
    },
    "client.endpoint_catalog.catalog": {"Member": "CatalogEntry"},
    "client.planning": {"View": "PlanningView"},
    "cost.budget_limiter": {"Governor": "BudgetLimiter", "Meter": "WindowCounter"},
    "cost.budget_reservation": {"Purse": "BudgetReservation"},
    "dispatch": {"Diffusion": "ErrorDiffusion", "Move": "Migration"},
    "dispatch.breakers.circuit_breaker": {"Patience": "BreakerConfig"},
    "dispatch.breakers.endpoint_health": {"Watch": "HealthWatch"},
    "dispatch.policies.policy": {"Diffusion": "ErrorDiffusion"},
    "endpoints.background_tasks": {"Host": "BackgroundTasks"},
    "endpoints.continuation": {"Verdict": "ProbeVerdict"},
    "endpoints.continuation.probe": {"Verdict": "ProbeVerdict"},
    "endpoints.llamacpp.runtime.worker": {"Worker": "ModelWorker"},
    "endpoints.llamacpp.tool_calls.call_formats": {"Form": "CallFormat"},
    "endpoints.llamacpp.tool_calls.call_parser": {"CallPiece": "CallDelta"},
    "endpoints.openai_api.chunk_template": {"ChunkMold": "ChunkTemplate", "MoldedChunk": "TemplateChunk"},
    "endpoints.simulation.simulated_script": {"Sampler": "DelaySampler"},
    "plan": {"Move": "Migration", "Rest": "CoolDown", "Withheld": "BudgetCut"},
    "playback.reader_metrics": {"Gaps": "ReaderGaps"},
    "replay.formats.reader": {"Chunks": "TraceChunks"},
    "replay.papers.disco.migration_runs": {"Moves": "MigrationRuns"},
    "replay.papers.disco.printed_figures": {"Handover": "PrintedHandover"},
    "replay.report.timeline": {"Stretch": "WrittenStretch"},
    "replay.simulator.device_queue": {"Device": "SharedDevice", "Worker": "DeviceWorker"},
    "replay.tuning.objective": {"Aim": "TuningObjective"},
    "replay.tuning.preset_file": {"Choice": "PresetChoice"},
    "server.admission": {"Desk": "AnswerLimiter"},
    "server.request_body": {"Asked": "ParsedBody"},
    "session.attempt.attempt_state": {"Outcome": "AttemptOutcome"},
    "session.parts": {"Parts": "SessionParts"},
    "session.race": {"Race": "StartRace"},
    "session.records.route_record": {
        "Contender": "CandidateRecord",
        "Pace": "LatencyRecord",
        "Piece": "SegmentRecord",
        "Transfer": "MigrationRecord",
        "Try": "AttemptRecord",
    },
    "session.session_config": {
        "Handover": "RunningMigration",
        "Terms": "SessionConfig",
        "Watch": "EndpointWatch",
    },
    "session.switching.failover": {"Succession": "FailoverControl"},
    "session.switching.failover_rule": {"View": "FailoverView"},
    "session.switching.migration": {"Mover": "MigrationControl"},
    "session.switching.migration_rule": {"Verdict": "MigrationVerdict"},
    "telemetry": {"Asked": "RequestFacts", "Report": "AnswerReport"},
    "telemetry.record_facts": {"Asked": "RequestFacts"},
    "telemetry.reporter": {"Report": "AnswerReport"},
}
"""Present module -> its renamed classes: former name -> present name."""


def former_names(module: str) -> Any:
    """Return a `__getattr__` that finds the renamed classes of a present module (below `disco`) by their former names.

    Raises:
        AttributeError: from the returned function, for any other name.
    """

    def getattribute(name: str) -> Any:
        new = CLASSES[module].get(name)
        if new is None:
            raise AttributeError(f"module 'disco.{module}' has no attribute {name!r}")
        warnings.warn(f"disco.{module}.{name} is now called {new}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(f"disco.{module}"), new)

    return getattribute


class _Moved(MetaPathFinder, Loader):
    """Finds modules under their former names."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if not fullname.startswith("disco.") or fullname.removeprefix("disco.") not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=fullname == "disco.replay.paper")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, f"Moved to disco.{MODULES[spec.name.removeprefix('disco.')]}.")

    def exec_module(self, module: ModuleType) -> None:
        new = MODULES[module.__name__.removeprefix("disco.")]
        warnings.warn(f"{module.__name__} is now disco.{new}", DeprecationWarning, stacklevel=2)
        today = importlib.import_module(f"disco.{new}")
        renamed: Mapping[str, str] = CLASSES.get(new, {})
        vars(module).update({name: value for name, value in vars(today).items() if not name.startswith("__")})
        vars(module).update({old: getattr(today, now) for old, now in renamed.items()})
        module.__all__ = getattr(today, "__all__", [])  # type: ignore[attr-defined]


def install() -> None:
    """Let Python find modules under their former names, where no module has that name."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
