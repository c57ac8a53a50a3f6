"""Run directories -> one self-contained HTML file, a summary for the terminal, figures for a paper."""

from fedkeep.report.page import write_report

__all__ = ["write_report"]
