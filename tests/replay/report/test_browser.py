"""The page in a real browser: every plot is drawn, without an error and without asking the network for anything."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
import reports
from chromium import find_chromium

from disco.replay.report import Report, to_html

pytest.importorskip("plotly")

BROWSER = find_chromium()
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine"),
]

OFF = ("gpu", "dev-shm-usage", "quic", "background-networking", "component-update", "sync")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--window-size=1300,4200",
    "--virtual-time-budget=20000",
]


def dom(text: str, folder, *flags: str) -> str:
    """The document after its scripts ran."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    command = [
        BROWSER,
        *FLAGS,
        *(f"--disable-{name}" for name in OFF),
        f"--user-data-dir={folder / 'browser'}",
        *flags,
        "--dump-dom",
        path.as_uri(),
    ]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def root(document: str) -> dict[str, str]:
    return dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<html[^>]*>", document)[0]))


def drawn(document: str) -> dict[str, str]:
    """What lies in each plot's element, up to the next one."""
    body = document[document.index("<body") : document.index("<footer")]
    parts = re.split(r'<div class="plot[^"]*" id="([\w-]+)"', body)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


INK = {"light": "rgb(27, 32, 39)", "dark": "rgb(230, 234, 239)"}  # of the line of what was released
EVIL = '"></option></script><img src=x onerror="document.title=1"><b>a & b'


def test_every_plot_is_drawn_and_a_name_that_is_markup_neither_runs_nor_breaks_the_page(tmp_path):
    shown = reports.with_moves()
    cells = tuple(replace(cell, scenario=EVIL) for cell in shown.cells)
    text = to_html(Report(EVIL, (EVIL,), cells, shown.example))
    document = dom(text, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert root(document) == {"errors": "0", "drawn": "8"}
    assert "<title>1</title>" not in document
    plots = drawn(document)
    assert len(plots) == 8
    assert [name for name, part in plots.items() if 'class="main-svg"' not in part] == []
    assert [
        name for name, part in plots.items() if len(re.findall(r'class="trace (?:scatter|bars)', part)) < 2
    ] == []
    assert INK["dark"] in plots["timeline"]


@pytest.mark.slow
def test_scenarios_and_budgets_can_be_chosen(tmp_path):
    """Driven by a script at the end of the page, which itself may not raise."""
    text = to_html(reports.without_moves())
    choose = """<script>
    setTimeout(() => {
      const set = (id, value) => {
        const control = document.getElementById(id);
        control.value = value;
        control.dispatchEvent(new Event("change"));
      };
      set("scenario", "1");
      set("budget", "2");
      document.querySelector('[data-line="random"]').click();
      document.querySelectorAll("th button")[6].click();
      setTimeout(() => {
        const names = (id) => document.getElementById(id).data.filter((t) => t.visible !== false).map((t) => t.name);
        document.documentElement.dataset.shown = names("ttft-cdf").join();
        document.documentElement.dataset.rows =
          [...document.querySelectorAll('[data-scenario="1"] tbody tr:not([hidden])')].length;
        document.documentElement.dataset.sections =
          [...document.querySelectorAll("[data-scenario]:not([hidden])")].map((s) => s.dataset.scenario).join();
      }, 1000);
    }, 1000);
    </script></body>"""
    state = root(dom(text.replace("</body>", choose), tmp_path))
    assert state == {
        "errors": "0",
        "drawn": "7",
        "shown": "server_only,device_only,auto,optimal_wait,oracle",
        "rows": "6",
        "sections": "1",
    }


def test_the_page_notices_errors_and_attempts_to_load(tmp_path):
    """Otherwise the count of zero above would say nothing."""
    text = to_html(reports.with_moves())
    broken = '<img src="http://192.0.2.1/x.png"><script>nothing.of.that.name;</script></body>'
    document = dom(text.replace("</body>", broken), tmp_path)
    assert int(root(document)["errors"]) >= 2
    assert INK["light"] in drawn(document)["timeline"]
