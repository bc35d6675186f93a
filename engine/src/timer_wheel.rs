//! Timers of many QPs: a hierarchical timing wheel over dense indices.
//!
//! There is one timer per index, which is a QP's slot on its core. The QP keeps its several timers
//! itself and sets the wheel's timer to the earliest. Setting and cancelling are O(1), finding the
//! next timer takes a few bit scans, and a jump of hours costs no more than one of a microsecond.
//! Nothing is allocated after [`TimerWheel::new`], whose memory is not resident until it is used.
//!
//! # Algorithm
//! A tick is 1.024 us. The tick of a deadline is a number of 54 bits: nine digits in base 64, with
//! one *level* per digit. A timer is on the level of the highest digit in which its tick differs
//! from the wheel's, in the list of that digit. So all lists of a level precede all lists of the
//! next level, no occupied list is before the wheel's tick, and the earliest timers are in the
//! lowest list of the lowest occupied level. When the wheel reaches a list of a higher level, the
//! timers of this list move to lower levels. The lists of level 0 are sorted by the exact deadline.
//!
//! Therefore the order of expiry is exact and repeatable: by deadline, and timers with equal
//! deadlines in the order in which they were set.

use zerocopy::FromZeros;

use crate::time::Instant;

/// A tick is 2^10 ns.
const TICK_BITS: u32 = 10;

/// Each level is one digit of 6 bits.
const DIGIT_BITS: u32 = 6;

/// Lists per level.
const LISTS: usize = 1 << DIGIT_BITS;

/// Levels for the 54 bits of a tick, which cover every deadline.
const LEVELS: usize = 9;

/// Marks the absence of an index.
const NONE: u32 = u32::MAX;

/// A timing wheel for timers `0..capacity`.
#[derive(Debug)]
pub struct TimerWheel {
    /// All lists before this tick are empty.
    tick: u64,
    /// Bit `d` of `occupied[level]`: list `d` of that level is not empty.
    occupied: [u64; LEVELS],
    lists: [List; LEVELS * LISTS],
    timers: Vec<Timer>,
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// A timer of zeros is not set.
#[derive(Debug, Clone, Copy, FromZeros)]
struct Timer {
    /// In nanoseconds, as [`Instant`].
    deadline: u64,
    before: u32,
    after: u32,
    /// Number of the timer's list plus one, or 0 if the timer is not set.
    list: u32,
}

impl Timer {
    fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline)
    }

    fn is_set(&self) -> bool {
        self.list != 0
    }
}

impl TimerWheel {
    /// Makes a wheel for timers `0..capacity`, none of them set. `now` is the start of time:
    /// earlier deadlines expire at once.
    ///
    /// # Panics
    /// If `capacity` is 2^32 - 1 or more.
    pub fn new(capacity: usize, now: Instant) -> Self {
        assert!(capacity < NONE as usize, "a wheel of {capacity} timers");
        Self {
            tick: tick_of(now),
            occupied: [0; LEVELS],
            lists: [List { first: NONE, last: NONE }; LEVELS * LISTS],
            timers: Timer::new_vec_zeroed(capacity).expect("memory"),
        }
    }

