"""Where downloads run: implementations of upshift.place.Place."""
