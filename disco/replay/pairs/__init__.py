"""A drafter and a verify server as one endpoint of a replay; the machine of rounds is the one that runs live."""

from disco.replay.pairs.pair_file import load_pair
from disco.replay.pairs.simulated_pair import Pair

__all__ = ["Pair", "load_pair"]
