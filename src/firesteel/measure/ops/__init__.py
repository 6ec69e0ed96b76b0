"""Benchmarks of ops: workloads, correctness, outcome and tuning."""
