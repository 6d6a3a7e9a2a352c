"""Timeline of one answer that migrated: which endpoint wrote each token when, and what waited in the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disco.record.written import WrittenStretch, stretches
from disco.replay.report.chart_style import (
    Plot,
    Trace,
    axis,
    endpoint_colours,
    layout,
    legend_above,
    literal,
    numbers,
)
from disco.session.records.route_record import MigrationRecord, RouteRecord

__all__ = ["timeline"]


def timeline(record: RouteRecord) -> Plot | None:
    """Return the plot; None if the record has no timelines."""
    if not record.generated or not record.released:
        return None
    written = stretches(record)
    colours = endpoint_colours({attempt.endpoint: attempt.place for attempt in record.attempts})
    read = _running(record.released)
    end_s = max(record.generated[-1][0], read[-1][0])
    kept = [point for stretch in written for point in stretch.kept]
    traces = [*_between(kept, read, end_s), *_deadline(record, end_s)]
    for stretch in written:
        traces += _written(stretch, colours[stretch.endpoint])
    traces += _lifelines(record, colours)
    switched = next((t for t in record.migrations if t.outcome == "switched"), None)
    return Plot(
        "timeline",
        "One answer, token by token",
        _caption(record, switched),
        layout(
            height=520,
            showlegend=True,
            legend=legend_above(1.06),
            xaxis=axis("seconds since the request", rangemode="tozero", anchor="y2"),
            yaxis=axis("tokens of the answer", rangemode="tozero", domain=[0.24, 1.0]),
            yaxis2=axis(
                "",
                domain=[0.0, 0.15],
                ticks="",
                showgrid=False,
                type="category",
                range=[-0.7, len(colours) - 0.3],
            ),
            shapes=[_upright(at) for at in _moments(switched)],
            annotations=_labels(switched),
        ),
        "nothing",
        {"": traces},
        wide=True,
    )


def _running(timeline: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    total = 0
    out = []
    for at, tokens in timeline:
        total += tokens
        out.append((at, total))
    return out


def _between(
    kept: Sequence[tuple[float, int]], read: Sequence[tuple[float, int]], end_s: float
) -> list[Trace]:
    """Draw the tokens released to the reader as a line, and the tokens waiting in the buffer as the area above it."""
    shown = [*read, (end_s, read[-1][1])]
    held = [(read[0][0], 0), *kept, (end_s, kept[-1][1] if kept else 0)]
    return [
        {
            **_step(shown),
            "name": "released to the reader",
            "line": {"shape": "hv", "color": "@ink", "width": 2},
            "hovertemplate": "%{x:.2f} s · token %{y}",
        },
        {
            **_step([point for point in held if point[0] >= read[0][0]]),
            "name": "buffer",
            "line": {"shape": "hv", "width": 0, "color": "rgba(134,142,150,0.5)"},
            "fill": "tonexty",
            "fillcolor": "rgba(134,142,150,0.22)",
            "hoverinfo": "skip",
        },
    ]


def _deadline(record: RouteRecord, end_s: float) -> list[Trace]:
    """Draw when the reader reaches each token: D_i = TTFT + i/r_c (docs/reference/metrics.md)."""
    pace_tps = record.pace.pace_tps
    if pace_tps is None:
        return []
    first_s = record.released[0][0]
    total = sum(tokens for _, tokens in record.released)
    last_s = min(first_s + (total - 1) / pace_tps, max(end_s, first_s))
    last_token = 1 + (last_s - first_s) * pace_tps
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"reader's deadline ({pace_tps:g} tokens/s)",
            "x": numbers([first_s, last_s], 6),
            "y": numbers([1.0, last_token], 6),
            "line": {"color": "@muted", "dash": "dot", "width": 2},
            "hoverinfo": "skip",
        }
    ]


def _written(stretch: WrittenStretch, colour: str) -> list[Trace]:
    out: list[Trace] = []
    if stretch.kept:
        out.append(
            {
                **_step(stretch.kept),
                "mode": "lines+markers",
                "name": literal(f"written by {stretch.endpoint}"),
                "line": {"shape": "hv", "color": colour, "width": 1.5},
                "marker": {"color": colour, "size": 4},
                "hovertemplate": "%{x:.2f} s · token %{y}",
            }
        )
    if stretch.dropped:
        out.append(
            {
                **_step(stretch.dropped),
                "name": literal(f"{stretch.endpoint}, beyond the cut"),
                "line": {"shape": "hv", "color": colour, "width": 2, "dash": "dot"},
                "opacity": 0.7,
                "hovertemplate": "%{x:.2f} s · not shown",
            }
        )
    return out


def _lifelines(record: RouteRecord, colours: dict[str, str]) -> list[Trace]:
    """Draw a line per attempt: thin before its first content, thick while it writes."""
    out: list[Trace] = []
    for attempt in record.attempts:
        colour, name = colours[attempt.endpoint], literal(attempt.endpoint)
        ended_s = record.duration_s if attempt.ended_s is None else attempt.ended_s
        first_s = ended_s if attempt.first_content_s is None else min(attempt.first_content_s, ended_s)
        hover = literal(f"{attempt.role}, {attempt.outcome.replace('_', ' ')}")
        for from_s, to_s, width, what in (
            (attempt.started_s, first_s, 3, "silent"),
            (first_s, ended_s, 12, "writing"),
        ):
            if to_s > from_s:
                out.append(
                    {
                        "type": "scatter",
                        "mode": "lines",
                        "name": f"{name} {what}",
                        "showlegend": False,
                        "yaxis": "y2",
                        "x": numbers([from_s, to_s], 6),
                        "y": [name, name],
                        "line": {"color": colour, "width": width},
                        "text": [hover, hover],
                        "hovertemplate": "%{text}: %{x:.2f} s",
                    }
                )
    return out


def _step(points: Sequence[tuple[float, int]]) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers((at for at, _ in points), 6),
        "y": [total for _, total in points],
        "line": {"shape": "hv"},
    }


def _moments(transfer: MigrationRecord | None) -> list[float]:
    if transfer is None:
        return []
    return [transfer.decided_s, *([] if transfer.switched_s is None else [transfer.switched_s])]


def _upright(at_s: float) -> dict[str, Any]:
    line = {"color": "@muted", "width": 1, "dash": "dash"}
    return {"type": "line", "x0": at_s, "x1": at_s, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _labels(transfer: MigrationRecord | None) -> list[dict[str, Any]]:
    texts = zip(_moments(transfer), ("decided", "switched"), ("right", "left"), strict=False)
    return [
        {
            "x": at_s,
            "y": 1.0,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": anchor,
            "text": f"{text} {at_s:.2f} s",
            "showarrow": False,
            "font": {"size": 11, "color": "@muted"},
        }
        for at_s, text, anchor in texts
    ]


def _caption(record: RouteRecord, transfer: MigrationRecord | None) -> str:
    what = f"Preset {record.preset}: {record.answer_tokens} tokens"
    if transfer is None or transfer.took_s is None:
        writers = dict.fromkeys(piece.endpoint for piece in record.segments)
        return f"{what}, written by {' and '.join(writers)}."
    late = "no token was late" if transfer.late_tokens == 0 else f"{transfer.late_tokens} tokens were late"
    return (
        f"{what}, begun by {transfer.source} and migrated to {transfer.target} after {transfer.cut_tokens}. The new "
        f"endpoint took {transfer.took_s:.2f} s to its first token, while the reader read from the buffer; {late}. "
        "Below: thin while an endpoint is silent, thick while it writes."
    )
