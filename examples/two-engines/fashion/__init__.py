"""One federation for two engines."""
