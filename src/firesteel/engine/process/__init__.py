"""The engine in a process of its own, and the asyncio client that talks to it."""
