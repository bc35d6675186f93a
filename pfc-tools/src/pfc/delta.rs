//! Changes between two readings of a [`Meter`].

use std::collections::BTreeMap;

use feroce_wire::MacAddr;
use serde_json::{Value, json};

use super::counters::{Counted, Direction, counted, difference};
use super::meter::{Meter, TimerStats};
use super::report::{blocked_time, share};
use super::timer::{PAUSE, TIMERS};
use crate::fabric::time::Time;

/// Activity of a sender and timer since the previous reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The sender.
    pub mac: MacAddr,
    /// The timer of a priority, or of PAUSE.
    pub timer: usize,
    /// Frames that pause.
    pub xoff: u64,
    /// Frames that resume.
    pub xon: u64,
    /// Share of the time paused, if the link rate is known.
    pub share: Option<f64>,
    /// Whether the timer runs now, if the link rate is known.
    pub is_paused: Option<bool>,
    /// Share of the whole time paused, if the link rate is known.
    pub of_all: Option<f64>,
    /// Statistics since the start.
    pub total: TimerStats,
}

impl Row {
    pub(super) fn is_quiet(&self) -> bool {
        self.xoff + self.xon == 0 && self.share.is_none_or(|share| share == 0.0)
    }
}

/// The changes.
#[derive(Debug, Default)]
pub struct Delta {
    at: Time,
    span: Time,
    before: Vec<[TimerStats; TIMERS]>,
    blocked_before: Vec<[Time; TIMERS]>,
    /// For each timer, the largest share of time for which a sender blocked it.
    blocked_time: [Option<f64>; TIMERS],
    frames_before: u64,
    frames: u64,
    wrong_before: u64,
    wrong: u64,
    rows: Vec<Row>,
    counters: BTreeMap<String, u64>,
    counted: Vec<CountedRow>,
}

/// The NIC's counters of a priority, increase since the previous reading.
#[derive(Debug, Clone, Copy)]
pub struct CountedRow {
    /// Direction of the frames.
    pub direction: Direction,
    /// Priority; `None` for PAUSE, or for a total over all priorities.
    pub priority: Option<u8>,
    /// Frames and pause time.
    pub counted: Counted,
    /// Share of the time paused, if the NIC counts pause time.
    pub share: Option<f64>,
}

impl CountedRow {
    /// Returns true if the link partner pauses this host, false if this host pauses its partner.
    pub fn is_received(&self) -> bool {
        self.direction == Direction::Rx
    }
}

impl Delta {
    /// Takes a reading. `counters` are the NIC's increases since the start.
    pub fn update(&mut self, meter: &Meter, counters: &BTreeMap<String, u64>) {
        let (now, known) = (meter.now(), meter.rate().is_some());
        self.span = now - self.at;
        self.at = now;
        self.rows.clear();
        self.before.resize(meter.senders().len(), [TimerStats::default(); TIMERS]);
        for (sender, before) in meter.senders().iter().zip(&mut self.before) {
            for (timer, before) in before.iter_mut().enumerate() {
                let own = sender.stats(timer, now);
                if own.xoff + own.xon == 0 {
                    continue;
                }
                self.rows.push(Row {
                    mac: sender.mac,
                    timer,
                    xoff: own.xoff - before.xoff,
                    xon: own.xon - before.xon,
                    share: known.then(|| share(own.paused - before.paused, self.span)),
                    is_paused: known.then(|| sender.is_paused(timer)),
                    of_all: known.then(|| share(own.paused, now)),
                    total: own,
                });
                *before = own;
            }
        }
        self.update_blocked(meter);
        let frames = meter.frames();
        self.wrong = frames.wrong - self.wrong_before;
        self.wrong_before = frames.wrong;
        let frames = frames.pfc + frames.pause + frames.other;
        self.frames = frames - self.frames_before;
        self.frames_before = frames;
        let span = self.span;
        let moved = counted(&difference(counters, &self.counters)).into_iter();
        self.counted = moved
            .map(|((direction, priority), counted)| {
                let share = counted.micros.map(|micros| share(Time::from_micros(micros), span));
                CountedRow { direction, priority, counted, share }
            })
            .collect();
        self.counters.clone_from(counters);
        for row in self.counted.iter().filter(|row| row.is_received()) {
            let blocked_time = &mut self.blocked_time[row.priority.map_or(PAUSE, usize::from)];
            *blocked_time = larger(*blocked_time, row.share);
        }
    }

