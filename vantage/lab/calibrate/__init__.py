"""Whether a lab does what its topology says."""
