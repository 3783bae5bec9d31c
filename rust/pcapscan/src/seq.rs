//! Sequence number arithmetic: numbers wrap, so comparisons are signs of 32-bit differences (RFC 9293, section 3.4).

/// `a - b` as a signed distance.
#[inline]
#[must_use]
pub fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b).cast_signed()
}

/// Raises `highest` to `value`. Unlike `max`, nothing is stored where nothing changes, which is cheaper where that is
/// the rule.
#[inline(always)]
#[expect(clippy::inline_always, reason = "two instructions")]
pub fn raise<T: PartialOrd>(highest: &mut T, value: T) {
    if value > *highest {
        *highest = value;
    }
}

/// Whether `a` lies before `b`.
#[inline]
#[must_use]
pub fn before(a: u32, b: u32) -> bool {
    distance(a, b) < 0
}

/// Whether `a` lies after `b`, computed as Wireshark does (the two differ at a distance of 2^31).
#[inline]
#[must_use]
pub fn after(a: u32, b: u32) -> bool {
    distance(b, a) < 0
}

/// Whether `a` lies before `b` or is equal to it.
#[inline]
#[must_use]
pub fn at_most(a: u32, b: u32) -> bool {
    distance(a, b) <= 0
}
