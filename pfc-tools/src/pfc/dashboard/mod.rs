//! The dashboard of `watch`: pauses by sender, and the share of time for which each priority was
//! blocked, now and before.

pub mod history;
mod svg;

use std::path::Path;

use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, RenderDirection, Row, Sparkline, Table};
use ratatui::{Frame, Terminal};

use super::outcome::Failure;
use super::report::shown;
use super::snapshot::Snapshot;
use super::timer::{PAUSE, TIMERS};
use crate::terminal::{BOLD, DIM, WARNING};
use feroce_engine::files;
use history::{FULL, History};

/// Columns and rows of an SVG image.
const PICTURE: (u16, u16) = (110, 30);
/// Columns before a priority's sparkline: its name, and its current share.
const NAME: u16 = 12;
const SHARE: u16 = 10;

const PAUSED: Style = Style::new().fg(Color::Red);

/// Writes the dashboard to a file as SVG.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Path, watched: &Snapshot<'_>, history: &History) -> Result<(), Failure> {
    let (columns, rows) = PICTURE;
    let text = svg::svg(&buffer(watched, history, columns, rows));
    files::write(file, text)
        .map_err(|error| Failure::Unusable(format!("cannot write {}: {error}", file.display())))
}

/// The dashboard on a terminal of this size.
pub fn buffer(watched: &Snapshot<'_>, history: &History, columns: u16, rows: u16) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_done) = terminal.draw(|frame| draw(frame, watched, history));
    terminal.backend().buffer().clone()
}

/// Draws the current state.
pub fn draw(frame: &mut Frame<'_>, watched: &Snapshot<'_>, history: &History) {
    let pairs = pairs(watched);
    let lines: Vec<usize> = (0..TIMERS).filter(|&timer| history.is_known(timer)).collect();
    let wrong = wrong(watched);
    let notes = watched.notes();
    let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
    let [head, senders, priorities, wrong_place, foot] = Layout::vertical([
        Constraint::Length(3),
        // Title, head, and one row for each pair.
        Constraint::Length(2 + count(pairs.len().max(1))),
        Constraint::Min(1 + count(lines.len())),
        Constraint::Length(count(wrong.len()) + u16::from(!wrong.is_empty())),
        Constraint::Length(count(notes.len())),
    ])
    .areas(frame.area());
    heading(frame, head, watched);
    table(frame, senders, &pairs);
    shares(frame, priorities, &lines, history);
    if !wrong.is_empty() {
        let block = titled("Invalid frames");
        frame.render_widget(Paragraph::new(wrong).style(WARNING).block(block), wrong_place);
    }
    let notes: Vec<_> = notes.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(notes).style(WARNING), foot);
}

fn titled(title: impl Into<String>) -> Block<'static> {
    Block::new().borders(Borders::TOP).border_style(DIM).title(Span::styled(title.into(), BOLD))
}

fn heading(frame: &mut Frame<'_>, place: Rect, watched: &Snapshot<'_>) {
    let (meter, delta) = (watched.meter, watched.delta);
    let frames = meter.frames();
    let rate = meter.rate().map_or("rate unknown".to_owned(), |rate| {
        format!("{} Mb/s", rate.bits_per_second() / 1_000_000)
    });
    let lines = [
        Line::styled(
            format!("Flow control at {}   {rate}   {}", watched.interface, shown(delta.at())),
            BOLD,
        ),
        Line::from(format!(
            "{} PFC, {} PAUSE, {} other frames; {} wrong, {} ignored, {} dropped by the kernel",
            frames.pfc, frames.pause, frames.other, frames.wrong, frames.ignored, watched.lost
        )),
        Line::from(format!("{} frames/s, at most {}", delta.frames_per_second(), meter.peak())),
    ];
    frame.render_widget(Paragraph::new(lines.to_vec()), place);
    let quits = Line::styled("q quits", DIM).alignment(Alignment::Right);
    frame.render_widget(Paragraph::new(quits), place);
}

/// A table row: the pauses of a sender and priority, and whether the pause is active.
struct Pair {
    cells: [String; 10],
    is_paused: bool,
}

