"""A comparison in words and tables: what happened, what would have happened, and how that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from disco import amounts
from disco.amounts import plural
from disco.replay.metrics.intervals import Figure
from disco.replay.report.advice import ENOUGH_REQUESTS, NOTICED, NOTICED_S
from disco.replay.report.findings import number
from disco.replay.report.table import Table
from disco.replay.shadow.shadow_figures import Comparison, Side
from disco.session.records.shadow_record import BASES, Basis

__all__ = ["notes", "sentence", "tables", "verdict"]

_SOME = 0.05  # of the answers: from there on it shows in the mean
_MANY = 2.0  # times as much: from there on it is said so, and not in percent
_NOTHING_S = 5e-4  # a smaller difference of first words is called none


def sentence(one: Comparison) -> str:
    """Return the finding: cost and first word under the other preset, and what of that is measured."""
    cost, ttft = one.cost_ratio, one.ttft_mean_s
    parts = []
    if math.isnan(cost.mean):
        parts.append(f"would have cost {number(one.other.cost_usd * 1000)} USD per 1,000")
    else:
        parts.append(f"would have cost {_change(cost)}")
    head = f"Under {one.shadow!r}, {plural(one.answers, 'answer')} {parts[0]}"
    if one.is_cascade:
        first = f"{head} if none of them rose; the first tier's first word comes {_later(ttft)}, its verdict after that"
        if one.rises is None or one.rise_usd is None:
            return f"{first}. How many would have risen is not known: no scores were asked for."
        more = one.other.cost_usd + one.rise_usd
        return (
            f"{first}. With the {_percent(one.rises)} of each tier that its rule hands up: about "
            f"{number(more * 1000)} USD per 1,000 answers instead of {number(one.real.cost_usd * 1000)} (expected)."
        )
    least = "at least " if one.least > _SOME and ttft.mean > 0 else ""
    return f"{head}, first word {least}{_later(ttft)} ({_how_known(one.ttft_from)})."


def tables(one: Comparison) -> list[Table]:
    """Return the figures of both presets, and how each number is known."""
    real, other = one.real, one.other
    title = (
        f"{one.preset} as it was, and {one.shadow} as it would have been · {plural(one.answers, 'answer')}"
    )
    rows = (
        (
            "first token, mean s",
            number(real.ttft_mean_s),
            number(other.ttft_mean_s),
            _signed(one.ttft_mean_s),
        ),
        ("first token, P50 s", number(real.ttft_p50_s), number(other.ttft_p50_s), _signed(one.ttft_p50_s)),
        ("first token, P99 s", number(real.ttft_p99_s), number(other.ttft_p99_s), _signed(one.ttft_p99_s)),
        ("USD per 1,000 answers", _usd(real), _usd(other), _times(one.cost_ratio)),
        ("starts per answer", number(real.starts), number(other.starts), ""),
        ("answers that migrated", _percent(real.moved), _percent(other.moved), ""),
        *(
            (f"first token by {name}", _percent(share), _percent(other.first.get(name, 0.0)), "")
            for name, share in real.first.items()
        ),
    )
    known = tuple(
        (name, *(_percent(shares[basis]) for basis in BASES))
        for name, shares in (("first token", one.ttft_from), ("cost", one.cost_from))
    )
    return [
        Table(title, ("", one.preset, one.shadow, "difference [95 %]"), rows),
        Table("Where the numbers of the other preset come from", ("", *BASES), known),
    ]


def notes(one: Comparison) -> list[str]:
    """Return what a reader must know about the figures."""
    differ = one.differ
    where = ", ".join(
        f"{differ.get(name, 0):,} in {words}"
        for name, words in (
            ("starts", "their starts"),
            ("migrations", "their migrations"),
            ("pace_tps", "the reader's pace"),
        )
    )
    out = [f"Plans that differ: {differ['any']:,} of {one.answers:,} ({where})."]
    if not math.isnan(one.run_ttft_s):
        cost = (
            ""
            if math.isnan(one.run_cost)
            else f", their cost is {_percent(one.run_cost)} of what was charged"
        )
        out.append(
            f"Check: the real plans, run in the same way, have their first token {one.run_ttft_s:+.3f} s from when it "
            f"came{cost}."
        )
    if one.least > 0:
        out.append(
            f"In {_percent(one.least)} of the answers the endpoint was stopped before its first token, later than any "
            "time that is known of it: its first token counts as of then, which is too early. Record some answers that "
            "it gives alone."
        )
    if one.ttft_from["assumed"] > 0:
        out.append(
            f"{_percent(one.ttft_from['assumed'])} of the first tokens rest on a profile that nothing has confirmed: "
            "ask the endpoint that was never asked a few times, and record again."
        )
    return out


def verdict(one: Comparison) -> list[str]:
    """Return whether to change to the other preset, in sentences, and what the recording does not say.

    A difference counts where it is large enough to be noticed and its whole interval says so.
    """
    lacks = _lacks(one)
    spent, would = (number(side.cost_usd * one.answers) for side in (one.real, one.other))
    cost = "nothing either way" if math.isnan(one.cost_ratio.mean) else _change(one.cost_ratio)
    what = (
        f"it would have cost {cost}, {would} USD instead of {spent} USD over {plural(one.answers, 'answer')}, with "
        f"the first word {_later(one.ttft_mean_s)}"
    )
    if lacks:
        return [
            f"This recording does not say whether to change to {one.shadow!r}. As far as it goes, {what}.",
            *lacks,
        ]
    changes = [_is_certain(one.cost_ratio, 1.0, NOTICED), _is_certain(one.ttft_mean_s, 0.0, NOTICED_S)]
    worse = 1 in (*changes, _is_certain(one.ttft_p99_s, 0.0, NOTICED_S))
    if -1 in changes and not worse:
        return [f"Change to {one.shadow!r}: {what}."]
    if worse:
        return [f"Keep {one.preset!r}. Of {one.shadow!r}: {what}."]
    return [
        f"Keep {one.preset!r}: under {one.shadow!r} no difference is certain and large enough to notice; {what}."
    ]


def _is_certain(figure: Figure, same: float, least: float) -> int:
    """Return 1 where a figure is noticeably above `same` and its interval, too; -1 where below; else 0."""
    if figure.mean > same + least and figure.low > same:
        return 1
    return -1 if figure.mean < same - least and figure.high < same else 0


def _lacks(one: Comparison) -> list[str]:
    """Return what is not known, and what would help."""
    out = []
    if one.answers < ENOUGH_REQUESTS:
        out.append(
            f"{plural(one.answers, 'answer')} {'says' if one.answers == 1 else 'say'} little: record at least "
            f"{ENOUGH_REQUESTS}, better some hundred."
        )
    if one.ttft_from["assumed"] > _SOME:
        out.append(
            f"{_percent(one.ttft_from['assumed'])} of its first words rest on times that are only assumed: record some "
            "answers of the endpoint that was hardly asked."
        )
    if one.least > _SOME:
        out.append(
            f"In {_percent(one.least)} of the answers its endpoint was stopped before it wrote: record some answers "
            "that this endpoint gives alone."
        )
    if one.is_cascade:
        out.append(
            "Which answers a judge would have handed up is not known: record some under the cascade itself."
        )
    return out


def _how_known(shares: Mapping[Basis, float]) -> str:
    parts = [f"{_percent(shares[basis])} {basis}" for basis in BASES if shares[basis] > 0]
    return ", ".join(parts)


def _change(ratio: Figure) -> str:
    low, value, high = (one - 1.0 for one in (ratio.low, ratio.mean, ratio.high))
    if ratio.mean >= _MANY:
        few, many = (amounts.number(float(f"{bound:.2g}")) for bound in (ratio.low, ratio.high))
        return f"{amounts.compared(ratio.mean)} ({few} to {many} times)"
    if abs(value) < 0.005:
        return f"the same ({_percent(low, signed=True)} to {_percent(high, signed=True)})"
    if value < 0:
        return f"{_percent(-value)} less ({_percent(-high)} to {_percent(-low)})"
    return f"{_percent(value)} more ({_percent(low)} to {_percent(high)})"


def _later(ttft: Figure) -> str:
    if abs(ttft.mean) < _NOTHING_S:
        return "at the same time"
    if ttft.mean > 0:
        return f"{ttft.mean:.2f} s later ({ttft.low:.2f} to {ttft.high:.2f})"
    return f"{-ttft.mean:.2f} s earlier ({-ttft.high:.2f} to {-ttft.low:.2f})"


def _signed(figure: Figure) -> str:
    return f"{figure.mean:+.3f} [{figure.low:+.3f}, {figure.high:+.3f}]"


def _times(ratio: Figure) -> str:
    if math.isnan(ratio.mean):
        return "–"
    return f"{ratio.mean:.3f}× [{ratio.low:.3f}, {ratio.high:.3f}]"


def _usd(side: Side) -> str:
    return number(side.cost_usd * 1000)


def _percent(share: float, *, signed: bool = False) -> str:
    text = f"{share * 100:+.0f} %" if signed else f"{share * 100:.0f} %"
    return text.replace("-", "−")
