//! What a [`Meter`] has seen as a page: figures, when priorities were paused, and for how long at a time.

use super::meter::{DURATIONS, Meter};
use super::report::{share, shown};
use crate::plot::{Axis, Cell, Chart, Kind, Page, Part, Series, Table};

/// The page.
pub fn page(title: &str, meter: &Meter) -> Page {
    let frames = meter.frames();
    let counts = format!(
        "{} PFC frames, {} PAUSE frames and {} others of flow control in {}; {} with something wrong.",
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
        parts.push(Part::Charts(vec![timeline(meter), histogram(meter)]));
    }
    Page { title: title.to_owned(), parts, sections: Vec::new() }
}

fn figures(meter: &Meter) -> Table {
    let head = ["sender", "priority", "XOFF", "XON", "paused", "share", "longest"];
    let now = meter.now();
    let rows =
        meter.senders().iter().flat_map(|sender| (0..8).map(move |priority| (sender, priority)));
    let rows = rows.map(|(sender, priority)| (sender, priority, sender.priority(priority, now)));
    let rows = rows.filter(|(_, _, own)| own.xoff + own.xon > 0).map(|(sender, priority, own)| {
        let number = |text: String| Cell::Number(text);
        vec![
            Cell::Text(sender.mac.to_string()),
            number(priority.to_string()),
            number(own.xoff.to_string()),
            number(own.xon.to_string()),
            number(shown(own.paused)),
            number(format!("{:.2} %", 100.0 * share(own.paused, now))),
            number(shown(own.longest)),
        ]
    });
    Table { head: head.map(String::from).into(), rows: rows.collect() }
}

fn findings(meter: &Meter) -> Table {
    let rows = meter.findings().iter();
    let rows = rows
        .map(|(kind, count)| vec![Cell::Text((*kind).to_owned()), Cell::Number(count.to_string())]);
    Table { head: ["what is wrong", "frames"].map(String::from).into(), rows: rows.collect() }
}

/// The priorities that were paused at all.
fn paused(meter: &Meter) -> impl Iterator<Item = usize> + '_ {
    (0..8).filter(|&priority| meter.durations()[priority].iter().any(|&count| count > 0))
}

/// The share of time that each priority was paused, all senders together.
pub fn timeline(meter: &Meter) -> Chart {
    let mut chart = Chart::new(
        format!("Paused, in parts of {}", shown(meter.timeline().width())),
        Axis::linear("time / s"),
        Axis::linear("paused / %"),
    );
    for priority in paused(meter) {
        let points = meter.timeline().shares(priority);
        let points = points.map(|(at, share)| (at.seconds(), 100.0 * share)).collect();
        chart = chart.with(Series::line(format!("priority {priority}"), points).drawn(Kind::Steps));
    }
    chart
}

/// How many pauses took how long.
#[allow(clippy::cast_precision_loss)] // Counts of pauses.
pub fn histogram(meter: &Meter) -> Chart {
    let mut chart =
        Chart::new("Lengths of pauses", Axis::log("pause / us"), Axis::linear("pauses"));
    for priority in paused(meter) {
        let counts = &meter.durations()[priority];
        let first = counts.iter().position(|&count| count > 0).unwrap_or(0).saturating_sub(1);
        let last =
            counts.iter().rposition(|&count| count > 0).map_or(0, |at| (at + 1).min(DURATIONS - 1));
        let points =
            (first..=last).map(|at| (f64::exp2(at as f64) / 1e3, counts[at] as f64)).collect();
        chart = chart.with(Series::line(format!("priority {priority}"), points).drawn(Kind::Steps));
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};

    use crate::fabric::time::{LineRate, Time};

    #[test]
    fn a_page_shows_who_paused_what() {
        let mut meter = Meter::new(Some(LineRate::new(100_000_000_000)));
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 1000, 0, 0, 0, 0] };
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        let seen = inspect(&frame, frame.len()).unwrap();
        (0..100).for_each(|n| meter.take(&seen, Time::from_micros(10 * n)));
        meter.advance(Time::from_millis(2));
        meter.settle();
        let html = page("x", &meter).html();
        for due in
            ["02:00:00:00:00:01", "priority 3", "512 us", "25.60 %", "5.12 us", "Lengths of pauses"]
        {
            assert!(html.contains(due), "{due}: {html}");
        }
        assert!(!html.contains("priority 4"));
    }
}
