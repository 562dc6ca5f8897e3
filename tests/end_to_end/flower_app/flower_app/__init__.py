"""Nodes that behave well or badly, as their node config says."""
