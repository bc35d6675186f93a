//! HTML page with the statistics of a [`Meter`]: tables, timelines and pause durations.

use std::path::Path;

use super::meter::{DURATIONS, Meter, Sender};
use super::outcome::Failure;
use super::report::{share, shown};
use super::timer::{PAUSE, TIMERS, timer_name};
use crate::fabric::time::Time;
use crate::plot::{Axis, Cell, Chart, Kind, Page, Part, Series, Table};
use feroce_engine::files;

/// Maximum number of senders with a timeline, those with the longest pause time first.
const TIMELINES: usize = 8;

/// Writes the page to a file.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Path, title: &str, meter: &Meter) -> Result<(), Failure> {
    files::write(file, page(title, meter).html())
        .map_err(|error| Failure::Unusable(format!("cannot write {}: {error}", file.display())))
}

/// Builds the page.
pub fn page(title: &str, meter: &Meter) -> Page {
    let frames = meter.frames();
    let counts = format!(
        "{} PFC, {} PAUSE and {} other flow control frames in {}; {} malformed.",
        frames.pfc,
        frames.pause,
        frames.other,
        shown(meter.now()),
        frames.wrong
    );
    let mut parts = vec![Part::Paragraph(counts), Part::Table(figures(meter))];
    if !meter.findings().is_empty() {
        parts.push(Part::Table(findings(meter)));
    }
    if meter.rate().is_some() {
        parts.push(Part::Charts(charts(meter)));
    }
    Page { title: title.to_owned(), parts, sections: Vec::new() }
}

fn figures(meter: &Meter) -> Table {
    let known = meter.rate().is_some();
    let head = ["sender", "priority", "XOFF", "XON", "paused", "share", "longest"];
    // Pause times are unknown without a rate.
    let columns = if known { head.len() } else { 4 };
    let now = meter.now();
    let rows =
        meter.senders().iter().flat_map(|sender| (0..TIMERS).map(move |timer| (sender, timer)));
    let rows = rows.map(|(sender, timer)| (sender, timer, sender.stats(timer, now)));
    let rows = rows.filter(|(_, _, own)| own.xoff + own.xon > 0).map(|(sender, timer, own)| {
        let numbers = [
            if timer == PAUSE { "all".to_owned() } else { timer.to_string() },
            own.xoff.to_string(),
            own.xon.to_string(),
            shown(own.paused),
            format!("{:.2} %", 100.0 * share(own.paused, now)),
            shown(own.longest),
        ];
        let cells = numbers.into_iter().map(Cell::Number);
        [Cell::Text(sender.mac.to_string())].into_iter().chain(cells).take(columns).collect()
    });
    Table {
        head: head[..columns].iter().map(|&name| name.to_owned()).collect(),
        rows: rows.collect(),
    }
}

fn findings(meter: &Meter) -> Table {
    let rows = meter.findings().iter();
    let rows = rows
        .map(|(kind, count)| vec![Cell::Text((*kind).to_owned()), Cell::Number(count.to_string())]);
    Table { head: ["finding", "frames"].map(String::from).into(), rows: rows.collect() }
}

/// Timelines of the senders with the longest pause times, and a histogram of all pauses.
fn charts(meter: &Meter) -> Vec<Chart> {
    let now = meter.now();
    let total = |sender: &Sender| {
        (0..TIMERS).fold(Time::ZERO, |sum, timer| sum + sender.stats(timer, now).paused)
    };
    let mut senders: Vec<_> = meter.senders().iter().map(|s| (total(s), s)).collect();
    senders.retain(|(total, _)| *total > Time::ZERO);
    senders.sort_by_key(|(total, _)| std::cmp::Reverse(*total));
    let timelines = senders.iter().take(TIMELINES).map(|(_, sender)| timeline(sender, now));
    timelines.chain([histogram(meter)]).collect()
}

/// The share of time for which a sender paused each priority.
fn timeline(sender: &Sender, now: Time) -> Chart {
    let timeline = sender.timeline(now);
    let mut chart = Chart::new(
        format!("Paused by {}, in intervals of {}", sender.mac, shown(timeline.width())),
        Axis::linear("time / s"),
        Axis::linear("paused / %"),
    );
    for timer in (0..TIMERS).filter(|&timer| sender.stats(timer, now).paused > Time::ZERO) {
        let points = timeline.shares(timer, now).into_iter();
        let points = points.map(|(at, share)| (at.seconds(), 100.0 * share)).collect();
        chart = chart.with(Series::line(timer_name(timer), points).drawn(Kind::Steps));
    }
    chart
}

/// Histogram of pause durations.
#[allow(clippy::cast_precision_loss)] // Counts of pauses.
fn histogram(meter: &Meter) -> Chart {
    let mut chart = Chart::new("Pause durations", Axis::log("pause / us"), Axis::linear("pauses"));
    for timer in 0..TIMERS {
        let mut counts = [0; DURATIONS];
        for sender in meter.senders() {
            let own = sender.durations(timer, meter.now());
            counts.iter_mut().zip(own).for_each(|(sum, count)| *sum += count);
        }
        let Some(first) = counts.iter().position(|&count| count > 0) else { continue };
        let last =
            counts.iter().rposition(|&count| count > 0).map_or(0, |at| (at + 1).min(DURATIONS - 1));
        let points = (first.saturating_sub(1)..=last)
            .map(|at| (f64::exp2(at as f64) / 1e3, counts[at] as f64))
            .collect();
        chart = chart.with(Series::line(timer_name(timer), points).drawn(Kind::Steps));
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};

    use crate::fabric::time::LinkRate;

    #[test]
    fn a_page_shows_senders_and_pauses() {
        let mut meter = Meter::new(Some(LinkRate::new(100_000_000_000)));
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 1000, 0, 0, 0, 0] };
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        let seen = inspect(&frame, frame.len()).unwrap();
        (0..100).for_each(|n| meter.take(&seen, Time::from_micros(10 * n)));
        meter.advance(Time::from_millis(2));
        meter.end_expired();
        let html = page("x", &meter).html();
        for due in
            ["02:00:00:00:00:01", "priority 3", "512 us", "25.60 %", "5.12 us", "Pause durations"]
        {
            assert!(html.contains(due), "{due}: {html}");
        }
        assert!(!html.contains("priority 4"));
    }

    #[test]
    fn each_sender_has_a_timeline_if_the_rate_is_known() {
        let page_of = |rate| {
            let mut meter = Meter::new(rate);
            for src in [1, 2] {
                let control = FlowControl::Pause { quanta: 65_535 };
                let src = MacAddr([2, 0, 0, 0, 0, src]);
                let frame = FlowControlFrame { src, control }.to_bytes();
                meter.take(&inspect(&frame, frame.len()).unwrap(), Time::ZERO);
            }
            meter.advance(Time::from_micros(300));
            for sender in meter.senders() {
                let shares = sender.timeline(meter.now()).shares(PAUSE, meter.now());
                assert!(shares.iter().all(|(_, share)| *share <= 1.0), "{shares:?}");
            }
            page("x", &meter).html()
        };
        let known = page_of(Some(LinkRate::new(100_000_000_000)));
        for due in ["Paused by 02:00:00:00:00:01", "Paused by 02:00:00:00:00:02", "100.00 %"] {
            assert!(known.contains(due), "{due}: {known}");
        }
        let unknown = page_of(None);
        assert!(unknown.contains("XOFF") && !unknown.contains("longest"), "{unknown}");
    }
}
