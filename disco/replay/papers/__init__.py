"""The evaluations of papers, ours beside their printed figures: one package per paper."""
