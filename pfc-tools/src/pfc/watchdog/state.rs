//! The watchdog as a value: it eats what a priority has counted, with the time, and says when a storm begins and ends.
//!
//! As SONiC's pfcwd: a priority is stormed if, poll after poll for the detection time, pause frames came, it was paused for nearly all of the
//! time and sent nothing; it is restored if for the restoration time no pause frame came. A poll that is late counts
//! for the time that it really took. What was counted across a change of the link, or backwards, says nothing.

use crate::fabric::time::Time;

/// What is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// So long it must be stormed.
    pub detection: Time,
    /// So long it must be quiet.
    pub restoration: Time,
    /// The part of a poll's time in per cent that it must be paused.
    pub paused: u64,
}

/// What is known of a priority at a time, counted from whenever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Pause frames received.
    pub frames: u64,
    /// For how long they have paused it, if that is known.
    pub paused: Option<Time>,
    /// Packets that it has sent, if that is known.
    pub sent: Option<u64>,
    /// How often the link has come or gone.
    pub link_changes: u64,
    /// Whether the link is there.
    pub is_up: bool,
}

impl Sample {
    /// Whether it can tell a storm from traffic that is paused now and then.
    pub const fn is_enough(&self) -> bool {
        self.paused.is_some() || self.sent.is_some()
    }
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A storm began.
    Storm,
    /// It ended.
    Restored,
}

/// The watchdog of one priority.
#[derive(Debug, Clone)]
pub struct Watchdog {
    config: Config,
    last: Option<(Time, Sample)>,
    is_stormed: bool,
    /// For how long it has been stormed, or quiet in a storm.
    for_now: Time,
    /// Storms that began.
    pub storms: u64,
    /// Storms that ended.
    pub restored: u64,
}

impl Watchdog {
    /// Nothing is known yet.
    pub const fn new(config: Config) -> Self {
        let for_now = Time::ZERO;
        Self { config, last: None, is_stormed: false, for_now, storms: 0, restored: 0 }
    }

    /// Whether there is a storm.
    pub const fn is_stormed(&self) -> bool {
        self.is_stormed
    }

    /// Takes what is known at `now`.
    pub fn poll(&mut self, now: Time, sample: Sample) -> Option<Event> {
        let before = self.last.replace((now, sample));
        let comparable = before.filter(|(at, before)| {
            let is_back = sample.frames < before.frames
                || sample.sent < before.sent
                || sample.paused < before.paused;
            let is_same_link = sample.link_changes == before.link_changes;
            *at < now && sample.is_up && before.is_up && is_same_link && !is_back
        });
        let Some((at, before)) = comparable else {
            // Frames that nobody can send now do not come either: a storm ends with the link.
            let is_over = self.is_stormed && !sample.is_up;
            self.for_now = Time::ZERO;
            return if is_over { self.restore() } else { None };
        };
        let gap = now - at;
        let frames = sample.frames - before.frames;
        let counts = if self.is_stormed { frames == 0 } else { self.is_held(gap, before, sample) };
        self.for_now = if counts { self.for_now + gap } else { Time::ZERO };
        let needed = if self.is_stormed { self.config.restoration } else { self.config.detection };
        if self.for_now < needed {
            return None;
        }
        self.for_now = Time::ZERO;
        if self.is_stormed {
            return self.restore();
        }
        self.is_stormed = true;
        self.storms += 1;
        Some(Event::Storm)
    }

    /// Whether frames have kept the priority from sending for all of `gap`.
    fn is_held(&self, gap: Time, before: Sample, now: Sample) -> bool {
        let is_still = now.sent.zip(before.sent).is_none_or(|(now, before)| now == before);
        let is_paused = now.paused.zip(before.paused).is_none_or(|(now, before)| {
            (now - before).0.saturating_mul(100) >= gap.0.saturating_mul(self.config.paused)
        });
        now.frames > before.frames && now.is_enough() && is_still && is_paused
    }

