"""Runs of sender studies: one repetition (`lane`), and all of them (`run`)."""
