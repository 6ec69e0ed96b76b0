"""firesteel lab."""
