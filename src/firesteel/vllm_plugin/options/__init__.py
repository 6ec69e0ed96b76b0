"""Options of vLLM that the plugin refuses, and the settings of ours that it reads."""
