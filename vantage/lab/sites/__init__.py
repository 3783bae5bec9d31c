"""Sites of a lab: what a crawl meets there."""
