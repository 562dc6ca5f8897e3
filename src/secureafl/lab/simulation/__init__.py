"""Clients, attackers and a server in one process: who sends what, and when."""
