"""What users call: one way to run, sweep, read and compare, for Python and for the command line."""
