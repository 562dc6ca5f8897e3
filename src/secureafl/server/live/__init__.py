"""A federation while it runs: the machine among threads, evaluations beside it, and what is counted."""
