"""Measuring: runs, clients, captures, and the journal that records them."""
