"""Reading and writing traces: disco's own record format, public workloads, benchmark output."""

from disco.replay.formats.adapter import Adapter
from disco.replay.formats.problems import Skipped
from disco.replay.formats.read import Chunks, read_chunks, read_trace
from disco.replay.formats.registry import AUTO, FORMATS
from disco.replay.formats.write import write_trace

__all__ = [
    "AUTO",
    "FORMATS",
    "Adapter",
    "Chunks",
    "Skipped",
    "read_chunks",
    "read_trace",
    "write_trace",
]
