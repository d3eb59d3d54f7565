"""Reports of plays: the scores of trajectories, and each play as a script with its state beside."""

from personae.reports.scenes.data import PlaysReport
from personae.reports.scenes.document import plays_document
from personae.reports.scenes.gather import are_play_runs, gather_plays
from personae.reports.scenes.html import render_plays, write_plays_html
from personae.reports.scenes.tables import print_plays, write_plays_csv

__all__ = [
    "PlaysReport", "are_play_runs", "gather_plays", "plays_document", "print_plays",
    "render_plays", "write_plays_csv", "write_plays_html",
]  # fmt: skip
