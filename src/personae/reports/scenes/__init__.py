"""Reports of plays: the scores of trajectories, and each play as a script with its state beside."""

from personae.reports.scenes.data import PlaysReport
from personae.reports.scenes.document import plays_document
from personae.reports.scenes.gather import are_play_runs, gather_plays
from personae.reports.scenes.html import render_plays, write_plays_html

__all__ = [
    "PlaysReport", "are_play_runs", "gather_plays", "plays_document", "render_plays",
    "write_plays_html",
]  # fmt: skip
