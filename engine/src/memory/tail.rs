//! Host addresses of stores, and where the tail of a store begins.

/// Maximum number of bytes at the end of a store that are written after all others.
const TAIL: usize = 8;

#[inline]
pub(super) fn address(host: u64) -> usize {
    usize::try_from(host).expect("host addresses fit the pointer size")
}

/// Returns where the tail of a store of `len` bytes to `host` begins: at the last multiple of 8
/// before the end, so that no aligned word crosses that position.
#[inline]
pub(super) fn tail_start(host: u64, len: usize) -> usize {
    let end = host.wrapping_add(len as u64);
    let past = address(end.wrapping_sub(1) % TAIL as u64) + 1; // Bytes of the tail, 1 to 8.
    len.saturating_sub(past)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_starts_at_a_word_boundary() {
        for host in 64..72u64 {
            for len in 0..200usize {
                let body = tail_start(host, len);
                assert!(len - body <= 8 && (len == 0 || body < len), "{host} {len}");
                assert!(body == 0 || (host + body as u64).is_multiple_of(8), "{host} {len}");
            }
        }
        // A region may end at the end of the address space.
        assert_eq!(tail_start(u64::MAX - 15, 16), 8);
    }
}
