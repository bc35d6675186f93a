//! Statistics of a [`Meter`] as text and JSON; also single frames.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use feroce_wire::FlowControl;
use feroce_wire::pause::{Finding, Inspection};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::meter::{Meter, Sender, TimerStats};
use super::timer::{PAUSE, TIMERS};
use crate::fabric::time::{LinkRate, Time};

/// Prints a frame on one line.
///
/// # Errors
/// Errors of `out`.
pub fn frame_line(
    out: &mut impl Write,
    at: u64,
    rate: Option<LinkRate>,
    seen: &Inspection,
) -> io::Result<()> {
    write!(out, "{}.{:09} {} ", at / 1_000_000_000, at % 1_000_000_000, seen.src)?;
    let span = |out: &mut dyn Write, quanta: u16| match (quanta, rate) {
        (0, _) => write!(out, "XON"),
        (quanta, Some(rate)) => write!(out, "{quanta} ({})", shown(rate.quanta(quanta))),
        (quanta, None) => write!(out, "{quanta}"),
    };
    match seen.control {
        Some(FlowControl::Pfc { enabled, quanta }) => {
            write!(out, "PFC")?;
            for priority in (0..8).filter(|p| enabled >> p & 1 == 1) {
                write!(out, " {priority}:")?;
                span(out, quanta[priority])?;
            }
        }
        Some(FlowControl::Pause { quanta }) => {
            write!(out, "PAUSE ")?;
            span(out, quanta)?;
        }
        None => write!(out, "?")?,
    }
    let mut mark = "  [";
    for finding in seen.findings.iter() {
        write!(out, "{mark}{finding}")?;
        mark = "; ";
    }
    writeln!(out, "{}", if seen.findings.is_empty() { "" } else { "]" })
}

/// A frame as one line of JSON.
#[derive(Debug, Serialize)]
pub struct FrameLine<'a> {
    at_ns: u64,
    src: String,
    kind: &'a str,
    enabled: Option<u8>,
    quanta: Option<Vec<u16>>,
    obeyed: bool,
    findings: Vec<FindingLine>,
}

#[derive(Debug, Serialize)]
struct FindingLine {
    kind: &'static str,
    text: String,
}

impl From<Finding> for FindingLine {
    fn from(finding: Finding) -> Self {
        Self { kind: finding.kind(), text: finding.to_string() }
    }
}

impl FrameLine<'_> {
    /// A frame seen at `at_ns`.
    pub fn new(at_ns: u64, seen: &Inspection) -> Self {
        let (kind, enabled, quanta) = match seen.control {
            Some(FlowControl::Pfc { enabled, quanta }) => {
                ("pfc", Some(enabled), Some(quanta.into()))
            }
            Some(FlowControl::Pause { quanta }) => ("pause", None, Some(vec![quanta])),
            None => ("other", None, None),
        };
        let findings = seen.findings.iter().map(FindingLine::from).collect();
        let (src, obeyed) = (seen.src.to_string(), seen.obeyed().is_some());
        Self { at_ns, src, kind, enabled, quanta, obeyed, findings }
    }
}

