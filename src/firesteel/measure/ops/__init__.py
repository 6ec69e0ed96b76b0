"""Measurements of ops: workloads, benchmarks, correctness and tuning."""
