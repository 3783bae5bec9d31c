"""The smallest topology that can be built, for tests that add to it or change it."""

MINI = """
schema = 1
name = "mini"
[[vantage]]
name = "V"
[[organisation]]
name = "o"
title = "O"
asn = 3000001
[[server]]
name = "s"
organisation = "o"
domains = ["www.mini.example"]
files = [{ path = "/a.bin", size = "10 kB" }]
paths = { V = { rtt_ms = 2, rate_mbit = 50 } }
"""
