"""The laboratory: data sets, models, attacks and experiments. Nothing outside imports it."""
