"""The parts of an op: implementations, tolerance, requirements and verdicts on machine code."""
