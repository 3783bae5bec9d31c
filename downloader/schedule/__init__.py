"""When a measurement run may start: gates, each with one reason to wait, and the choice of the next run."""
