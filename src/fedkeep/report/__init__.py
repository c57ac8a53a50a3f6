"""Run directories -> one self-contained HTML file, a summary for the terminal, figures for a paper."""

from fedkeep.report.export import figure, write_figure
from fedkeep.report.page import write_report
from fedkeep.report.text import text_summary

__all__ = ["figure", "text_summary", "write_figure", "write_report"]
