//! Statistics of flow control frames on a link: how long and how often each priority is paused, and
//! by which sender. A value without I/O; the caller passes frames and times.
//!
//! A frame pauses the stations that send to its sender, so every sender has its own pauses. A new
//! pause replaces the previous one, and overlapping time counts once. A pause ends when its quanta
//! expire, or with a frame of 0 quanta (XON). PFC and PAUSE have separate timers (IEEE 802.3
//! annexes 31D and 31B): neither ends a pause of the other. A priority is blocked while its own
//! timer or that of PAUSE runs.

use std::collections::BTreeMap;

use feroce_wire::pause::Inspection;
use feroce_wire::{FlowControl, MacAddr};

use super::timeline::Timeline;
use super::timer::{PAUSE, TIMERS};
use crate::fabric::pause::Pauses;
use crate::fabric::time::{LinkRate, Time};

/// Maximum number of senders with statistics of their own. Frames of further senders are only
/// counted.
const SENDERS_MAX: usize = 1024;
/// Bins of the histogram of pause durations: from 1 ns on, each twice as wide as the previous one.
pub const DURATIONS: usize = 40;

const SECOND: u64 = 1_000_000_000_000;

/// Numbers of frames by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Frames {
    /// PFC.
    pub pfc: u64,
    /// PAUSE.
    pub pause: u64,
    /// Neither, or unreadable.
    pub other: u64,
    /// Malformed.
    pub wrong: u64,
    /// Ignored by receivers.
    pub ignored: u64,
}

/// Statistics of one sender and timer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimerStats {
    /// Frames that pause the priority.
    pub xoff: u64,
    /// Frames that resume the priority.
    pub xon: u64,
    /// XOFF frames received while the priority was paused.
    pub refreshed: u64,
    /// Pauses that have ended.
    pub pauses: u64,
    /// Pauses that ended because their time expired.
    pub expired: u64,
    /// Total pause time.
    pub paused: Time,
    /// Longest pause.
    pub longest: Time,
}

impl TimerStats {
    fn end(&mut self, span: Time) {
        self.pauses += 1;
        self.paused = self.paused + span;
        self.longest = self.longest.max(span);
    }
}

/// A sender of flow control frames.
#[derive(Debug, Clone)]
pub struct Sender {
    /// Source address.
    pub mac: MacAddr,
    /// Frames that receivers obey.
    pub frames: u64,
    stats: [TimerStats; TIMERS],
    /// PFC pauses.
    pauses: Pauses,
    /// The PAUSE pause, in the first entry.
    pause: Pauses,
    /// For each priority, the time for which its timer and that of PAUSE ran at the same time.
    /// Complete for ended pauses.
    overlap: [Time; PAUSE],
    durations: [[u64; DURATIONS]; TIMERS],
    timeline: Timeline,
}

/// Collects the statistics.
#[derive(Debug, Clone)]
pub struct Meter {
    rate: Option<LinkRate>,
    frames: Frames,
    findings: BTreeMap<&'static str, u64>,
    senders: Vec<Sender>,
    places: BTreeMap<MacAddr, usize>,
    /// Index of the last sender: consecutive frames usually have the same sender.
    last: usize,
    untracked: u64,
    now: Time,
    disordered: u64,
    second: u64,
    in_second: u64,
    peak: u64,
}

impl Meter {
    /// A meter for a link of this rate. Without a rate, frames are counted but pause times are
    /// unknown.
    pub fn new(rate: Option<LinkRate>) -> Self {
        Self {
            rate,
            frames: Frames::default(),
            findings: BTreeMap::new(),
            senders: Vec::new(),
            places: BTreeMap::new(),
            last: 0,
            untracked: 0,
            now: Time::ZERO,
            disordered: 0,
            second: 0,
            in_second: 0,
            peak: 0,
        }
    }

    /// Advances the time to `now`. A time before the previous one is replaced by the previous one.
    pub fn advance(&mut self, now: Time) {
        if now < self.now {
            self.disordered += 1;
        }
        self.now = self.now.max(now);
    }

