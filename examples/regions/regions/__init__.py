"""Logistic regression on synthetic data, in two regions below one top."""
