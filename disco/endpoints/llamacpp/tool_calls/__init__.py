"""Tool calls: what a request says about tools, and how models write calls."""
