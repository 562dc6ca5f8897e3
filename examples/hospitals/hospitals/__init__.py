"""Twelve hospitals and one table: who takes part, what they learn, and the plain weighted average to compare with."""
