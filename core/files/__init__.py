"""Files on disk: tables, campaign descriptions, JSON and TOML, each with one reader and one writer."""
