"""A keyed permutation of 0 ... n-1 that is computed value by value: nothing is kept in memory.

A balanced Feistel network over the next even number of bits (Luby and Rackoff, SIAM J. Comput. 17 (1988) 373), and
cycle walking back into the range (Black and Rogaway, CT-RSA 2002): each value comes once, and the order looks random.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


class Permutation:
    """A permutation of `range(size)`, chosen by the seed.

    Args:
        size: at least 1.
        seed: any number.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._bytes = (self._half + 7) // 8
        key = hashlib.blake2b(str(seed).encode(), digest_size=32).digest()
        # A keyed hash per round; copying its state is cheaper than to key it again.
        self._rounds = [
            hashlib.blake2b(key=key, salt=bytes([number]), digest_size=self._bytes) for number in range(_ROUNDS)
        ]

    def __getitem__(self, index: int) -> int:
        value = self._once(index)
        while value >= self._size:  # at most four times the range: fewer than four steps on average
            value = self._once(value)
        return value

    def _once(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for keyed in self._rounds:
            state = keyed.copy()
            state.update(right.to_bytes(self._bytes, "big"))
            left, right = right, left ^ (int.from_bytes(state.digest(), "big") & self._mask)
        return left << self._half | right
