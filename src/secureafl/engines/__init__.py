"""Adapters to federated-learning engines: one package each, the only importers of theirs."""
