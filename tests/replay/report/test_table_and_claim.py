"""Tables and claims as programs of others print them."""

from __future__ import annotations

import io

from disco.cli.console import Screen
from disco.replay import Claim, Table, claim_table

TABLE = Table(
    "Figure 6: mean TTFT",
    ("server", "s"),
    (("a\x1b[2Jb", "1.5"), ("c", "10.25")),
    ("Over budgets.", "By hand."),
)


def test_a_table_is_printed_as_the_commands_print_it():
    """Numbers to the right, notes below, and nobody's control characters."""
    own, theirs = io.StringIO(), io.StringIO()
    TABLE.print(own)
    screen = Screen(theirs)
    screen.table(TABLE.title, TABLE.header, [("a\N{REPLACEMENT CHARACTER}[2Jb", "1.5"), ("c", "10.25")])
    for note in TABLE.notes:
        screen.line(note, style="dim")
    screen.line()
    assert own.getvalue() == theirs.getvalue()
    assert "│   1.5 │" in own.getvalue()
    assert "\x1b" not in own.getvalue()
    wide = Table("", tuple("abcdefgh"), (("x" * 30,) * 8,))
    wide.print(out := io.StringIO())
    assert "x" * 30 in out.getvalue(), "a file has no width limit"


def test_a_claim_says_whether_it_holds_and_why():
    faster = Claim("HAT is faster", "-20 %", "-18 %", holds=True, reason="2 points off on average")
    seam = Claim("the seam is not seen", ours="0.4 s", reason="see Table 3", place="Figure 7c")
    many = Claim.checked("a higher tier is better", [("cnn", True), ("wmt", False), ("sst", False)])
    assert faster.verdict == "holds: 2 points off on average"
    assert seam.verdict == "see Table 3"
    assert (many.verdict, many.ours, many.held, many.cases) == ("does not hold", "in 1 of 3", 1, 3)
    assert Claim.checked("nothing to check", []).holds is None
    found = claim_table("Claims", [faster, seam, many], notes=("By hand.",))
    assert found.header == ("where", "claim", "printed", "here", "verdict", "but not")
    assert found.rows[2] == ("", "a higher tier is better", "", "in 1 of 3", "does not hold", "wmt, sst")
    assert claim_table("Claims", [faster]).header == ("claim", "printed", "here", "verdict")
