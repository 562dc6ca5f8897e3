"""Quickstart: asynchronous federated learning on Fashion-MNIST, with some clients that lie."""
