"""Weighs what goes between a server and its clients."""
