"""The RecServe paper's evaluation, disco's figures beside the printed ones."""

from papers.recserve.ladder_material import Material, cut_for_tuning
from papers.recserve.recserve_page import recserve_page
from papers.recserve.recserve_run import RecServeResult, run_recserve
from papers.recserve.recserve_tables import recserve_tables

__all__ = ["Material", "RecServeResult", "cut_for_tuning", "recserve_page", "recserve_tables", "run_recserve"]
