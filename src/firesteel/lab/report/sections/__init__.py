"""The sections of a report, each built from the parts of a result that it shows."""
