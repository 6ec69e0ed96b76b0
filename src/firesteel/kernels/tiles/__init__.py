"""Tile sizes and launch options: shipped, tuned or pinned."""
