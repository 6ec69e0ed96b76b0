"""Verdicts on files alone: logs, traces, crash bundles and compiled libraries, without a running server."""