    /// Computes the share of time for which each timer was blocked.
    fn update_blocked(&mut self, meter: &Meter) {
        self.blocked_time = [None; TIMERS];
        self.blocked_before.resize(meter.senders().len(), [Time::ZERO; TIMERS]);
        if meter.rate().is_none() {
            return;
        }
        for (sender, before) in meter.senders().iter().zip(&mut self.blocked_before) {
            for (timer, before) in before.iter_mut().enumerate() {
                let total = blocked_time(sender, timer, meter.now());
                let share = share(total - *before, self.span);
                self.blocked_time[timer] = larger(self.blocked_time[timer], Some(share));
                *before = total;
            }
        }
    }

    /// Share of the time since the previous reading for which a timer was blocked, if known. A
    /// priority is also blocked by PAUSE.
    pub const fn blocked_time(&self, timer: usize) -> Option<f64> {
        self.blocked_time[timer]
    }

    /// Returns true if any frame of a timer was ever seen, or counted since the previous reading.
    pub fn has(&self, timer: usize) -> bool {
        self.rows.iter().any(|row| row.timer == timer)
            || self.counted.iter().any(|row| row.priority.map_or(PAUSE, usize::from) == timer)
    }

    /// Increases of the NIC's counters since the previous reading.
    pub fn counted(&self) -> &[CountedRow] {
        &self.counted
    }

    /// Frames per second since the previous reading.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn frames_per_second(&self) -> u64 {
        if self.span == Time::ZERO { 0 } else { (self.frames as f64 / self.span.seconds()) as u64 }
    }

    /// A row for every sender and timer with at least one frame.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Frames since the previous reading.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Malformed frames since the previous reading.
    pub const fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Time of the last reading.
    pub const fn at(&self) -> Time {
        self.at
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().filter(|row| !row.is_quiet());
        let rows: Vec<_> = rows
            .map(|row| {
                let priority: Value =
                    if row.timer == PAUSE { "all".into() } else { row.timer.into() };
                json!({
                    "mac": row.mac.to_string(), "priority": priority,
                    "xoff": row.xoff, "xon": row.xon,
                    "share": row.share, "is_paused": row.is_paused,
                })
            })
            .collect();
        let counted = self.counted.iter().map(|row| {
            json!({
                "direction": row.direction.name(), "priority": row.priority,
                "frames": row.counted.frames,
                "paused_us": row.counted.micros, "share": row.share,
            })
        });
        json!({
            "span_ns": self.span.0 / 1000,
            "frames": self.frames,
            "wrong": self.wrong,
            "priorities": rows,
            "counters": counted.collect::<Vec<_>>(),
        })
    }
}

/// The larger of two values, each of which may be unknown.
fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame};

    use crate::fabric::time::LinkRate;

    #[test]
    fn shares_refer_to_the_last_interval() {
        // One quantum is 1 ns.
        let mut meter = Meter::new(Some(LinkRate::new(512_000_000_000)));
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 500, 0, 0, 0, 0] };
        let bytes = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        let mut delta = Delta::default();
        meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO);
        for (at, due, paused) in [(250, 1.0, true), (1000, 1.0 / 3.0, false), (2000, 0.0, false)] {
            meter.advance(Time::from_nanos(at));
            meter.end_expired();
            delta.update(&meter, &BTreeMap::new());
            let row = delta.rows()[0];
            assert!((row.share.unwrap() - due).abs() < 1e-9, "{at}: {row:?}");
            assert_eq!((row.is_paused, row.timer), (Some(paused), 3));
        }
    }
}