/// Formats a time with three significant digits.
#[allow(clippy::cast_precision_loss)]
pub fn shown(time: Time) -> String {
    let units = [(1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns")];
    let picos = time.0 as f64;
    let (scale, unit) = units.into_iter().find(|(scale, _)| picos >= *scale).unwrap_or((1.0, "ps"));
    let value = picos / scale;
    let digits = if picos == 0.0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    if picos == 0.0 { "0".to_owned() } else { format!("{value:.digits$} {unit}") }
}

/// Prints the statistics as text.
///
/// # Errors
/// Errors of `out`.
pub fn text(out: &mut impl Write, meter: &Meter) -> io::Result<()> {
    let (frames, now) = (meter.frames(), meter.now());
    writeln!(
        out,
        "{} PFC, {} PAUSE, {} other flow control frames in {}; at most {} per second",
        frames.pfc,
        frames.pause,
        frames.other,
        shown(now),
        meter.peak()
    )?;
    if frames.wrong > 0 {
        let kinds: Vec<_> =
            meter.findings().iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(
            out,
            "{} malformed ({}), {} ignored by receivers",
            frames.wrong,
            kinds.join(", "),
            frames.ignored
        )?;
    }
    if meter.disordered() > 0 {
        writeln!(
            out,
            "{} timestamps were out of order and replaced by the previous one",
            meter.disordered()
        )?;
    }
    if meter.untracked() > 0 {
        writeln!(out, "{} frames of further senders, without statistics", meter.untracked())?;
    }
    if frames.pfc + frames.pause == 0 {
        return Ok(());
    }
    writeln!(out, "{}", table(meter))?;
    if meter.rate().is_none() {
        writeln!(out, "Pause times are unknown without the link rate (--rate).")?;
    }
    Ok(())
}

fn table(meter: &Meter) -> Table {
    let now = meter.now();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "sender",
        "priority",
        "XOFF",
        "XON",
        "refreshed",
        "pauses",
        "expired",
        "paused",
        "share",
        "longest",
        "blocked",
        "XOFF/s",
    ]);
    for (sender, timer) in meter.senders().iter().flat_map(|s| (0..TIMERS).map(move |t| (s, t))) {
        let own = sender.stats(timer, now);
        if own.xoff + own.xon == 0 {
            continue;
        }
        let timed = |text: String| if meter.rate().is_some() { text } else { "-".to_owned() };
        table.add_row([
            sender.mac.to_string(),
            if timer == PAUSE { "all".to_owned() } else { timer.to_string() },
            own.xoff.to_string(),
            own.xon.to_string(),
            timed(own.refreshed.to_string()),
            timed(own.pauses.to_string()),
            timed(own.expired.to_string()),
            timed(shown(own.paused)),
            timed(format!("{:.2} %", 100.0 * share(own.paused, now))),
            timed(shown(own.longest)),
            timed(format!("{:.2} %", 100.0 * share(blocked_time(sender, timer, now), now))),
            per_second(own.xoff, now),
        ]);
    }
    for column in 1..12 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Time for which a timer was blocked; a priority is also blocked by PAUSE.
pub(super) fn blocked_time(sender: &Sender, timer: usize, now: Time) -> Time {
    match timer {
        PAUSE => sender.stats(PAUSE, now).paused,
        priority => sender.blocked_time(priority, now),
    }
}

/// A time as a share of another.
pub fn share(part: Time, whole: Time) -> f64 {
    if whole == Time::ZERO { 0.0 } else { part.seconds() / whole.seconds() }
}

#[allow(clippy::cast_precision_loss)]
fn per_second(count: u64, time: Time) -> String {
    if time == Time::ZERO {
        "-".to_owned()
    } else {
        format!("{:.0}", count as f64 / time.seconds())
    }
}

/// The statistics as JSON.
pub fn json(meter: &Meter) -> Value {
    let now = meter.now();
    let figures = |sender: &Sender, timer: usize| {
        let own = sender.stats(timer, now);
        let is_paused = meter.rate().map(|_| sender.is_paused(timer));
        (own.xoff + own.xon > 0).then(|| {
            let mut figures = of_timer(&own, is_paused, now);
            figures["stood_still_ns"] =
                json!(is_paused.map(|_| blocked_time(sender, timer, now).0 / 1000));
            figures
        })
    };
    let of_sender = |sender: &Sender| {
        let priorities: Map<_, _> =
            (0..PAUSE).filter_map(|p| Some((p.to_string(), figures(sender, p)?))).collect();
        json!({
            "mac": sender.mac.to_string(),
            "frames": sender.frames,
            "priorities": priorities,
            "pause": figures(sender, PAUSE),
        })
    };
    let senders: Vec<_> = meter.senders().iter().map(of_sender).collect();
    json!({
        "rate": meter.rate().map(LinkRate::bits_per_second),
        "duration_ns": now.0 / 1000,
        "frames": meter.frames(),
        "peak_per_second": meter.peak(),
        "findings": meter.findings(),
        "disordered": meter.disordered(),
        "further_senders": meter.untracked(),
        "senders": senders,
    })
}

/// Statistics of a timer. `is_paused` is `None` if the rate is unknown; then all values that depend
/// on times are null.
fn of_timer(own: &TimerStats, is_paused: Option<bool>, now: Time) -> Value {
    let timed = |value: u64| is_paused.map(|_| value);
    json!({
        "xoff": own.xoff,
        "xon": own.xon,
        "refreshed": timed(own.refreshed),
        "pauses": timed(own.pauses),
        "expired": timed(own.expired),
        "paused_ns": timed(own.paused.0 / 1000),
        "share": is_paused.map(|_| share(own.paused, now)),
        "longest_ns": timed(own.longest.0 / 1000),
        "is_paused": is_paused,
    })
}

/// Prints a whole report as JSON.
pub(super) fn print_json(out: &mut impl Write, report: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let rows = [
            (0, "0"),
            (12_800, "12.8 ns"),
            (999_000, "999 ns"),
            (335_500_000, "336 us"),
            (1_500_000_000_000, "1.50 s"),
        ];
        for (picos, due) in rows {
            assert_eq!(shown(Time(picos)), due);
        }
    }
}
