"""Personae: describe, question, play, judge, improve and serve a character."""

__version__ = "0.1.0"
