"""Shared by stages that contact the servers of a list: lists, block lists, rate limits, ledger, DNS, QUIC engine."""