    /// Sets timer `index` to `deadline`, replacing its previous deadline.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn set(&mut self, index: u32, deadline: Instant) {
        self.cancel(index);
        self.timers[index as usize].deadline = deadline.as_nanos();
        self.insert(index);
    }

    /// Cancels timer `index`; does nothing if it is not set.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn cancel(&mut self, index: u32) {
        if self.timers[index as usize].is_set() {
            self.unlink(index);
        }
    }

    /// Returns the deadline of timer `index`, if it is set.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    pub fn deadline(&self, index: u32) -> Option<Instant> {
        let timer = &self.timers[index as usize];
        timer.is_set().then(|| timer.deadline())
    }

    /// Cancels and returns the earliest timer whose deadline is not after `now`.
    ///
    /// The caller may set timers between two calls. A timer set to `now` or earlier is also
    /// returned, so a loop that sets such timers needs a limit of its own.
    pub fn pop_expired(&mut self, now: Instant) -> Option<u32> {
        let target = tick_of(now);
        while let Some((level, digit)) = self.lowest() {
            let start = self.start_of(level, digit);
            if start > target {
                break;
            }
            // No list before `start` is occupied, so the wheel may advance to it.
            self.tick = self.tick.max(start);
            if level > 0 {
                self.cascade(level, digit);
                continue;
            }
            let first = self.lists[digit].first;
            if self.timers[first as usize].deadline() > now {
                return None;
            }
            self.unlink(first);
            return Some(first);
        }
        self.tick = self.tick.max(target);
        None
    }

    /// Returns the time for the next call: not later than the earliest deadline; `None` if no timer
    /// is set.
    ///
    /// The result is the earliest deadline, or an earlier multiple of ticks at which timers move to
    /// a lower level; at most eight of these precede a deadline. Once
    /// [`TimerWheel::pop_expired`] has returned `None` at `now`, the result is later than `now`.
    pub fn next_deadline_hint(&self) -> Option<Instant> {
        let (level, digit) = self.lowest()?;
        if level == 0 {
            let first = self.lists[digit].first;
            return Some(self.timers[first as usize].deadline());
        }
        Some(Instant::from_nanos(self.start_of(level, digit) << TICK_BITS))
    }

    /// Returns the lowest occupied list, as level and digit.
    fn lowest(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|&digits| digits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// Returns the first tick of a list that the wheel has not passed.
    fn start_of(&self, level: usize, digit: usize) -> u64 {
        let shift = shift_of(level);
        // Digits above the level are equal to the wheel's; those below start at zero.
        let above = self.tick >> shift >> DIGIT_BITS << DIGIT_BITS;
        (above | digit as u64) << shift
    }

    /// Moves the timers of a list to lower levels, when the wheel is at the start of the list.
    fn cascade(&mut self, level: usize, digit: usize) {
        let list = level * LISTS + digit;
        let mut next = self.lists[list].first;
        self.lists[list] = List { first: NONE, last: NONE };
        self.occupied[level] &= !(1 << digit);
        while next != NONE {
            let index = next;
            next = self.timers[index as usize].after;
            self.insert(index);
        }
    }

    /// Inserts a timer that is in no list into the list of its deadline.
    fn insert(&mut self, index: u32) {
        let deadline = self.timers[index as usize].deadline();
        let tick = tick_of(deadline).max(self.tick);
        let level = level_of(tick ^ self.tick);
        let digit = digit_of(tick, level);
        let list = level * LISTS + digit;
        let mut before = self.lists[list].last;
        if level == 0 {
            while before != NONE && self.timers[before as usize].deadline() > deadline {
                before = self.timers[before as usize].before;
            }
        }
        self.link(index, list, before);
        self.occupied[level] |= 1 << digit;
    }

    /// Links a timer into `list` after the timer `before`, or as the first one.
    fn link(&mut self, index: u32, list: usize, before: u32) {
        let ends = &mut self.lists[list];
        let after = match before {
            NONE => std::mem::replace(&mut ends.first, index),
            _ => std::mem::replace(&mut self.timers[before as usize].after, index),
        };
        match after {
            NONE => ends.last = index,
            _ => self.timers[after as usize].before = index,
        }
        let timer = &mut self.timers[index as usize];
        (timer.before, timer.after) = (before, after);
        #[allow(clippy::cast_possible_truncation)] // Below LEVELS * LISTS.
        {
            timer.list = list as u32 + 1;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Timer { before, after, list, .. } = self.timers[index as usize];
        let list = list as usize - 1;
        let ends = &mut self.lists[list];
        match before {
            NONE => ends.first = after,
            _ => self.timers[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            _ => self.timers[after as usize].before = before,
        }
        if ends.first == NONE {
            self.occupied[list / LISTS] &= !(1 << (list % LISTS));
        }
        self.timers[index as usize].list = 0;
    }
}

/// Returns the tick that contains a point in time.
fn tick_of(time: Instant) -> u64 {
    time.as_nanos() >> TICK_BITS
}

/// Returns the level of a timer, from the bits in which its tick differs from the wheel's.
fn level_of(difference: u64) -> usize {
    (difference | 1).ilog2() as usize / DIGIT_BITS as usize
}

/// Returns the digit of a tick on a level.
fn digit_of(tick: u64, level: usize) -> usize {
    #[allow(clippy::cast_possible_truncation)] // Below LISTS.
    let digit = (tick >> shift_of(level)) as usize & (LISTS - 1);
    digit
}

fn shift_of(level: usize) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // Below LEVELS.
    let level = level as u32;
    level * DIGIT_BITS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn expire(wheel: &mut TimerWheel, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.pop_expired(at(now))).collect()
    }

    #[test]
    fn fires_at_the_nanosecond_and_once() {
        let mut wheel = TimerWheel::new(4, at(0));
        wheel.set(1, at(67_108_864));
        assert!(expire(&mut wheel, 67_108_863).is_empty());
        assert_eq!(wheel.deadline(1), Some(at(67_108_864)));
        assert_eq!(wheel.next_deadline_hint(), Some(at(67_108_864)));
        assert_eq!(expire(&mut wheel, 67_108_864), [1]);
        assert!(expire(&mut wheel, u64::MAX).is_empty());
        assert_eq!((wheel.deadline(1), wheel.next_deadline_hint()), (None, None));
    }

    #[test]
    fn timers_expire_by_deadline_then_by_order_of_setting() {
        let mut wheel = TimerWheel::new(8, at(5));
        let far = 3_600_000_000_000;
        for (index, deadline) in [(7, far), (3, 2_000), (0, far), (5, 1_999), (1, far - 1), (2, 4)]
        {
            wheel.set(index, at(deadline));
        }
        assert_eq!(wheel.next_deadline_hint(), Some(at(4)), "a past deadline is due at once");
        assert_eq!(expire(&mut wheel, u64::MAX), [2, 5, 3, 1, 7, 0]);
    }

    #[test]
    fn a_later_setting_or_a_cancel_replaces_the_earlier() {
        let mut wheel = TimerWheel::new(2, at(0));
        wheel.set(0, at(10));
        wheel.set(1, at(10));
        wheel.set(0, at(1 << 40));
        wheel.cancel(1);
        wheel.cancel(1);
        assert!(expire(&mut wheel, (1 << 40) - 1).is_empty());
        assert_eq!(expire(&mut wheel, 1 << 40), [0]);
    }

    #[test]
    fn the_caller_may_set_timers_while_it_expires_them() {
        let mut wheel = TimerWheel::new(1, at(0));
        wheel.set(0, at(100));
        let mut fired = 0;
        while let Some(index) = wheel.pop_expired(at(1_000)) {
            fired += 1;
            wheel.set(index, at(100 + fired * 400));
        }
        assert_eq!((fired, wheel.deadline(0)), (3, Some(at(1_300))));
    }

    #[test]
    fn the_end_of_time_is_a_deadline_like_any_other() {
        let mut wheel = TimerWheel::new(1, at(0));
        wheel.set(0, Instant::FAR);
        assert!(expire(&mut wheel, u64::MAX - 1).is_empty());
        assert_eq!(expire(&mut wheel, u64::MAX), [0]);
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn an_index_beyond_the_capacity_panics() {
        TimerWheel::new(3, at(0)).set(3, at(1));
    }

    /// Hints are never later than the deadline, and waiting for each in turn reaches the deadline
    /// in a few steps: at most one per level.
    #[test]
    fn hints_make_progress() {
        let distances = [1, 1_023, 1_024, 65_536, 67_108_864, 20_000_000_000, 1 << 55];
        for (start, ahead) in [0, 65_535, (1 << 34) - 1, 1 << 62]
            .into_iter()
            .flat_map(|start| distances.map(|ahead| (start, ahead)))
        {
            let deadline = start + ahead;
            let mut wheel = TimerWheel::new(1, at(start));
            wheel.set(0, at(deadline));
            let (mut now, mut steps) = (start, 0);
            while let Some(hint) = wheel.next_deadline_hint() {
                assert!(hint > at(now) && hint <= at(deadline));
                now = hint.as_nanos();
                steps += 1;
                if expire(&mut wheel, now) == [0] {
                    break;
                }
            }
            assert_eq!(now, deadline);
            assert!(steps <= LEVELS, "{steps} steps from {start} to {deadline}");
        }
    }

    const TIMERS: u32 = 12;

    /// A model of a set of timers, as a sorted map: `(deadline, order of setting) -> index`.
    #[derive(Default)]
    struct Model {
        sorted: BTreeMap<(u64, u64), u32>,
        keys: BTreeMap<u32, (u64, u64)>,
        turn: u64,
    }

    impl Model {
        fn cancel(&mut self, index: u32) {
            if let Some(key) = self.keys.remove(&index) {
                self.sorted.remove(&key);
            }
        }

        fn set(&mut self, index: u32, deadline: u64) {
            self.cancel(index);
            self.turn += 1;
            self.sorted.insert((deadline, self.turn), index);
            self.keys.insert(index, (deadline, self.turn));
        }

        fn expire(&mut self, now: u64) -> Vec<u32> {
            let mut expired = Vec::new();
            while let Some((&(deadline, _), &index)) = self.sorted.first_key_value()
                && deadline <= now
            {
                self.cancel(index);
                expired.push(index);
            }
            expired
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Timer, time from now.
        Set(u32, u64),
        /// Timer, time before now.
        SetPast(u32, u64),
        /// Timer, and another timer whose deadline it takes.
        SetEqual(u32, u32),
        Cancel(u32),
        Advance(u64),
        /// Advances to the hint, as a sleeping core does.
        Sleep,
    }

    /// Times of every magnitude, including the digit boundaries of the wheel.
    fn distance() -> impl Strategy<Value = u64> {
        let boundary =
            (0..55_u32, 0..3_u64).prop_map(|(bits, off)| ((1 << bits) + off).saturating_sub(1));
        prop_oneof![0..3_000_u64, 0..200_000_u64, 0..20_000_000_000_u64, boundary]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..TIMERS, distance()).prop_map(|(index, ahead)| Step::Set(index, ahead)),
            1 => (0..TIMERS, distance()).prop_map(|(index, ago)| Step::SetPast(index, ago)),
            1 => (0..TIMERS, 0..TIMERS).prop_map(|(index, other)| Step::SetEqual(index, other)),
            1 => (0..TIMERS).prop_map(Step::Cancel),
            2 => distance().prop_map(Step::Advance),
            2 => Just(Step::Sleep),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn behaves_like_a_sorted_map(
            start in distance(),
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut now = start;
            let mut wheel = TimerWheel::new(TIMERS as usize, at(now));
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Set(index, ahead) => {
                        wheel.set(index, at(now.saturating_add(ahead)));
                        model.set(index, now.saturating_add(ahead));
                    }
                    Step::SetPast(index, ago) => {
                        wheel.set(index, at(now.saturating_sub(ago)));
                        model.set(index, now.saturating_sub(ago));
                    }
                    Step::SetEqual(index, other) => {
                        if let Some(deadline) = wheel.deadline(other) {
                            wheel.set(index, deadline);
                            model.set(index, deadline.as_nanos());
                        }
                    }
                    Step::Cancel(index) => {
                        wheel.cancel(index);
                        model.cancel(index);
                    }
                    Step::Advance(by) => {
                        now = now.saturating_add(by);
                        prop_assert_eq!(expire(&mut wheel, now), model.expire(now));
                    }
                    Step::Sleep => {
                        if let Some(hint) = wheel.next_deadline_hint() {
                            now = now.max(hint.as_nanos());
                            prop_assert_eq!(expire(&mut wheel, now), model.expire(now));
                            let next = wheel.next_deadline_hint();
                            prop_assert!(next.is_none_or(|next| next > at(now)));
                        }
                    }
                }
                let first = model.sorted.first_key_value();
                let earliest = first.map(|(&(deadline, _), _)| at(deadline));
                let hint = wheel.next_deadline_hint();
                prop_assert_eq!(hint.is_some(), earliest.is_some());
                prop_assert!(hint <= earliest, "{:?} is later than {:?}", hint, earliest);
                for index in 0..TIMERS {
                    let model = model.keys.get(&index).map(|&(deadline, _)| at(deadline));
                    prop_assert_eq!(wheel.deadline(index), model);
                }
            }
            prop_assert_eq!(expire(&mut wheel, u64::MAX), model.expire(u64::MAX));
        }
    }
}
