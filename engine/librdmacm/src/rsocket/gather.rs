//! A program's memory in several parts, consumed from the front.

use std::ffi::c_void;
use std::marker::PhantomData;

use libc::iovec;

/// A list of memory parts.
#[derive(Debug, Default)]
pub struct Gather<'a> {
    parts: Vec<(*mut u8, usize)>,
    /// Index of the next part, and bytes already consumed of it.
    next: (usize, usize),
    left: usize,
    marker: PhantomData<&'a [u8]>,
}

impl Gather<'_> {
    /// Creates a list of one part.
    pub fn one(bytes: *const c_void, length: usize) -> Self {
        Self { parts: vec![(bytes.cast_mut().cast(), length)], left: length, ..Self::default() }
    }

    /// Creates a list from a C array.
    ///
    /// # Safety
    /// `parts` has `count` entries.
    pub unsafe fn many(parts: *const iovec, count: usize) -> Self {
        let part = |at| {
            // SAFETY: `parts` has `count` entries, and `at` is less.
            let part = unsafe { &*parts.add(at) };
            (part.iov_base.cast::<u8>(), part.iov_len)
        };
        let parts: Vec<_> = (0..count).map(part).collect();
        let left = parts.iter().map(|&(_, length)| length).sum();
        Self { parts, left, ..Self::default() }
    }

    /// Returns the number of bytes not yet consumed.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Consumes and returns the next contiguous piece, of at most `most` bytes.
    fn step(&mut self, most: usize) -> Option<(*mut u8, usize)> {
        loop {
            let &(begin, length) = self.parts.get(self.next.0)?;
            if self.next.1 < length {
                let piece = most.min(length - self.next.1);
                // SAFETY: the offset lies within the part.
                let at = unsafe { begin.add(self.next.1) };
                self.next.1 += piece;
                self.left -= piece;
                return Some((at, piece));
            }
            self.next = (self.next.0 + 1, 0);
        }
    }

    /// Consumes `length` bytes. Calls `use_part` for each contiguous part, with the number of bytes
    /// before it.
    ///
    /// # Safety
    /// The parts are readable.
    pub unsafe fn take(&mut self, length: usize, mut use_part: impl FnMut(&[u8], usize)) {
        let mut at = 0;
        while at < length
            && let Some((begin, piece)) = self.step(length - at)
        {
            // SAFETY: the part is readable.
            use_part(unsafe { std::slice::from_raw_parts(begin, piece) }, at);
            at += piece;
        }
    }

    /// Calls `fill` for each part to write the next bytes, until it fills a part incompletely.
    /// Returns the number of bytes written.
    pub fn fill(&mut self, mut fill: impl FnMut(*mut u8, usize) -> usize) -> usize {
        let mut total = 0;
        while let Some((begin, piece)) = self.step(usize::MAX) {
            let filled = fill(begin, piece);
            total += filled;
            if filled < piece {
                self.next.1 -= piece - filled;
                self.left += piece - filled;
                break;
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &mut [&mut [u8]]) -> Vec<iovec> {
        let part = |part: &mut &mut [u8]| iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        parts.iter_mut().map(part).collect()
    }

    #[test]
    fn bytes_are_taken_in_order_across_parts() {
        let (mut one, mut two, mut three) = ([1, 2, 3], [], [4, 5]);
        let parts = parts(&mut [&mut one, &mut two, &mut three]);
        // SAFETY: the length is that of the array.
        let mut gather = unsafe { Gather::many(parts.as_ptr(), parts.len()) };
        let mut taken = Vec::new();
        for length in [2, 2, 9] {
            // SAFETY: the parts are local arrays.
            unsafe { gather.take(length, |part, at| taken.push((at, part.to_vec()))) };
        }
        let expected = [(0, vec![1, 2]), (0, vec![3]), (1, vec![4]), (0, vec![5])];
        assert_eq!((taken.as_slice(), gather.left()), (&expected[..], 0));
    }

    #[test]
    fn parts_are_filled_in_order() {
        let (mut one, mut two) = ([0; 2], [0; 3]);
        let parts = parts(&mut [&mut one, &mut two]);
        // SAFETY: the length is that of the array.
        let mut gather = unsafe { Gather::many(parts.as_ptr(), parts.len()) };
        let mut source = [1, 2, 3].iter();
        let filled = gather.fill(|to, length| {
            let bytes: Vec<u8> = source.by_ref().take(length).copied().collect();
            // SAFETY: at most `length` bytes are copied.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            bytes.len()
        });
        assert_eq!((filled, gather.left()), (3, 2));
        assert_eq!((one, two), ([1, 2], [3, 0, 0]));
    }
}
