"""This host as a place to measure from, and what restores its settings."""
