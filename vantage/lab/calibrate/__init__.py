"""Checks that a lab behaves as its topology says."""
