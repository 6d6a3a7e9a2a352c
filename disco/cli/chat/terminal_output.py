"""prompt_toolkit's output, and when a terminal is good enough for it."""

from __future__ import annotations

import sys

from prompt_toolkit.output import Output
from prompt_toolkit.utils import is_dumb_terminal

__all__ = ["can_draw", "terminal_output"]


def can_draw() -> bool:
    """Whether standard input and output are a terminal that can move its cursor."""
    return all(one is not None and one.isatty() for one in (sys.stdin, sys.stdout)) and not is_dumb_terminal()


def terminal_output() -> Output:
    """Return the output for standard output."""
    if sys.platform == "win32":
        from prompt_toolkit.output import create_output  # noqa: PLC0415 - only here

        return create_output()
    from prompt_toolkit.output.color_depth import ColorDepth  # noqa: PLC0415 - as below
    from prompt_toolkit.output.vt100 import Vt100_Output  # noqa: PLC0415 - not on Windows

    class WithoutQuestions(Vt100_Output):
        """Never asks the terminal where its cursor is.

        The reply would come between the user's keys, late on a slow line, and some terminals give none. It is only
        needed to draw the status line at the bottom of an empty window; so it is drawn right below the text.
        """

        @property
        def responds_to_cpr(self) -> bool:
            return False

        def get_rows_below_cursor_position(self) -> int:
            return 1

    return WithoutQuestions.from_pty(sys.stdout, default_color_depth=ColorDepth.from_env())  # of NO_COLOR
