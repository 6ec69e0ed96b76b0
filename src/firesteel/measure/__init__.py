"""What speed is possible and what speed was seen: rooflines, ceilings, timing and records; knows no engine."""
