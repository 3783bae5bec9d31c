"""`upshift survey quic`: which domains can be reached over HTTP/3, and why others cannot."""
