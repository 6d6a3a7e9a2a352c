"""The DSD paper's evaluation: Table 2 and its figures, calibrated on one column, beside what is printed."""

from papers.dsd.dsd_page import dsd_page
from papers.dsd.dsd_run import DsdResult, run_dsd
from papers.dsd.dsd_tables import dsd_tables

__all__ = ["DsdResult", "dsd_page", "dsd_tables", "run_dsd"]
