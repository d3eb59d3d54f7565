"""Rubrics, judge panels, audits of judges, and the statistics that turn verdicts into scores."""
