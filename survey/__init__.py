"""survey: see docs/design/house.md."""
