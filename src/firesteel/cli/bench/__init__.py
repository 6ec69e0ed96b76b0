"""firesteel bench."""
