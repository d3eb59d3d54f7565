"""Reports of interviews: eight metrics, stability over turns, answers side by side."""

from personae.reports.interviews.data import InterviewsReport
from personae.reports.interviews.document import interviews_report
from personae.reports.interviews.gather import are_interview_runs, gather_interviews
from personae.reports.interviews.html import render_interviews, write_interviews_html
from personae.reports.interviews.tables import print_interviews, write_interviews_csv

__all__ = [
    "InterviewsReport", "are_interview_runs", "gather_interviews", "interviews_report",
    "print_interviews", "render_interviews", "write_interviews_csv", "write_interviews_html",
]  # fmt: skip
