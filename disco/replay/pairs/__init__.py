"""Endpoints of a replay that are made of parts: a drafter and a verify server, or a model cut in two.

The machine of rounds is the one that runs live.
"""

from disco.replay.pairs.pair_file import load_pair
from disco.replay.pairs.simulated_pair import Pair
from disco.replay.pairs.simulated_split import Split

__all__ = ["Pair", "Split", "load_pair"]
