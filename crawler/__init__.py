"""crawler: see docs/design/house.md."""
