"""Quickstart: asynchronous federated learning on Fashion-MNIST, with some malicious clients."""
