"""The product of gates: cells, table and review."""
