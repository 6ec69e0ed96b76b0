"""Where the time of a step goes, by category, kernel and layer."""
