"""A run on record, looked at afterwards: audited, replayed under another defense, repaired."""
