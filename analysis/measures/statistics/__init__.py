"""Tests and intervals of paired speed-ups: pure functions of arrays.

Values are log speed-ups, clusters are codes 0 to count - 1 (every code occurs). Nothing here loops over pairs, so ten
million of them need seconds. Why these methods: docs/method/statistics.md.
"""
