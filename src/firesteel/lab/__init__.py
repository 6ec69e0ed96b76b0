"""Verifies, stresses, measures and compares engines from outside; knows servers, not their inside."""
