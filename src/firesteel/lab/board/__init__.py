"""All results side by side: what was measured, whether it counts, and which configuration is best."""
