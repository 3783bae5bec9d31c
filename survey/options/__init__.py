"""`upshift survey options`: which TCP options servers negotiate, one handshake each."""
