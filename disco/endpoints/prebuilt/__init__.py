"""A model on this machine, run by llama.cpp's own server out of a wheel: no compiler is needed."""

from __future__ import annotations

from disco.endpoints.prebuilt.prebuilt_endpoint import PrebuiltEndpoint

__all__ = ["PrebuiltEndpoint"]
