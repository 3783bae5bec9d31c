"""Downloads: plan, run, resume; apply factors; capture."""
