"""A language model's adapters, learned together from chapters that stay where they are, with some malicious clients."""
