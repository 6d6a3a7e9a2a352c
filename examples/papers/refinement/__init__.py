"""How good answers to refined prompts are: tables that `python -m papers.measure refine` makes."""

from papers.refinement.refine_table import (
    RefineRow,
    RefineTable,
    load_refine_table,
    save_refine_table,
    shipped_refine_table,
)

__all__ = ["RefineRow", "RefineTable", "load_refine_table", "save_refine_table", "shipped_refine_table"]
