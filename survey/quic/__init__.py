"""`upshift survey quic`: which domains can be reached over HTTP/3, and what stands in the way of the others."""
