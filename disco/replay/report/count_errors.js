// Counts errors, and attempts to load anything, in `data-errors` of the page; runs before everything else.
(() => {
  const root = document.documentElement;
  root.dataset.errors = "0";
  const count = () => { root.dataset.errors = String(Number(root.dataset.errors) + 1); };
  for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"]) addEventListener(kind, count, true);
})();
