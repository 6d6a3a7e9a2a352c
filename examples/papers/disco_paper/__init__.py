"""The DiSCo paper's evaluation, disco's figures beside the printed ones."""

from papers.disco_paper.paper_result import PaperResult, TailCut
from papers.disco_paper.paper_run import run_paper
from papers.disco_paper.paper_tables import paper_tables

__all__ = ["PaperResult", "TailCut", "paper_tables", "run_paper"]
