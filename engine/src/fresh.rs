//! Numbers that were never taken. They need no memory, so that a table with a large limit costs no
//! more than its entries.

use std::collections::BTreeSet;

/// Numbers that were given back are taken before numbers that were never taken once there are this
/// many of them: a number is not used again soon, and a table does not grow without end.
pub const REUSE: usize = 65_536;

/// The numbers `0..count` that were never taken.
#[derive(Debug)]
pub struct FreshNumbers {
    next: u32,
    count: u32,
    /// Numbers from `next` on that were taken out of order.
    taken: BTreeSet<u32>,
}

impl FreshNumbers {
    /// All numbers `0..count`.
    pub fn new(count: u32) -> Self {
        Self { next: 0, count, taken: BTreeSet::new() }
    }

    /// Takes the lowest number; `None` if all were taken.
    pub fn take(&mut self) -> Option<u32> {
        while self.taken.remove(&self.next) {
            self.next += 1;
        }
        let number = Some(self.next).filter(|&next| next < self.count)?;
        self.next += 1;
        Some(number)
    }

    /// Takes `number`. Returns false if it was taken before, or if there is no such number.
    pub fn take_number(&mut self, number: u32) -> bool {
        (self.next..self.count).contains(&number) && self.taken.insert(number)
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        (self.count - self.next) as usize - self.taken.len()
    }

    /// The numbers that were ever taken are below this one.
    pub fn end(&self) -> u32 {
        self.taken.last().map_or(self.next, |last| self.next.max(last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once() {
        let mut fresh = FreshNumbers::new(5);
        assert!(fresh.take_number(0) && fresh.take_number(3));
        assert!(!fresh.take_number(3) && !fresh.take_number(5));
        assert_eq!((fresh.len(), fresh.end()), (3, 4));
        let rest: Vec<u32> = std::iter::from_fn(|| fresh.take()).collect();
        assert_eq!((rest, fresh.len(), fresh.end()), (vec![1, 2, 4], 0, 5));
        assert!(!fresh.take_number(1));
    }
}
