"""What all stages share that contact the servers of a list: the list, block lists, pace, ledger, QUIC engine."""
