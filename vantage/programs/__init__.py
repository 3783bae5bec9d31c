"""The server programs that are Upshift's own, in Python: each is started by its path, in a node of the lab."""
