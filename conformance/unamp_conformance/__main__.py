"""``python -m unamp_conformance``: ``unamp conformance`` where nothing is installed."""

from unamp_conformance.cli import app

app(prog_name="unamp conformance")
