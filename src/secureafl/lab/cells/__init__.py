"""One experiment, a cell of a table: its settings, its run, its scores and its results."""
