//! Bytes in at most two slices, as in a received frame.

/// A run of bytes in two slices, the second following the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload<'a> {
    /// The front.
    pub first: &'a [u8],
    /// The rest; often empty.
    pub second: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Bytes in total.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Returns true if there are no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty() && self.second.is_empty()
    }

    /// Both slices in order.
    #[inline]
    #[must_use]
    pub const fn slices(&self) -> [&'a [u8]; 2] {
        [self.first, self.second]
    }

    /// Copies all bytes to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        let (front, back) = out[..self.len()].split_at_mut(self.first.len());
        front.copy_from_slice(self.first);
        back.copy_from_slice(self.second);
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// If there are fewer than `at` bytes.
    #[inline]
    #[must_use]
    pub const fn split_at(&self, at: usize) -> (Self, Self) {
        if at <= self.first.len() {
            let (head, tail) = self.first.split_at(at);
            (Self { first: head, second: &[] }, Self { first: tail, second: self.second })
        } else {
            let (head, tail) = self.second.split_at(at - self.first.len());
            (Self { first: self.first, second: head }, Self { first: tail, second: &[] })
        }
    }

    /// The bytes from offset `start` up to `end`.
    ///
    /// # Panics
    /// If `start` is after `end`, or there are fewer than `end` bytes.
    #[inline]
    #[must_use]
    pub fn range(&self, start: usize, end: usize) -> Self {
        match self.first.get(start..end) {
            Some(first) => Self { first, second: &[] },
            None => self.split_at(end).0.split_at(start).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::vec::Vec;

    #[test]
    fn a_payload_may_be_split_anywhere() {
        let bytes: Vec<u8> = (0..10).collect();
        for cut in 0..=10 {
            let payload = Payload { first: &bytes[..cut], second: &bytes[cut..] };
            assert_eq!((payload.len(), payload.is_empty()), (10, false));
            for at in 0..=10 {
                let (front, back) = payload.split_at(at);
                assert_eq!(front.slices().concat(), bytes[..at], "cut {cut} at {at}");
                assert_eq!(back.slices().concat(), bytes[at..], "cut {cut} at {at}");
                let middle = payload.range(at / 2, at);
                assert_eq!(middle.slices().concat(), bytes[at / 2..at], "cut {cut} at {at}");
            }
            let mut out = [0xa5; 12];
            payload.copy_to(&mut out);
            assert_eq!(out[..10], bytes);
            assert_eq!(out[10..], [0xa5; 2]);
        }
        assert!(Payload::default().is_empty());
    }
}
