"""How a server is made to continue a half-written answer: methods, rendering, the seam, and the probe."""

from disco.endpoints.continuation.methods import LADDER, Call, Continuation, Method
from disco.endpoints.continuation.probe import Outcome, ProbeVerdict, probe
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.endpoints.continuation.seam import Seam, SeamMismatchError

__all__ = [
    "LADDER",
    "Call",
    "CannotContinueError",
    "Continuation",
    "Method",
    "Outcome",
    "ProbeVerdict",
    "Seam",
    "SeamMismatchError",
    "probe",
]