    /// Takes a frame that arrived at `now`.
    pub fn take(&mut self, frame: &Inspection, now: Time) {
        self.advance(now);
        let second = self.now.0 / SECOND;
        self.in_second = if second == self.second { self.in_second + 1 } else { 1 };
        (self.second, self.peak) = (second, self.peak.max(self.in_second));
        match frame.control {
            Some(FlowControl::Pfc { .. }) => self.frames.pfc += 1,
            Some(FlowControl::Pause { .. }) => self.frames.pause += 1,
            None => self.frames.other += 1,
        }
        if !frame.findings.is_empty() {
            self.frames.wrong += 1;
            for finding in frame.findings.iter() {
                *self.findings.entry(finding.kind()).or_default() += 1;
            }
        }
        // Only senders of valid frames get an entry.
        match frame.obeyed() {
            Some(control) => match self.sender(frame.src) {
                Some(sender) => self.senders[sender].apply(control, self.rate, self.now),
                None => self.untracked += 1,
            },
            None => self.frames.ignored += u64::from(frame.is_refused()),
        }
    }

    fn sender(&mut self, mac: MacAddr) -> Option<usize> {
        let is_last = self.senders.get(self.last).is_some_and(|sender| sender.mac == mac);
        if !is_last {
            let known = self.places.get(&mac).copied();
            self.last = match known {
                Some(place) => place,
                None if self.senders.len() >= SENDERS_MAX => return None,
                None => {
                    self.senders.push(Sender::new(mac));
                    self.places.insert(mac, self.senders.len() - 1);
                    self.senders.len() - 1
                }
            };
        }
        self.senders[self.last].frames += 1;
        Some(self.last)
    }

    /// Ends all expired pauses.
    pub fn end_expired(&mut self) {
        let now = self.now;
        self.senders.iter_mut().for_each(|sender| sender.expire(now));
    }

    /// Link rate.
    pub const fn rate(&self) -> Option<LinkRate> {
        self.rate
    }

    /// The current time.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Frames by kind.
    pub const fn frames(&self) -> Frames {
        self.frames
    }

    /// Kinds of findings, and the number of frames with each.
    pub const fn findings(&self) -> &BTreeMap<&'static str, u64> {
        &self.findings
    }

    /// Number of timestamps that were before the previous one.
    pub const fn disordered(&self) -> u64 {
        self.disordered
    }

    /// Frames of senders beyond the first `SENDERS_MAX`.
    pub const fn untracked(&self) -> u64 {
        self.untracked
    }

    /// Maximum number of frames within one second.
    pub const fn peak(&self) -> u64 {
        self.peak
    }

    /// Senders, in the order of their first frames.
    pub fn senders(&self) -> &[Sender] {
        &self.senders
    }
}

