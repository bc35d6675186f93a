//! Pages of this machine: 4 KiB on x86-64, and 4, 16 or 64 KiB on `AArch64`.

/// Returns the size of a page in bytes, a power of two.
pub fn size() -> u64 {
    // SAFETY: the function takes and returns a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).expect("every kernel reports its page size")
}

/// Extends `len` bytes at `address` to the start of the first page: some system calls take whole
/// pages only. Returns its address, and the length from there, saturating.
pub fn from_page_start(address: u64, len: u64, page: u64) -> (u64, u64) {
    let start = address & !(page - 1);
    (start, len.saturating_add(address - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_with_a_page_of_the_machine() {
        assert!(size().is_power_of_two() && size() >= 4096);
        for page in [4096, 16_384, 65_536] {
            for offset in [0, 1, 4095, 4096, 12_288, 61_440, page - 1] {
                let (start, len) = from_page_start(7 * 65_536 + offset, 100, page);
                assert_eq!(start % page, 0, "{offset} {page}");
                assert_eq!(start + len, 7 * 65_536 + offset + 100);
                assert!(len < 100 + page);
            }
        }
        let (start, len) = from_page_start(u64::MAX, u64::MAX, 65_536);
        assert_eq!((start, len), (u64::MAX - 65_535, u64::MAX));
    }
}
