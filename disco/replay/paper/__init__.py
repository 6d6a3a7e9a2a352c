"""The DiSCo paper's evaluation, ours beside its printed figures."""

from disco.replay.paper.result import PaperResult, TailCut
from disco.replay.paper.run import run_paper
from disco.replay.paper.tables import PaperTable, paper_tables

__all__ = ["PaperResult", "PaperTable", "TailCut", "paper_tables", "run_paper"]
