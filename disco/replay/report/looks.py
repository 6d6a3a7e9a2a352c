"""The page's own style and script. They are Python strings so that the wheel carries nothing but modules and data."""

from __future__ import annotations

from typing import Final

__all__ = ["COLLECT_ERRORS", "CSS", "SCRIPT"]

CSS: Final = """
:root { color-scheme: light dark; --ground: #f5f6f8; --card: #fff; --ink: #1b2027; --muted: #5f6975;
  --line: #dde2e8; --grid: #e9edf1; --accent: #0b66c3; }
@media (prefers-color-scheme: dark) { :root { --ground: #12151a; --card: #1a1f26; --ink: #e6eaef;
  --muted: #98a3af; --line: #323a44; --grid: #2a313a; --accent: #6cb2ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main, footer { max-width: 1280px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; }
.kicker { margin: 0; color: var(--accent); font-weight: 600; font-size: 13px; letter-spacing: .06em;
  text-transform: uppercase; }
h1 { margin: 2px 0 14px; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; }
h2 { margin: 0; font-size: 17px; line-height: 1.3; }
.notes { margin: -6px 0 18px; padding: 0; list-style: none; color: var(--muted); font-size: 14px; }
.findings { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 10px; padding: 14px 20px; margin-bottom: 20px; }
.findings p { margin: 4px 0; }
.bar { position: sticky; top: 0; z-index: 10; background: var(--ground); border-bottom: 1px solid var(--line);
  margin-bottom: 20px; }
.bar form { max-width: 1280px; margin: 0 auto; padding: 10px 24px; display: flex; flex-wrap: wrap;
  gap: 8px 18px; align-items: center; }
.bar label { font-size: 13px; color: var(--muted); }
select { font: inherit; font-size: 14px; color: var(--ink); background: var(--card); padding: 4px 8px;
  margin-left: 6px; border: 1px solid var(--line); border-radius: 7px; max-width: 460px; }
.lines { display: flex; flex-wrap: wrap; gap: 6px; }
.lines button { font: inherit; font-size: 13px; color: var(--ink); background: var(--card); cursor: pointer;
  padding: 3px 10px 3px 8px; border: 1px solid var(--line); border-radius: 99px; display: flex; gap: 7px;
  align-items: center; }
.lines button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; }
@media (max-width: 900px) { .plots { grid-template-columns: minmax(0, 1fr); } }
figure, .card { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px 8px; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption p { margin: 2px 0 6px; color: var(--muted); font-size: 13.5px; }
.tables { margin-top: 18px; padding-bottom: 18px; }
.tables h3 { margin: 18px 0 6px; font-size: 14px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 9px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th { position: relative; color: var(--muted); font-weight: 600; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort=ascending] button::after { content: " ▲"; font-size: 9px; }
th[aria-sort=descending] button::after { content: " ▼"; font-size: 9px; }
tbody tr:hover { background: var(--grid); }
footer { color: var(--muted); font-size: 13px; padding-top: 18px; padding-bottom: 40px; }
[hidden] { display: none !important; }
"""

COLLECT_ERRORS: Final = """
(() => {
  const root = document.documentElement;
  root.dataset.errors = "0";
  const count = () => { root.dataset.errors = String(Number(root.dataset.errors) + 1); };
  for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"]) addEventListener(kind, count, true);
})();
"""
"""Counts errors, and attempts to load anything, in `data-errors` of the page; runs before everything else."""

SCRIPT: Final = """
(() => {
  "use strict";
  const root = document.documentElement;
  const page = JSON.parse(document.getElementById("data").textContent);
  const scenario = document.getElementById("scenario");
  const budget = document.getElementById("budget");
  const everyBudget = document.getElementById("every-budget");
  const hidden = new Set();

  const shared = () => {
    const css = getComputedStyle(root);
    const values = { ...page.shared };
    for (const name of ["ink", "muted", "grid", "card"]) values["@" + name] = css.getPropertyValue("--" + name).trim();
    return values;
  };
  const fill = (value, values) => {
    if (typeof value === "string") return Object.hasOwn(values, value) ? values[value] : value;
    if (Array.isArray(value)) return value.map((item) => fill(item, values));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fill(item, values)]));
  };

  const draw = async () => {
    const values = shared();
    const keys = { nothing: "", scenario: scenario.value, budget: scenario.value + "/" + budget.value };
    await Promise.all(page.plots.map((plot) => {
      const traces = fill(plot.frames[keys[plot.by]] || [], values);
      for (const trace of traces) if (hidden.has(trace.legendgroup)) trace.visible = false;
      const div = document.getElementById(plot.key);
      return Plotly.react(div, traces, fill(plot.layout, values), page.config);
    }));
    root.dataset.drawn = String(page.plots.length);
  };

  const budgets = () => {
    const { budgets, start } = page.scenarios[Number(scenario.value)];
    const before = budget.selectedOptions[0]?.textContent;
    budget.replaceChildren(...budgets.map((text, i) => new Option(text, String(i), false, i === start)));
    const same = budgets.indexOf(before);
    if (same >= 0) budget.value = String(same);
    for (const control of [budget, everyBudget]) control.closest("label").hidden = budgets.length < 2;
  };
  const tables = () => {
    for (const section of document.querySelectorAll("[data-scenario]"))
      section.hidden = section.dataset.scenario !== scenario.value;
    for (const row of document.querySelectorAll("tr[data-budget]"))
      row.hidden = !everyBudget.checked && row.dataset.budget !== "" && row.dataset.budget !== budget.value;
  };
  const show = () => { tables(); return draw(); };

  scenario.addEventListener("change", () => { budgets(); show(); });
  budget.addEventListener("change", show);
  everyBudget.addEventListener("change", tables);
  for (const button of document.querySelectorAll(".lines button"))
    button.addEventListener("click", () => {
      const name = button.dataset.line;
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    });
  for (const button of document.querySelectorAll("th button"))
    button.addEventListener("click", () => {
      const th = button.parentElement;
      const body = th.closest("table").tBodies[0];
      const up = th.getAttribute("aria-sort") !== "ascending";
      for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      // Commas separate thousands; what has no number stays at the end.
      const value = (row) => {
        const text = row.cells[th.cellIndex].textContent;
        const number = parseFloat(text.replace(/,/g, "").replace("−", "-"));
        return Number.isNaN(number) ? text : number;
      };
      const compare = (a, b) => typeof a === typeof b
        ? (typeof a === "number" ? a - b : a.localeCompare(b)) * (up ? 1 : -1)
        : typeof a === "number" ? -1 : 1;
      body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
    });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  budgets();
  show();
})();
"""
