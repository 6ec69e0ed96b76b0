"""The product of gates: cells, their results, and the review of a single gate."""
