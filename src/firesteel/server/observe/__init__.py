"""Access log and metrics."""