impl Sender {
    fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            frames: 0,
            stats: [TimerStats::default(); TIMERS],
            pauses: Pauses::default(),
            pause: Pauses::default(),
            overlap: [Time::ZERO; PAUSE],
            durations: [[0; DURATIONS]; TIMERS],
            timeline: Timeline::new(),
        }
    }

    fn apply(&mut self, control: FlowControl, rate: Option<LinkRate>, now: Time) {
        self.expire(now);
        let Self { stats, pauses, pause, overlap, durations, timeline, .. } = self;
        let (first, pauses, others, enabled, quanta) = match control {
            FlowControl::Pfc { enabled, quanta } => (0, pauses, &*pause, enabled, quanta),
            FlowControl::Pause { quanta } => (PAUSE, pause, &*pauses, 1, [quanta; 8]),
        };
        for place in (0..8).filter(|p| enabled >> p & 1 == 1) {
            let own = &mut stats[first + place];
            match quanta[place] {
                0 => own.xon += 1,
                _ => {
                    own.xoff += 1;
                    own.refreshed += u64::from(pauses.since(place).is_some());
                }
            }
        }
        let Some(rate) = rate else { return };
        pauses.take_each(enabled, &quanta, rate, now, |place, since, until| {
            let timer = first + place;
            stats[timer].end(until - since);
            record_overlap(overlap, timer, (since, until), others);
            durations[timer][duration_bin(until - since)] += 1;
            timeline.add(timer, since, until);
        });
    }

    /// Ends expired pauses.
    fn expire(&mut self, now: Time) {
        let Self { stats, pauses, pause, overlap, durations, timeline, .. } = self;
        let mut ended = |timer: usize, since, until, others: &Pauses| {
            stats[timer].end(until - since);
            stats[timer].expired += 1;
            record_overlap(overlap, timer, (since, until), others);
            durations[timer][duration_bin(until - since)] += 1;
            timeline.add(timer, since, until);
        };
        pauses.expire(now, |priority, since, until| ended(priority, since, until, pause));
        pause.expire(now, |_, since, until| ended(PAUSE, since, until, pauses));
    }

    /// Start of the current pause of a timer, if it runs.
    fn since(&self, timer: usize) -> Option<Time> {
        if timer == PAUSE { self.pause.since(0) } else { self.pauses.since(timer) }
    }

    /// Statistics of a timer until `now`. A running pause counts up to `now`.
    pub fn stats(&self, timer: usize, now: Time) -> TimerStats {
        let mut own = self.stats[timer];
        if let Some(since) = self.since(timer) {
            own.paused = own.paused + (now - since);
            own.longest = own.longest.max(now - since);
        }
        own
    }

    /// Total time until `now` for which a priority was blocked, by its own timer or that of PAUSE.
    pub fn blocked_time(&self, priority: usize, now: Time) -> Time {
        let both = self.since(priority).zip(self.since(PAUSE));
        let open = both.map_or(Time::ZERO, |(own, all)| now - own.max(all));
        let each = self.stats(priority, now).paused + self.stats(PAUSE, now).paused;
        each - (self.overlap[priority] + open)
    }

    /// Returns true if the timer runs.
    pub fn is_paused(&self, timer: usize) -> bool {
        self.since(timer).is_some()
    }

    /// Histogram of the pause durations of a timer, with the bins of [`DURATIONS`]. A running pause
    /// counts with its duration up to `now`.
    pub fn durations(&self, timer: usize, now: Time) -> [u64; DURATIONS] {
        let mut durations = self.durations[timer];
        if let Some(since) = self.since(timer).filter(|since| *since < now) {
            durations[duration_bin(now - since)] += 1;
        }
        durations
    }

    /// The timers over time, until `now`.
    pub fn timeline(&self, now: Time) -> Timeline {
        let mut timeline = self.timeline.clone();
        for timer in 0..TIMERS {
            if let Some(since) = self.since(timer) {
                timeline.add(timer, since, now);
            }
        }
        timeline
    }
}

/// Accounts for the overlap of an ended pause of `timer` with the running pauses of the other kind.
/// Of two overlapping pauses, the first to end finds the other one running, so each pair is counted
/// once.
fn record_overlap(overlap: &mut [Time; PAUSE], timer: usize, pause: (Time, Time), others: &Pauses) {
    let (priorities, is_all) =
        if timer == PAUSE { (0..PAUSE, true) } else { (timer..timer + 1, false) };
    for priority in priorities {
        let Some(other) = others.span(if is_all { priority } else { 0 }) else { continue };
        let both = pause.1.min(other.1) - pause.0.max(other.0);
        overlap[priority] = overlap[priority] + both;
    }
}

