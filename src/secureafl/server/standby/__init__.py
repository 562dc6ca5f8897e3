"""Standbys: servers that follow the log of a run which another one leads, and take over when its lease ends."""
