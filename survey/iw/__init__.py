"""`upshift survey iw`: initial windows of servers, measured by withheld ACKs."""
