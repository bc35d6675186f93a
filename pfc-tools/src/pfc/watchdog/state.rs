//! The watchdog's state machine, a value without I/O: takes samples with their times and reports
//! the start and end of storms.
//!
//! Like SONiC's pfcwd: a priority is stormed if in every poll of the detection time pause frames
//! arrived, the priority was paused for nearly all of the time, and it sent nothing. It is restored
//! if no pause frame arrived for the restoration time. A late poll counts with its actual time.
//! Samples are not compared across a link change or when counters decrease.

use crate::fabric::time::Time;

/// Configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Detection time.
    pub detection: Time,
    /// Restoration time.
    pub restoration: Time,
    /// Minimum share of a poll's time that the priority must be paused, in percent.
    pub paused: u64,
}

/// Counters of a priority at some time, counted from an arbitrary start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Pause frames received.
    pub frames: u64,
    /// Total pause time, if known.
    pub paused: Option<Time>,
    /// Packets sent, if known.
    pub sent: Option<u64>,
    /// Number of link changes.
    pub link_changes: u64,
    /// Link state.
    pub is_up: bool,
}

impl Sample {
    /// Returns true if the sample is sufficient to distinguish a storm from occasional pauses.
    pub const fn is_enough(&self) -> bool {
        self.paused.is_some() || self.sent.is_some()
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A storm started.
    Storm,
    /// The storm ended.
    Restored,
}

/// The watchdog of one priority.
#[derive(Debug, Clone)]
pub struct Watchdog {
    config: Config,
    last: Option<(Time, Sample)>,
    is_stormed: bool,
    /// Time for which the priority has been stormed, or quiet during a storm.
    for_now: Time,
    /// Storms started.
    pub storms: u64,
    /// Storms ended.
    pub restored: u64,
}

impl Watchdog {
    /// A watchdog without samples.
    pub const fn new(config: Config) -> Self {
        let for_now = Time::ZERO;
        Self { config, last: None, is_stormed: false, for_now, storms: 0, restored: 0 }
    }

    /// Returns true during a storm.
    pub const fn is_stormed(&self) -> bool {
        self.is_stormed
    }

    /// Takes a sample at `now`.
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
            // A storm ends with the link: no frames can arrive.
            let is_over = self.is_stormed && !sample.is_up;
            self.for_now = Time::ZERO;
            return if is_over { self.restore() } else { None };
        };
        let gap = now - at;
        let frames = sample.frames - before.frames;
        let counts =
            if self.is_stormed { frames == 0 } else { self.is_blocked(gap, before, sample) };
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

    /// Returns true if pauses kept the priority from sending for all of `gap`.
    fn is_blocked(&self, gap: Time, before: Sample, now: Sample) -> bool {
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

    /// Polls every 100 ms: pause frames, milliseconds paused, and packets sent since the previous
    /// poll.
    fn play(watchdog: &mut Watchdog, polls: &[(u64, u64, u64)]) -> Vec<(usize, Event)> {
        let (mut at, mut sample) = watchdog.last.unwrap_or((Time::ZERO, UP));
        if watchdog.last.is_none() {
            watchdog.poll(at, sample);
        }
        let mut events = Vec::new();
        for (number, &(frames, paused, sent)) in (1..).zip(polls) {
            at = at + Time::from_millis(100);
            sample.frames += frames;
            sample.paused = sample.paused.map(|total| total + Time::from_millis(paused));
            sample.sent = sample.sent.map(|total| total + sent);
            events.extend(watchdog.poll(at, sample).map(|event| (number, event)));
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
    fn a_storm_is_detected_and_restored_after_the_configured_times() {
        let mut watchdog = Watchdog::new(CONFIG);
        let storm = (1000, 100, 0);
        assert_eq!(play(&mut watchdog, &[storm, storm, storm]), [(2, Event::Storm)]);
        // Three quiet polls, one with a frame, and five quiet ones.
        let quiet = (0, 0, 50);
        let polls = [quiet, quiet, quiet, (1, 0, 50), quiet, quiet, quiet, quiet, quiet];
        assert_eq!(play(&mut watchdog, &polls), [(8, Event::Restored)]);
        assert_eq!((watchdog.storms, watchdog.restored, watchdog.is_stormed()), (1, 1, false));
    }

    #[test]
    fn occasional_pauses_are_no_storm() {
        let mut watchdog = Watchdog::new(CONFIG);
        // Not storms: congestion with 90 % pause time but packets sent, too little pause time, too
        // short.
        assert_eq!(play(&mut watchdog, &[(900, 90, 3); 20]), []);
        assert_eq!(play(&mut watchdog, &[(900, 79, 0); 20]), []);
        assert_eq!(play(&mut watchdog, &[(900, 100, 0), (0, 0, 9)].repeat(10)), []);
        // Paused by one long frame: no frame in the second poll.
        assert_eq!(play(&mut watchdog, &[(1, 100, 0), (0, 100, 0), (0, 100, 0)]), []);
    }

    #[test]
    fn a_link_that_flaps_is_no_storm() {
        let mut watchdog = Watchdog::new(CONFIG);
        play(&mut watchdog, &[(0, 0, 5)]);
        let mut at = Time::from_millis(100);
        let mut poll = |watchdog: &mut Watchdog, sample| {
            at = at + Time::from_millis(100);
            watchdog.poll(at, sample)
        };
        // The link goes down and comes up again with jumping counters, as with drivers that convert
        // quanta by the rate of a link that is down.
        for flap in 0..10 {
            let link_changes = 3 + 2 * flap;
            let paused = Some(Time::from_millis(10_000 * (flap + 1)));
            let frames = 100 * (flap + 1);
            let down = Sample { is_up: false, link_changes, frames, paused, ..UP };
            let up = Sample { is_up: true, link_changes: link_changes + 1, ..down };
            assert_eq!([poll(&mut watchdog, down), poll(&mut watchdog, up)], [None, None]);
        }
        // A flap between two polls is detected by its count, and so are counters that restart.
        let between = Sample {
            link_changes: 100,
            frames: 5000,
            paused: Some(Time::from_millis(200_000)),
            ..UP
        };
        assert_eq!(poll(&mut watchdog, between), None);
        assert_eq!(
            poll(&mut watchdog, Sample { frames: 0, paused: Some(Time::ZERO), ..between }),
            None
        );
        assert_eq!(watchdog.storms, 0);
    }

    #[test]
    fn a_storm_ends_with_its_link() {
        let mut watchdog = Watchdog::new(CONFIG);
        play(&mut watchdog, &[(9, 100, 0); 3]);
        let down = Sample { is_up: false, link_changes: 3, ..UP };
        assert_eq!(watchdog.poll(Time::from_millis(400), down), Some(Event::Restored));
        assert_eq!(watchdog.poll(Time::from_millis(500), down), None);
    }

    #[test]
    fn a_late_poll_counts_with_its_actual_time() {
        let mut watchdog = Watchdog::new(CONFIG);
        watchdog.poll(Time::ZERO, UP);
        let paused = Some(Time::from_millis(230));
        let late = Sample { frames: 9, paused, ..UP };
        assert_eq!(watchdog.poll(Time::from_millis(250), late), Some(Event::Storm));
    }

    #[test]
    fn unknown_counters_detect_no_storm() {
        let mut watchdog = Watchdog::new(CONFIG);
        let mut frames = Sample { paused: None, sent: None, ..UP };
        for poll in 0..20 {
            frames.frames += 1000;
            assert_eq!(watchdog.poll(Time::from_millis(100 * poll), frames), None);
        }
        assert!(!frames.is_enough());
    }
}
