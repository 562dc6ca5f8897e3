"""Logistic regression on synthetic data, federated."""
