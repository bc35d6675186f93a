//! What has changed between two looks at a [`Meter`].

use std::io::{self, Write};

use feroce_wire::MacAddr;
use serde_json::{Value, json};

use super::meter::{Meter, Priority};
use super::report::{share, shown};
use super::watch::Watched;
use crate::fabric::time::Time;

/// What a sender did to a priority since the look before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The sender.
    pub mac: MacAddr,
    /// The priority.
    pub priority: usize,
    /// Frames that pause it.
    pub xoff: u64,
    /// Frames that let it go.
    pub xon: u64,
    /// Part of the time that it was paused.
    pub share: f64,
    /// The longest pause since the beginning.
    pub longest: Time,
    /// Whether it is paused now.
    pub is_paused: bool,
}

/// The changes.
#[derive(Debug, Default)]
pub struct Recent {
    at: Time,
    span: Time,
    before: Vec<[Priority; 8]>,
    frames_before: u64,
    frames: u64,
    rows: Vec<Row>,
}

impl Recent {
    /// Looks again.
    pub fn look(&mut self, meter: &Meter) {
        let now = meter.now();
        self.span = now - self.at;
        self.at = now;
        self.rows.clear();
        self.before.resize(meter.senders().len(), [Priority::default(); 8]);
        for (sender, before) in meter.senders().iter().zip(&mut self.before) {
            for (priority, before) in before.iter_mut().enumerate() {
                let own = sender.priority(priority, now);
                if own.xoff + own.xon == 0 {
                    continue;
                }
                self.rows.push(Row {
                    mac: sender.mac,
                    priority,
                    xoff: own.xoff - before.xoff,
                    xon: own.xon - before.xon,
                    share: share(own.paused - before.paused, self.span),
                    longest: own.longest,
                    is_paused: sender.is_paused(priority),
                });
                *before = own;
            }
        }
        let frames = meter.frames();
        let frames = frames.pfc + frames.pause + frames.other;
        self.frames = frames - self.frames_before;
        self.frames_before = frames;
    }

    /// Of every sender and priority that was ever paused or let go.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Frames since the look before.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// When the last look was.
    pub const fn at(&self) -> Time {
        self.at
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().filter(|row| row.xoff + row.xon > 0 || row.share > 0.0);
        let rows: Vec<_> = rows
            .map(|row| {
                json!({
                    "mac": row.mac.to_string(), "priority": row.priority, "xoff": row.xoff, "xon": row.xon,
                    "share": row.share, "is_paused": row.is_paused,
                })
            })
            .collect();
        json!({ "span_ns": self.span.0 / 1000, "frames": self.frames, "priorities": rows })
    }

    /// A line about all, and one for each priority that something happened to.
    ///
    /// # Errors
    /// Of `out`.
    pub fn lines(&self, out: &mut impl Write, watched: &Watched<'_>) -> io::Result<()> {
        let frames = watched.meter.frames();
        writeln!(
            out,
            "{:>9}  {} frames, {} wrong, {} lost",
            shown(self.at),
            self.frames,
            frames.wrong,
            watched.lost
        )?;
        for row in self.rows.iter().filter(|row| row.xoff + row.xon > 0 || row.share > 0.0) {
            writeln!(
                out,
                "           {} priority {}: {} XOFF, {} XON, paused {:.1} %{}",
                row.mac,
                row.priority,
                row.xoff,
                row.xon,
                100.0 * row.share,
                if row.is_paused { ", still" } else { "" }
            )?;
        }
        if watched.is_swallowed() {
            let moved = watched.counters.iter().map(|(name, moved)| format!("{name} {moved}"));
            writeln!(
                out,
                "           counters of the NIC: {}",
                moved.collect::<Vec<_>>().join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame};

    use crate::fabric::time::LineRate;

    #[test]
    fn shares_are_of_the_time_since_the_look_before() {
        // A quantum is a nanosecond.
        let mut meter = Meter::new(Some(LineRate::new(512_000_000_000)));
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 500, 0, 0, 0, 0] };
        let bytes = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        let mut recent = Recent::default();
        meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO);
        for (at, due, paused) in [(250, 1.0, true), (1000, 1.0 / 3.0, false), (2000, 0.0, false)] {
            meter.advance(Time::from_nanos(at));
            meter.settle();
            recent.look(&meter);
            let row = recent.rows()[0];
            assert!((row.share - due).abs() < 1e-9, "{at}: {row:?}");
            assert_eq!((row.is_paused, row.priority), (paused, 3));
        }
    }
}