/// Histogram bin of a duration; 1 ns and less is bin 0.
fn duration_bin(span: Time) -> usize {
    let nanos = span.0 / 1000;
    (usize::try_from(nanos.max(1).ilog2()).unwrap_or(0)).min(DURATIONS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::FlowControlFrame;
    use feroce_wire::pause::inspect;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// One quantum is 1 ns.
    const RATE: LinkRate = LinkRate::new(512_000_000_000);

    fn frame(src: u8, control: FlowControl) -> Inspection {
        let bytes = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, src]), control }.to_bytes();
        inspect(&bytes, bytes.len()).unwrap()
    }

    fn pfc(enabled: u8, quanta: u16) -> FlowControl {
        let quanta =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|p| if enabled >> p & 1 == 1 { quanta } else { 0 });
        FlowControl::Pfc { enabled, quanta }
    }

    #[test]
    fn overlaps_count_once_and_expiry_is_distinguished_from_xon() {
        let mut meter = Meter::new(Some(RATE));
        let at = Time::from_nanos;
        meter.take(&frame(1, pfc(8, 100)), at(0));
        meter.take(&frame(1, pfc(8, 100)), at(50));
        meter.take(&frame(1, pfc(8, 100)), at(200));
        meter.take(&frame(1, pfc(8, 0)), at(210));
        meter.take(&frame(1, pfc(8, 1000)), at(300));
        meter.advance(at(400));
        let own = meter.senders()[0].stats(3, meter.now());
        assert_eq!((own.xoff, own.xon, own.refreshed), (4, 1, 1));
        assert_eq!((own.pauses, own.expired), (2, 1));
        assert_eq!((own.paused, own.longest), (at(150 + 10 + 100), at(150)));
        assert_eq!(meter.senders()[0].stats(2, meter.now()), TimerStats::default());
    }

    #[test]
    fn senders_are_separate_and_ignored_frames_pause_nothing() {
        let mut meter = Meter::new(Some(RATE));
        meter.take(&frame(1, pfc(1, 100)), Time::ZERO);
        meter.take(&frame(2, pfc(1, 0)), Time::from_nanos(10));
        let mut bytes =
            FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control: pfc(1, 0) }.to_bytes();
        bytes[5] = 2;
        meter.take(&inspect(&bytes, 60).unwrap(), Time::from_nanos(20));
        meter.advance(Time::from_nanos(100));
        meter.end_expired();
        assert_eq!(meter.senders()[0].stats(0, meter.now()).paused, Time::from_nanos(100));
        assert_eq!(meter.senders()[1].stats(0, meter.now()).paused, Time::ZERO);
        assert_eq!((meter.frames().ignored, meter.frames().wrong), (1, 1));
        assert_eq!(meter.findings().get("destination"), Some(&1));
    }

    #[test]
    fn pfc_and_pause_have_separate_timers() {
        let mut meter = Meter::new(Some(RATE));
        let at = Time::from_nanos;
        meter.take(&frame(1, FlowControl::Pause { quanta: 100 }), at(0));
        meter.take(&frame(1, pfc(8, 200)), at(50));
        meter.take(&frame(1, pfc(0xff, 0)), at(60));
        meter.take(&frame(1, pfc(8, 500)), at(70));
        meter.take(&frame(1, FlowControl::Pause { quanta: 0 }), at(80));
        meter.advance(at(170));
        let sender = &meter.senders()[0];
        let pause = sender.stats(PAUSE, meter.now());
        assert_eq!((pause.xoff, pause.xon, pause.paused), (1, 1, at(80)));
        let priority = sender.stats(3, meter.now());
        assert_eq!((priority.xoff, priority.xon, priority.paused), (2, 1, at(10 + 100)));
        assert_eq!(sender.stats(2, meter.now()).xoff, 0, "PAUSE is no XOFF of PFC");
        assert_eq!(
            sender.blocked_time(3, meter.now()),
            at(170),
            "0 to 80 by PAUSE, 70 to 170 by PFC"
        );
        assert_eq!(sender.blocked_time(2, meter.now()), at(80));
        // The running pause is in the charts too.
        assert_eq!(sender.durations(3, meter.now()).iter().sum::<u64>(), 2);
        let shares = sender.timeline(meter.now()).shares(3, meter.now());
        assert!((shares[0].1 - 110.0 / 170.0).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn ignored_frames_add_no_sender_and_truncated_frames_are_not_ignored() {
        let mut meter = Meter::new(Some(RATE));
        for src in 0..=u8::MAX {
            let control = pfc(1, 1);
            let src = MacAddr([2, 0, 0, 0, 0, src]);
            let mut bytes = FlowControlFrame { src, control }.to_bytes();
            bytes[5] = 2;
            meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO);
        }
        assert_eq!((meter.senders().len(), meter.frames().ignored), (0, 256));
        let bytes = FlowControlFrame { src: MacAddr([2; 6]), control: pfc(0xff, 1) }.to_bytes();
        meter.take(&inspect(&bytes[..32], 60).unwrap(), Time::ZERO);
        assert_eq!((meter.frames().other, meter.frames().ignored), (1, 256));
    }

    #[test]
    fn the_number_of_senders_is_limited() {
        let mut meter = Meter::new(Some(RATE));
        for n in 0..5000_u32 {
            let [.., c, d] = n.to_be_bytes();
            let src = MacAddr([2, 0, 0, 0, c, d]);
            let bytes = FlowControlFrame { src, control: pfc(1, 1) }.to_bytes();
            meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO);
        }
        assert_eq!((meter.senders().len(), meter.untracked()), (SENDERS_MAX, 5000 - 1024));
    }

    /// Reference model in steps of 1 ns: for each timer its total run time, its longest run, and
    /// the time its priority was blocked.
    fn model(frames: &[(u64, FlowControl)], end: u64) -> [(u64, u64, u64); TIMERS] {
        let mut until = [0_u64; TIMERS];
        let (mut run, mut found) = ([0_u64; TIMERS], [(0, 0, 0); TIMERS]);
        for now in 0..end {
            for (_, control) in frames.iter().filter(|(at, _)| *at == now) {
                match *control {
                    FlowControl::Pfc { enabled, quanta } => (0..8)
                        .filter(|p| enabled >> p & 1 == 1)
                        .for_each(|p| until[p] = now + u64::from(quanta[p])),
                    FlowControl::Pause { quanta } => until[PAUSE] = now + u64::from(quanta),
                }
            }
            for timer in 0..TIMERS {
                run[timer] = if until[timer] > now { run[timer] + 1 } else { 0 };
                found[timer].0 += u64::from(until[timer] > now);
                found[timer].1 = found[timer].1.max(run[timer]);
                found[timer].2 += u64::from(until[timer].max(until[PAUSE]) > now);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn paused_times_match_a_model(
            mut frames in vec((0_u64..600, any::<u8>(), any::<[u8; 8]>(), 0_u8..3, 0_u8..4), 0..40),
        ) {
            frames.sort_by_key(|(at, ..)| *at);
            let frames: Vec<_> = frames.into_iter().map(|(at, enabled, spans, kind, opcode)| {
                // Pauses of all lengths, short pauses that end in between, and XONs.
                let quanta = spans.map(|span| match kind {
                    0 => 0,
                    1 => u16::from(span) % 8,
                    _ => u16::from(span),
                });
                let pause = FlowControl::Pause { quanta: quanta[0] };
                (at, if opcode == 0 { pause } else { FlowControl::Pfc { enabled, quanta } })
            }).collect();
            let mut meter = Meter::new(Some(RATE));
            for &(at, control) in &frames {
                meter.take(&frame(1, control), Time::from_nanos(at));
            }
            let end = 700;
            let expected = model(&frames, end);
            meter.advance(Time::from_nanos(end));
            meter.end_expired();
            for sender in meter.senders() {
                for (timer, expected) in expected.iter().enumerate() {
                    let own = sender.stats(timer, meter.now());
                    // In the model two adjacent pauses are one; in the meter they are two if the
                    // first has expired.
                    prop_assert_eq!(own.paused.0 / 1000, expected.0, "timer {}", timer);
                    prop_assert!(own.longest.0 / 1000 <= expected.1);
                    if timer < PAUSE {
                        let blocked = sender.blocked_time(timer, meter.now());
                        prop_assert_eq!(blocked.0 / 1000, expected.2);
                    }
                }
            }
        }
    }
}
