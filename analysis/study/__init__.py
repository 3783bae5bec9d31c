"""Studies of senders: what their repetitions say of cells, claims and expected values; figures and one page."""
