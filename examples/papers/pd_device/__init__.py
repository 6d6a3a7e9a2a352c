"""The P/D-Device paper's evaluation, disco's figures beside the printed ones."""

from papers.pd_device.pd_page import pd_page
from papers.pd_device.pd_run import PdResult, run_pd
from papers.pd_device.pd_tables import pd_tables

__all__ = ["PdResult", "pd_page", "pd_tables", "run_pd"]
