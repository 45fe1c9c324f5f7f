"""The HTTP side: people, services and tools ask for runs, follow them, and tell them things."""
