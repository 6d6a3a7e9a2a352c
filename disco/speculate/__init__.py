"""Rounds of drafting and verifying: the state machine, windows, estimates and messages; no I/O, no clock."""

from disco.speculate.chunks import (
    CloudMonitor,
    Reply,
    SplitPath,
    ahead_steps,
    equation3,
    makespan_chunk,
    prompt_s,
)
from disco.speculate.coupled import gumbel_noise
from disco.speculate.estimates import Acceptance, Smoothed
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve
from disco.speculate.windows.catalog import WINDOWS, window_of
from disco.speculate.windows.contract import Window
from disco.speculate.windows.network import INPUTS, Block, Network, inputs_of
from disco.speculate.windows.simple import Static

__all__ = [
    "INPUTS",
    "WINDOWS",
    "Acceptance",
    "Block",
    "CloudMonitor",
    "Network",
    "Reply",
    "Seen",
    "Smoothed",
    "SplitPath",
    "Static",
    "VerifyCurve",
    "Window",
    "ahead_steps",
    "equation3",
    "gumbel_noise",
    "inputs_of",
    "makespan_chunk",
    "prompt_s",
    "token_s",
    "window_of",
]
