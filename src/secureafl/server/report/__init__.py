"""What a server tells the outside: lines of progress, metrics for Prometheus, scalars for sinks."""
