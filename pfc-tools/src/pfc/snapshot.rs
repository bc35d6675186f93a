//! The state that `watch` shows at one time, as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::counters::{Counted, Direction, counted};
use super::delta::Delta;
use super::meter::Meter;
use super::report::{self, shown};
use super::timer::timer_name;
use crate::fabric::time::Time;

/// A processing delay of this length is reported.
const REPORTED_LAG: Time = Time::from_millis(100);

/// The current state.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Name of the interface.
    pub interface: &'a str,
    /// Statistics of the frames seen.
    pub meter: &'a Meter,
    /// Changes since the previous update.
    pub delta: &'a Delta,
    /// Increases of the NIC's counters since the start.
    pub counters: &'a BTreeMap<String, u64>,
    /// Frames dropped by the kernel because they arrived too fast.
    pub lost: u64,
    /// Longest processing delay of a frame: since the previous update, and overall.
    pub lag: [Time; 2],
}

impl Snapshot<'_> {
    /// Returns true if the NIC has counted more flow control frames than were seen or lost: the NIC
    /// consumes them itself.
    pub fn nic_consumes_frames(&self) -> bool {
        let (frames, now) = (self.meter.frames(), self.meter.now());
        let seen = |priority: Option<u8>| match priority {
            None => frames.pfc + frames.pause + frames.other,
            Some(priority) => {
                let own = self.meter.senders().iter().map(|s| s.stats(priority.into(), now));
                own.map(|own| own.xoff + own.xon).sum::<u64>() + self.meter.untracked()
            }
        };
        counted(self.counters).iter().any(|(&(direction, priority), counted)| {
            direction == Direction::Rx && counted.frames > seen(priority) + self.lost
        })
    }

    /// Returns true if processing was delayed noticeably.
    pub fn is_lagging(&self) -> bool {
        self.lag[1] >= REPORTED_LAG
    }

    /// Notes on the accuracy of the statistics.
    pub fn notes(&self) -> Vec<String> {
        let consumed = self
            .nic_consumes_frames()
            .then(|| "the NIC consumes PFC frames itself: see its counters".to_owned());
        let lost = (self.lost > 0).then(|| {
            format!(
                "the kernel dropped {} frames that arrived too fast: the statistics lack them",
                self.lost
            )
        });
        let lag = self.is_lagging().then(|| {
            let [recent, longest] = self.lag;
            let recent = if recent >= REPORTED_LAG { shown(recent) } else { "not".to_owned() };
            format!(
                "processing is late, because of too many frames or a busy machine: {recent} now, \
                 at most {}",
                shown(longest)
            )
        });
        let rate =
            self.meter.rate().is_none().then(|| {
                "the link rate is unknown: set it with --rate to get pause times".to_owned()
            });
        consumed.into_iter().chain(lost).chain(lag).chain(rate).collect()
    }

    /// The state as JSON.
    pub(super) fn json(&self) -> Value {
        let mut figures = report::json(self.meter);
        figures["interface"] = self.interface.into();
        figures["recent"] = self.delta.json();
        figures["counters"] = json!(self.counters);
        figures["swallowed"] = self.nic_consumes_frames().into();
        figures["lost"] = self.lost.into();
        figures["behind_ns"] = (self.lag[0].0 / 1000).into();
        figures["most_behind_ns"] = (self.lag[1].0 / 1000).into();
        figures
    }

    /// A line with totals, and one for each active priority.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn lines(&self, out: &mut impl Write) -> io::Result<()> {
        let delta = self.delta;
        let frames = self.meter.frames();
        let [recent, _] = self.lag;
        let lag = match self.is_lagging() {
            true => format!(", {} behind", shown(recent)),
            false => String::new(),
        };
        writeln!(
            out,
            "{:>9}  {} frames, {} wrong; since the start {} wrong, {} dropped by the kernel{lag}",
            shown(delta.at()),
            delta.frames(),
            delta.wrong(),
            frames.wrong,
            self.lost
        )?;
        for row in delta.rows().iter().filter(|row| !row.is_quiet()) {
            let paused = row.share.map(|share| format!(", paused {:.1} %", 100.0 * share));
            let paused = paused.unwrap_or_default();
            let still = if row.is_paused == Some(true) { ", still" } else { "" };
            writeln!(
                out,
                "           {} {}: {} XOFF, {} XON{paused}{still}",
                row.mac,
                timer_name(row.timer),
                row.xoff,
                row.xon
            )?;
        }
        if self.nic_consumes_frames() {
            for row in delta.counted() {
                let (direction, Counted { frames, micros }) = (row.direction.name(), row.counted);
                let whose = row.priority.map_or("all".to_owned(), |p| format!("priority {p}"));
                write!(out, "           NIC {direction} {whose}: {frames} frames")?;
                if let (Some(micros), Some(share)) = (micros, row.share) {
                    write!(out, ", paused {micros} us ({:.1} %)", 100.0 * share)?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControlFrame, MacAddr};

    use super::super::schedule::pfc;

    #[test]
    fn a_line_counts_frames_and_wrong_ones_of_the_same_interval() {
        let mut meter = Meter::new(None);
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control: pfc(8, 1) };
        let mut bytes = frame.to_bytes();
        let counters = BTreeMap::new();
        let mut delta = Delta::default();
        let mut line = |meter: &Meter| {
            delta.update(meter, &counters);
            let (interface, lag) = ("x", [Time::ZERO; 2]);
            let (meter, delta, counters, lost) = (meter, &delta, &counters, 0);
            let snapshot = Snapshot { interface, meter, delta, counters, lost, lag };
            let mut out = Vec::new();
            snapshot.lines(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        bytes[59] = 1;
        (0..2).for_each(|_| meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO));
        let first = line(&meter);
        assert!(first.contains("2 frames, 2 wrong; since the start 2 wrong"), "{first}");
        meter.take(&inspect(&frame.to_bytes(), 60).unwrap(), Time::ZERO);
        let second = line(&meter);
        assert!(second.contains("1 frames, 0 wrong; since the start 2 wrong"), "{second}");
    }

    #[test]
    fn a_nic_that_counts_more_than_seen_consumes_frames() {
        let mut meter = Meter::new(None);
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control: pfc(8, 1) };
        let seen = inspect(&frame.to_bytes(), 60).unwrap();
        (0..3).for_each(|_| meter.take(&seen, Time::ZERO));
        let delta = Delta::default();
        let nic_consumes_frames = |name: &str, moved, lost| {
            let counters = [(name.to_owned(), moved)].into();
            Snapshot {
                interface: "x",
                meter: &meter,
                delta: &delta,
                counters: &counters,
                lost,
                lag: [Time::ZERO; 2],
            }
            .nic_consumes_frames()
        };
        assert!(
            !nic_consumes_frames("rx_prio3_pause", 3, 0)
                && !nic_consumes_frames("rx_global_pause", 3, 0)
        );
        assert!(
            nic_consumes_frames("rx_prio3_pause", 4, 0)
                && nic_consumes_frames("rx_prio4_pause", 1, 0)
        );
        assert!(
            !nic_consumes_frames("rx_prio3_pause", 4, 1)
                && !nic_consumes_frames("tx_prio3_pause", 9, 0)
        );
    }
}
