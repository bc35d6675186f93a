//! The flows that a host is sending, and when each may send next: a tree of earliest times, so that
//! a host with a thousand flows does not look at all of them for each packet.

use feroce_engine::memory::ahead::fetch_element;

use super::super::time::Time;

/// A flow that a host is sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Active {
    pub flow: u32,
    pub priority: u8,
}

/// The active flows of a host. A flow's place is its index; removing a flow moves the last one.
#[derive(Debug)]
pub(super) struct ActiveFlows {
    flows: Vec<Active>,
    /// The time at which the flow at place `n` may send, at `leaves + n`; a node has the earlier
    /// time of its children, `2 n` and `2 n + 1`; the root is at 1.
    earliest: Vec<Time>,
    /// Number of flows of each priority.
    counts: [u32; 8],
}

impl ActiveFlows {
    pub fn new() -> Self {
        Self { flows: Vec::new(), earliest: vec![Time::FAR; 2], counts: [0; 8] }
    }

    /// Fetches the flow at `place`, the top of the tree and the leaf into the processor's cache.
    #[inline]
    pub fn prepare(&self, place: usize) {
        fetch_element(&self.flows, place, size_of::<Active>());
        fetch_element(&self.earliest, 0, 64);
        fetch_element(&self.earliest, self.leaves() + place, 64);
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn get(&self, place: usize) -> Option<Active> {
        self.flows.get(place).copied()
    }

    /// The time at which the flow at `place` may send.
    pub fn check_at(&self, place: usize) -> Time {
        self.earliest[self.leaves() + place]
    }

    /// Adds a flow that may send at `check_at`, and returns its place.
    pub fn push(&mut self, active: Active, check_at: Time) -> usize {
        let place = self.flows.len();
        if place == self.leaves() {
            self.grow();
        }
        self.flows.push(active);
        self.counts[usize::from(active.priority)] += 1;
        self.set(place, check_at);
        place
    }

    /// Changes when the flow at `place` may send.
    #[inline]
    pub fn set(&mut self, place: usize, check_at: Time) {
        let mut node = self.leaves() + place;
        self.earliest[node] = check_at;
        while node > 1 {
            node /= 2;
            let least = self.earliest[2 * node].min(self.earliest[2 * node + 1]);
            if self.earliest[node] == least {
                return;
            }
            self.earliest[node] = least;
        }
    }

    /// Removes the flow at `place`. The last flow takes its place.
    pub fn swap_remove(&mut self, place: usize) {
        let last = self.flows.len() - 1;
        let check_at = self.check_at(last);
        let removed = self.flows.swap_remove(place);
        self.counts[usize::from(removed.priority)] -= 1;
        self.set(place, check_at);
        self.set(last, Time::FAR);
    }

    /// The first place in `from..to` whose flow may send by `now`.
    #[inline]
    pub fn first(&self, from: usize, to: usize, now: Time) -> Option<usize> {
        let leaves = self.leaves();
        let mut node = leaves + from;
        if from >= to {
            return None;
        }
        // Up, to the right, until a subtree has such a flow.
        while self.earliest[node] > now {
            while node % 2 == 1 {
                if node == 1 {
                    return None;
                }
                node /= 2;
            }
            node += 1;
        }
        while node < leaves {
            node *= 2;
            node += usize::from(self.earliest[node] > now);
        }
        (node - leaves < to).then_some(node - leaves)
    }

    /// Time at which a flow may send next, among the flows whose priority is not paused.
    pub fn next_check(&self, paused: u8) -> Time {
        let used = self.priorities();
        if used & paused == 0 {
            return self.earliest[1];
        }
        if used & !paused == 0 {
            return Time::FAR;
        }
        let may = (0..self.len()).filter(|&place| paused >> self.flows[place].priority & 1 == 0);
        may.map(|place| self.check_at(place)).min().unwrap_or(Time::FAR)
    }

    /// Priorities of the flows, one bit each.
    pub fn priorities(&self) -> u8 {
        (0..8).filter(|&priority| self.counts[priority] > 0).fold(0, |all, bit| all | 1 << bit)
    }

    const fn leaves(&self) -> usize {
        self.earliest.len() / 2
    }

    fn grow(&mut self) {
        let leaves = self.leaves();
        let before: Vec<Time> = self.earliest[leaves..].to_vec();
        self.earliest = vec![Time::FAR; 4 * leaves];
        for (place, check_at) in before.into_iter().enumerate() {
            self.set(place, check_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro128PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    /// Compares with a list that is searched from end to end.
    #[test]
    fn the_tree_equals_a_list() {
        for seed in 0..200 {
            let mut random = Xoshiro128PlusPlus::seed_from_u64(seed);
            let mut below = |n: usize| random.next_u32() as usize % n;
            let (mut tree, mut list) = (ActiveFlows::new(), Vec::<(Active, Time)>::new());
            for flow in 0..300 {
                let time = Time(below(50) as u64);
                match below(4) {
                    0 | 1 => {
                        let active = Active { flow, priority: if below(9) == 0 { 5 } else { 3 } };
                        assert_eq!(tree.push(active, time), list.len());
                        list.push((active, time));
                    }
                    2 if !list.is_empty() => {
                        let place = below(list.len());
                        tree.swap_remove(place);
                        list.swap_remove(place);
                    }
                    _ if !list.is_empty() => {
                        let place = below(list.len());
                        tree.set(place, time);
                        list[place].1 = time;
                    }
                    _ => {}
                }
                let (from, to) = (below(list.len() + 1), below(list.len() + 1));
                let mut places = from..to;
                assert_eq!(
                    tree.first(from, to, time),
                    places.find(|&place| list[place].1 <= time),
                    "seed {seed}"
                );
                for paused in [0, 1 << 3, 1 << 5, 0xff] {
                    let may = list.iter().filter(|(active, _)| paused >> active.priority & 1 == 0);
                    let next = may.map(|(_, time)| *time).min().unwrap_or(Time::FAR);
                    assert_eq!(tree.next_check(paused), next, "seed {seed}");
                }
                let used = list.iter().fold(0, |all, (active, _)| all | 1 << active.priority);
                assert_eq!((tree.priorities(), tree.len()), (used, list.len()), "seed {seed}");
            }
        }
    }
}