/// Pauses by sender and priority: from the frames seen, longest share first; then from the NIC's
/// counters.
fn pairs(watched: &Snapshot<'_>) -> Vec<Pair> {
    let (delta, here) = (watched.delta, watched.interface);
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
    let mut rows: Vec<_> = delta.rows().iter().collect();
    let share = |share: Option<f64>| share.unwrap_or(0.0);
    rows.sort_by(|a, b| {
        let order =
            (share(b.share), share(b.of_all)).partial_cmp(&(share(a.share), share(a.of_all)));
        order.unwrap_or(std::cmp::Ordering::Equal)
    });
    let seen = rows.into_iter().map(|row| Pair {
        cells: [
            row.mac.to_string(),
            here.to_owned(),
            if row.timer == PAUSE { "all".to_owned() } else { row.timer.to_string() },
            if row.is_paused == Some(true) { "PAUSED" } else { "" }.to_owned(),
            percent(row.share),
            percent(row.of_all),
            row.xoff.to_string(),
            row.xon.to_string(),
            row.share.map_or("-".to_owned(), |_| row.total.pauses.to_string()),
            row.share.map_or("-".to_owned(), |_| shown(row.total.longest)),
        ],
        is_paused: row.is_paused == Some(true),
    });
    let counted = delta.counted().iter().filter(|_| watched.nic_consumes_frames()).map(|row| {
        let (peer, own) = ("link partner".to_owned(), here.to_owned());
        let [from, to] = if row.is_received() { [peer, own] } else { [own, peer] };
        let priority = row.priority.map_or("all".to_owned(), |priority| priority.to_string());
        let [frames, nothing] = [row.counted.frames.to_string(), String::new()];
        let of_nic = [from, to, priority, "by NIC".to_owned(), percent(row.share), nothing, frames];
        let mut cells = <[String; 10]>::default();
        cells.iter_mut().zip(of_nic).for_each(|(cell, text)| *cell = text);
        Pair { cells, is_paused: false }
    });
    seen.chain(counted).collect()
}

fn table(frame: &mut Frame<'_>, place: Rect, pairs: &[Pair]) {
    // Title and table head.
    let room = usize::from(place.height.saturating_sub(2));
    let hidden = pairs.len().saturating_sub(room);
    let title = match hidden {
        0 => "Pauses by sender, since the last update".to_owned(),
        hidden => format!("Pauses by sender, since the last update ({hidden} rows hidden)"),
    };
    let head = [
        "sender", "receiver", "priority", "now", "paused", "overall", "XOFF", "XON", "pauses",
        "longest",
    ];
    let rows = pairs.iter().take(room).map(|pair| {
        let style = if pair.is_paused { PAUSED } else { Style::new() };
        let cells = pair.cells.iter().enumerate().map(|(column, text)| {
            let side = if column > 3 { Alignment::Right } else { Alignment::Left };
            Line::from(text.clone()).alignment(side)
        });
        Row::new(cells).style(style)
    });
    let widths = [17, 15, 8, 7, 8, 8, 9, 9, 9, 8].map(Constraint::Length);
    let head = head.iter().enumerate().map(|(column, &name)| {
        Line::from(name).alignment(if column > 3 { Alignment::Right } else { Alignment::Left })
    });
    let table = Table::new(rows, widths).header(Row::new(head).style(DIM)).block(titled(title));
    frame.render_widget(table, place);
}

/// Share of time for which each priority was blocked, one column per update.
fn shares(frame: &mut Frame<'_>, place: Rect, lines: &[usize], history: &History) {
    if lines.is_empty() {
        return;
    }
    let block =
        titled("Share of time each priority is blocked, one column per update, latest right");
    let inside = block.inner(place);
    frame.render_widget(block, place);
    let rows = Layout::vertical(lines.iter().map(|_| Constraint::Fill(1))).split(inside);
    for (&timer, &row) in lines.iter().zip(rows.iter()) {
        let [name, now, graph] = Layout::horizontal([
            Constraint::Length(NAME),
            Constraint::Length(SHARE),
            Constraint::Min(10),
        ])
        .areas(row);
        let text =
            if timer == PAUSE { "all (PAUSE)".to_owned() } else { format!("priority {timer}") };
        frame.render_widget(Paragraph::new(text), bottom(name));
        let last = history.shares(timer).next().flatten();
        let share = last.map_or("-".to_owned(), |share| format!("{}.{} %", share / 10, share % 10));
        let share = Line::from(share).alignment(Alignment::Right);
        frame.render_widget(Paragraph::new(share), Rect { width: SHARE - 2, ..bottom(now) });
        let sparkline = Sparkline::default()
            .data(history.shares(timer).map(|share| share.unwrap_or(0)).collect::<Vec<_>>())
            .max(FULL)
            .direction(RenderDirection::RightToLeft)
            .style(Style::new().fg(Color::Cyan));
        frame.render_widget(sparkline, graph);
    }
}

/// The lowest row of an area, where a sparkline starts.
const fn bottom(place: Rect) -> Rect {
    let height = if place.height > 0 { 1 } else { 0 };
    Rect { y: place.y + place.height - height, height, ..place }
}

