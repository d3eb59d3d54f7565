"""The report of a cast's evaluation: its scores beside those of what it is compared with."""

from personae.reports.cast.html import render_page, write_page
from personae.reports.cast.tables import print_scores

__all__ = ["print_scores", "render_page", "write_page"]
