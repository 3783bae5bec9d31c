"""From downloads to numbers: datasets, pairs, speed-ups, tables, and the model of a lab path."""
