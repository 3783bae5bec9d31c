"""Where downloads run: implementations of upshift.system.place.Place."""
