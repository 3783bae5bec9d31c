"""Two campaigns against each other: what moved from A to B, what differs between them, and a gate for regressions."""
