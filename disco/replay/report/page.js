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
      // Commas separate thousands; rows without a number stay at the end.
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
