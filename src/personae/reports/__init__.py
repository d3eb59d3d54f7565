"""Tables, pictures and one self-contained page: what a run found, and how far to trust it."""

from personae.reports.data import (
    CallCounts,
    Cost,
    FailureCount,
    ReportData,
    Unit,
    UsageLine,
    Verdict,
)
from personae.reports.document import report_document
from personae.reports.html import render, write_html
from personae.reports.tables import print_report, write_csv

__all__ = [
    "CallCounts", "Cost", "FailureCount", "ReportData", "Unit", "UsageLine", "Verdict",
    "print_report", "render", "report_document", "write_csv", "write_html",
]  # fmt: skip
