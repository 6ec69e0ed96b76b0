"""The checks of each level."""
