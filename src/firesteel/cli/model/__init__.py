"""Verbs that run or convert a model."""
