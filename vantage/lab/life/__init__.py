"""Building a lab, keeping it alive, and taking it down."""
