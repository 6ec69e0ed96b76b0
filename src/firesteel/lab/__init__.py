"""The lab verifies, stresses, measures and compares engines through the HTTP API of their servers."""
