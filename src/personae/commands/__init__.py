"""The commands of the rooms, one module each; `personae.cli` puts them together."""
