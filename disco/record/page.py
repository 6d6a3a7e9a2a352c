"""The time line of an answer as a page of its own, with its marks, attempts and charges as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from disco.amounts import joules, money
from disco.cost import Charge
from disco.record.building import timeline_of
from disco.record.svg import draw_svg, title_of
from disco.record.words import mark_label, printable
from disco.session.records.route_record import AttemptRecord, RouteRecord

__all__ = ["timeline_html"]

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5b6470;--line:#d5d9de;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#a2abb5;--line:#343a41;--paper:#0f1215}}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
h1{font-size:1.4rem;margin:.5rem 0}h2{font-size:1.1rem;margin:1.5rem 0 .5rem}
.scroll{overflow-x:auto}.scroll svg{min-width:40rem}
table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
"""
Row = Sequence[str]
_ATTEMPT_COLUMNS: Final = (
    *("endpoint", "role", "outcome", "started, s", "first content, s", "ended, s"),
    *("tokens written", "in the answer", "bill", "energy", "policy cost"),
)


def timeline_html(record: RouteRecord, *, title: str | None = None) -> str:
    """Return a self-contained page with the time line of an answer: no script, nothing from elsewhere.

    Args:
        record: of the answer.
        title: its heading; by default who wrote the answer.
    """
    timeline, heading = timeline_of(record), title or title_of(record)
    marks = [
        (
            mark_label(n),
            f"{m.at_s:.3f}",
            "reader" if m.lane is None else timeline.lanes[m.lane].endpoint,
            m.text,
        )
        for n, m in enumerate(timeline.marks)
    ]
    attempts = [
        (
            a.endpoint,
            a.role.replace("_", " "),
            a.outcome.replace("_", " ") + ("" if a.failure is None else f" ({a.failure.replace('_', ' ')})"),
            *(_time(at) for at in (a.started_s, a.first_content_s, a.ended_s)),
            f"{a.tokens:,}",
            f"{a.kept_tokens:,}",
            *_spent(a),
        )
        for a in record.attempts
    ]
    charges = [
        (
            c.endpoint,
            c.phase.value.replace("_", " "),
            f"{c.prompt_tokens:,}",
            f"{c.cached_tokens:,}",
            f"{c.completion_tokens:,}",
            *_spent(c),
        )
        for c in record.ledger.charges
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(printable(heading))} · disco</title><style>{_STYLE.strip()}</style></head><body><main>",
            f"<h1>{escape(printable(heading))}</h1>",
            f'<div class="scroll">{draw_svg(timeline, "Time line", "answer")}</div>',
            "<h2>Marks</h2>",
            _table(("mark", "s", "lane", "what happened"), marks, (1,)),
            "<h2>Attempts</h2>",
            _table(
                _ATTEMPT_COLUMNS,
                attempts,
                range(3, 11),
            ),
            "<h2>Charges</h2>",
            _table(
                (
                    "endpoint",
                    "for",
                    "tokens read",
                    "of these cached",
                    "tokens written",
                    "bill",
                    "energy",
                    "policy cost",
                ),
                charges,
                range(2, 8),
            ),
            "</main></body></html>",
            "",
        ]
    )


def _spent(one: AttemptRecord | Charge) -> tuple[str, str, str]:
    """Return the bill, the energy and what policies count."""
    energy_j = one.device_energy_j
    return money(one.bill_usd), "–" if energy_j is None else joules(energy_j), money(one.policy_cost)


def _time(at_s: float | None) -> str:
    return "–" if at_s is None else f"{at_s:.3f}"


def _table(header: Row, rows: Iterable[Row], numbers: Iterable[int]) -> str:
    right = set(numbers)

    def line(cells: Row, tag: str) -> str:
        kinds = [' class="n"' if n in right else "" for n in range(len(cells))]
        texts = [escape(printable(cell)) for cell in cells]
        return "".join(f"<{tag}{kind}>{text}</{tag}>" for text, kind in zip(texts, kinds, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{line(header, "th")}</tr></thead><tbody>{body}</tbody></table></div>'
