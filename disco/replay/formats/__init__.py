"""Readers and writers of traces: disco's own record format, public workloads, benchmark output."""

from disco.record.left_out import Skipped
from disco.replay.formats.format_adapter import Adapter
from disco.replay.formats.format_registry import AUTO, FORMATS
from disco.replay.formats.reader import TraceChunks, read_chunks, read_trace
from disco.replay.formats.writer import write_trace

__all__ = [
    "AUTO",
    "FORMATS",
    "Adapter",
    "Skipped",
    "TraceChunks",
    "read_chunks",
    "read_trace",
    "write_trace",
]
