"""Once this is imported, the helpers of the tests can be, too."""

import sys
from pathlib import Path

sys.path[1:1] = [
    str(Path(__file__).parents[2] / name)
    for name in ("support/servers", "support", "cancellation", ".", "..")
]
