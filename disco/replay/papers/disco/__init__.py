"""The DiSCo paper's evaluation, disco's figures beside the printed ones."""

from disco.replay.papers.disco.paper_result import PaperResult, TailCut
from disco.replay.papers.disco.paper_run import run_paper
from disco.replay.papers.disco.paper_tables import paper_tables
from disco.replay.papers.paper_table import PaperTable

__all__ = ["PaperResult", "PaperTable", "TailCut", "paper_tables", "run_paper"]
