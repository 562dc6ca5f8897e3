"""Many cells: the recipes of the paper's tables, and the processes that run them."""
