"""What servers support: TCP options, QUIC; target sets from it."""
