"""What the plugin refuses: versions of vLLM, broken installations, and how that is said."""
