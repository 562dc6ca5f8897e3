"""Measures what the server step costs a Flower federation."""