    fn restore(&mut self) -> Option<Event> {
        (self.is_stormed, self.restored) = (false, self.restored + 1);
        Some(Event::Restored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config {
        detection: Time::from_millis(200),
        restoration: Time::from_millis(400),
        paused: 80,
    };

    /// Polls every 100 ms: frames that came, milliseconds paused, packets sent in between.
    fn play(dog: &mut Watchdog, polls: &[(u64, u64, u64)]) -> Vec<(usize, Event)> {
        let (mut at, mut sample) = dog.last.unwrap_or((Time::ZERO, UP));
        if dog.last.is_none() {
            dog.poll(at, sample);
        }
        let mut events = Vec::new();
        for (number, &(frames, paused, sent)) in (1..).zip(polls) {
            at = at + Time::from_millis(100);
            sample.frames += frames;
            sample.paused = sample.paused.map(|total| total + Time::from_millis(paused));
            sample.sent = sample.sent.map(|total| total + sent);
            events.extend(dog.poll(at, sample).map(|event| (number, event)));
        }
        events
    }

    const UP: Sample = Sample {
        frames: 7,
        paused: Some(Time::ZERO),
        sent: Some(100),
        link_changes: 2,
        is_up: true,
    };

    #[test]
    fn a_storm_is_found_after_its_time_and_ends_after_a_quiet_one() {
        let mut dog = Watchdog::new(CONFIG);
        let storm = (1000, 100, 0);
        assert_eq!(play(&mut dog, &[storm, storm, storm]), [(2, Event::Storm)]);
        // Three quiet polls, a frame, and four quiet ones.
        let quiet = (0, 0, 50);
        let polls = [quiet, quiet, quiet, (1, 0, 50), quiet, quiet, quiet, quiet, quiet];
        assert_eq!(play(&mut dog, &polls), [(8, Event::Restored)]);
        assert_eq!((dog.storms, dog.restored, dog.is_stormed()), (1, 1, false));
    }

    #[test]
    fn traffic_that_is_paused_now_and_then_is_no_storm() {
        let mut dog = Watchdog::new(CONFIG);
        // Heavy congestion: paused for nine tenths of the time, but packets leave; paused for little; stormed for too short.
        assert_eq!(play(&mut dog, &[(900, 90, 3); 20]), []);
        assert_eq!(play(&mut dog, &[(900, 79, 0); 20]), []);
        assert_eq!(play(&mut dog, &[(900, 100, 0), (0, 0, 9)].repeat(10)), []);
        // Paused by one long frame only once: nothing came in the second poll.
        assert_eq!(play(&mut dog, &[(1, 100, 0), (0, 100, 0), (0, 100, 0)]), []);
    }

    #[test]
    fn a_link_that_flaps_is_no_storm() {
        let mut dog = Watchdog::new(CONFIG);
        play(&mut dog, &[(0, 0, 5)]);
        let mut at = Time::from_millis(100);
        let mut poll = |dog: &mut Watchdog, sample| {
            at = at + Time::from_millis(100);
            dog.poll(at, sample)
        };
        // Down, and up again with counters that leap: as drivers do that convert quanta by the rate of a link that is not there.
        for flap in 0..10 {
            let link_changes = 3 + 2 * flap;
            let paused = Some(Time::from_millis(10_000 * (flap + 1)));
            let frames = 100 * (flap + 1);
            let down = Sample { is_up: false, link_changes, frames, paused, ..UP };
            let up = Sample { is_up: true, link_changes: link_changes + 1, ..down };
            assert_eq!([poll(&mut dog, down), poll(&mut dog, up)], [None, None]);
        }
        // A flap between two polls is seen by its count; counters that begin again are, too.
        let between = Sample {
            link_changes: 100,
            frames: 5000,
            paused: Some(Time::from_millis(200_000)),
            ..UP
        };
        assert_eq!(poll(&mut dog, between), None);
        assert_eq!(poll(&mut dog, Sample { frames: 0, paused: Some(Time::ZERO), ..between }), None);
        assert_eq!(dog.storms, 0);
    }

    #[test]
    fn a_storm_ends_with_its_link() {
        let mut dog = Watchdog::new(CONFIG);
        play(&mut dog, &[(9, 100, 0); 3]);
        let down = Sample { is_up: false, link_changes: 3, ..UP };
        assert_eq!(dog.poll(Time::from_millis(400), down), Some(Event::Restored));
        assert_eq!(dog.poll(Time::from_millis(500), down), None);
    }

    #[test]
    fn a_late_poll_counts_for_its_time() {
        let mut dog = Watchdog::new(CONFIG);
        dog.poll(Time::ZERO, UP);
        let paused = Some(Time::from_millis(230));
        let late = Sample { frames: 9, paused, ..UP };
        assert_eq!(dog.poll(Time::from_millis(250), late), Some(Event::Storm));
    }

    #[test]
    fn what_is_not_counted_decides_nothing() {
        let mut dog = Watchdog::new(CONFIG);
        let mut frames = Sample { paused: None, sent: None, ..UP };
        for poll in 0..20 {
            frames.frames += 1000;
            assert_eq!(dog.poll(Time::from_millis(100 * poll), frames), None);
        }
        assert!(!frames.is_enough());
    }
}
