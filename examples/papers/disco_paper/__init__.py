"""The DiSCo paper's evaluation, disco's figures beside the printed ones."""

from papers.disco_paper.paper_result import PaperResult, TailCut
from papers.disco_paper.paper_run import run_paper
from papers.disco_paper.paper_tables import paper_tables
from papers.paper_table import PaperTable

__all__ = ["PaperResult", "PaperTable", "TailCut", "paper_tables", "run_paper"]
