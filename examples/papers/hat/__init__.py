"""The HAT paper's evaluation: figures and Tables IV and V, calibrated on the U-shape row, beside what is printed."""

from papers.hat.hat_page import hat_page
from papers.hat.hat_run import HatResult, run_hat
from papers.hat.hat_tables import hat_tables

__all__ = ["HatResult", "hat_page", "hat_tables", "run_hat"]
