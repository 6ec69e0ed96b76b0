"""Health, models, ledger and the status page."""
