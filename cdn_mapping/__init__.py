"""cdn_mapping: see docs/design/house.md."""
