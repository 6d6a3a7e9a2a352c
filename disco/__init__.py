"""disco: one good answer out of two models, one on this machine and one behind an API."""
