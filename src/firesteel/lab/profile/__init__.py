"""The time of a step by category, kernel and layer."""
