"""What an op is: implementations, tolerance, requirements and verdicts on machine code."""
