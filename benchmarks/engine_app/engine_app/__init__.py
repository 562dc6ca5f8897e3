"""Measures what the server step costs a federation, on every engine."""
