"""Each client's ceiling: the highest rate that it reaches on this host. `upshift doctor --calibrate` measures it."""
