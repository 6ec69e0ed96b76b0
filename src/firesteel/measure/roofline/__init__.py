"""Rooflines of a step, and the ceilings of this machine."""
