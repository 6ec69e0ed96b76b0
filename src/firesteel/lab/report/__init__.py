"""The report: Markdown and one HTML page."""
