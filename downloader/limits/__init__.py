"""What a campaign may use: bytes of others per day, and this host's disk; and whom it must not contact."""
