"""What happened, on disk: a journal of every event, snapshots of the state, and a run made of both."""