/// Kinds of findings with their counts, several on a line.
fn wrong(watched: &Snapshot<'_>) -> Vec<Line<'static>> {
    let findings: Vec<_> = watched.meter.findings().iter().collect();
    let line = |some: &[(&&str, &u64)]| {
        let texts: Vec<_> = some.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        Line::from(texts.join("   "))
    };
    findings.chunks(6).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};

    use crate::fabric::time::{LinkRate, Time};
    use crate::pfc::delta::Delta;
    use crate::pfc::meter::Meter;

    /// One quantum is 1 ns.
    const RATE: LinkRate = LinkRate::new(512_000_000_000);

    fn text(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width);
        let lines = buffer.content().chunks(width);
        lines.map(|cells| cells.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    fn pause(meter: &mut Meter, control: FlowControl, at: u64) {
        let bytes = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        meter.take(&inspect(&bytes, 60).unwrap(), Time::from_nanos(at));
    }

    /// Two updates, 1 us apart: priority 3 was paused for half of the first interval; PAUSE ran for
    /// a quarter of the second and is still running.
    fn watched<T>(
        rate: Option<LinkRate>,
        counters: &BTreeMap<String, u64>,
        then: impl FnOnce(&Snapshot<'_>, &History) -> T,
    ) -> T {
        let mut meter = Meter::new(rate);
        let (mut delta, mut history) = (Delta::default(), History::default());
        let of_3 = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 500, 0, 0, 0, 0] };
        pause(&mut meter, of_3, 0);
        for look in 1..=2 {
            if look == 2 {
                pause(&mut meter, FlowControl::Pause { quanta: 900 }, 1750);
                let mut bytes = FlowControlFrame { src: MacAddr([2; 6]), control: of_3 }.to_bytes();
                bytes[59] = 1;
                meter.take(&inspect(&bytes, 60).unwrap(), Time::from_nanos(1800));
            }
            meter.advance(Time::from_nanos(1000 * look));
            meter.end_expired();
            delta.update(&meter, counters);
            history.add(&delta);
        }
        let watched = Snapshot {
            interface: "eth7",
            meter: &meter,
            delta: &delta,
            counters,
            lost: 5,
            lag: [Time::ZERO; 2],
        };
        then(&watched, &history)
    }

    #[test]
    fn a_terminal_shows_senders_and_paused_times() {
        let lines = watched(Some(RATE), &BTreeMap::new(), |watched, history| {
            text(&buffer(watched, history, 110, 16))
        });
        let has = |words: &[&str]| {
            let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
            assert!(found, "{words:?} in {lines:#?}");
        };
        has(&["Flow control at eth7", "512000 Mb/s", "2.00 us", "q quits"]);
        has(&["2 PFC, 1 PAUSE, 0 other", "1 wrong", "5 dropped by the kernel"]);
        has(&["02:00:00:00:00:01", "eth7", " all ", "PAUSED", "25.0 %", "12.5 %", "250 ns"]);
        has(&["02:00:00:00:00:01", "eth7", " 3 ", " 0.0 %", "25.0 %", "500 ns"]);
        has(&["02:02:02:02:02:02", " 3 ", "PAUSED", "20.0 %", "10.0 %", "200 ns"]);
        has(&["padding 1"]);
        has(&["dropped 5 frames"]);
        // The first update is one column to the left: half of the time, then the share of PAUSE.
        let line = lines.iter().find(|line| line.contains("priority 3 ")).unwrap();
        assert!(line.contains("25.0 %") && line.ends_with('▄'), "{line:?}");
        let above = &lines[lines.iter().position(|other| other == line).unwrap() - 1];
        assert!(line.contains("█▄") && above.trim().is_empty(), "{line:?} {above:?}");
        assert!(!lines.iter().any(|line| line.contains("priority 4")));
    }

    #[test]
    fn small_windows_and_an_unknown_rate_are_handled() {
        for (columns, rows) in [(1, 1), (10, 3), (40, 8), (80, 24), (300, 100)] {
            watched(Some(RATE), &BTreeMap::new(), |watched, history| {
                buffer(watched, history, columns, rows);
            });
        }
        let lines = watched(None, &BTreeMap::new(), |watched, history| {
            text(&buffer(watched, history, 110, 30))
        });
        assert!(lines.iter().any(|line| line.contains("rate unknown")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains(" ns")), "{lines:#?}");
    }

    #[test]
    fn frames_consumed_by_the_nic_are_shown_from_its_counters() {
        let counters = [("rx_prio5_pause", 7), ("tx_prio5_pause", 9)];
        let counters = counters.map(|(name, moved)| (name.to_owned(), moved)).into();
        let lines = watched(Some(RATE), &counters, |watched, history| {
            text(&buffer(watched, history, 110, 30))
        });
        // The counters increased before the first update and not since.
        assert!(
            lines.iter().any(|line| line.contains("the NIC consumes PFC frames")),
            "{lines:#?}"
        );
    }
}
