"""firesteel chat."""
