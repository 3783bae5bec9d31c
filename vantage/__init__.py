"""Where downloads run: implementations of core.system.place.Place."""
