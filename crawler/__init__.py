"""Top list -> targets: a polite crawl for one large file per domain."""
