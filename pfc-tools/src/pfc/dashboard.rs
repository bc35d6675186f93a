//! The figures of `watch` on a terminal.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use ratatui::Frame;
use ratatui::backend::Backend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Terminal};

use super::recent::Recent;
use super::report::shown;
use super::watch::Watched;

/// Looks back, one column of the sparkline each.
const HISTORY: usize = 240;

/// A terminal that is given back as it was.
pub struct Dashboard {
    terminal: DefaultTerminal,
    history: History,
}

impl std::fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dashboard").field("history", &self.history).finish_non_exhaustive()
    }
}

/// The share that each priority was paused at the last looks, in thousandths: of the sender that paused it most.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct History {
    shares: [VecDeque<u64>; 8],
}

impl History {
    /// A further look.
    pub fn add(&mut self, recent: &Recent) {
        for (priority, shares) in self.shares.iter_mut().enumerate() {
            let rows = recent.rows().iter().filter(|row| row.priority == priority);
            let most = rows.map(|row| row.share).fold(0.0, f64::max);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1000.
            shares.push_front((1000.0 * most.clamp(0.0, 1.0)) as u64);
            shares.truncate(HISTORY);
        }
    }
}

impl Dashboard {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If it is none.
    pub fn open() -> io::Result<Self> {
        Ok(Self { terminal: ratatui::try_init()?, history: History::default() })
    }

    /// Shows what is known now.
    ///
    /// # Errors
    /// Of the terminal.
    pub fn draw(&mut self, watched: &Watched<'_>) -> io::Result<()> {
        self.history.add(watched.recent);
        draw(&mut self.terminal, watched, &self.history)
    }

    /// Whether `q`, Escape or Control-C was pressed: in raw mode that is no signal.
    ///
    /// # Errors
    /// Of the terminal.
    pub fn is_quit(&mut self) -> io::Result<bool> {
        let mut quits = false;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()? {
                let control_c =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                quits |= control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
            }
        }
        Ok(quits)
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws on any terminal, as one in memory.
///
/// # Errors
/// Of the terminal.
pub fn draw<B: Backend>(
    terminal: &mut Terminal<B>,
    watched: &Watched<'_>,
    history: &History,
) -> io::Result<()>
where
    B::Error: Into<io::Error>,
{
    terminal.draw(|frame| show(frame, watched, history)).map(|_| ()).map_err(Into::into)
}

fn show(frame: &mut Frame<'_>, watched: &Watched<'_>, history: &History) {
    let active: Vec<usize> =
        (0..8).filter(|&p| watched.recent.rows().iter().any(|row| row.priority == p)).collect();
    let notes = watched.notes();
    let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
    let [head, table, lines, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(3 * count(active.len())),
        Constraint::Length(count(notes.len() + watched.counters.len().min(8)) + 1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(watched)), head);
    frame.render_widget(figures(watched), table);
    let places = Layout::vertical(active.iter().map(|_| Constraint::Length(3))).split(lines);
    for (&priority, &place) in active.iter().zip(places.iter()) {
        let title = format!("priority {priority}: paused, each column a look, the last one left");
        let shares: Vec<u64> = history.shares[priority].iter().copied().collect();
        let line =
            Sparkline::default().block(Block::bordered().title(title)).data(shares).max(1000);
        frame.render_widget(line.style(Style::new().fg(Color::Cyan)), place);
    }
    let counters = watched.counters.iter().take(8).map(|(name, moved)| format!("{name} {moved}"));
    let text: Vec<_> = notes.into_iter().chain(counters).map(Line::from).collect();
    frame.render_widget(Paragraph::new(text).style(Style::new().fg(Color::Yellow)), foot);
}

fn heading(watched: &Watched<'_>) -> Vec<Line<'static>> {
    let frames = watched.meter.frames();
    let rate = watched.meter.rate().map_or("rate unknown".to_owned(), |rate| {
        format!("{} Mb/s", rate.bits_per_second() / 1_000_000)
    });
    let first = format!("{}  {rate}  {}  (q ends)", watched.interface, shown(watched.recent.at()));
    let second = format!(
        "{} PFC, {} PAUSE, {} other, {} wrong, {} lost; {} since the last look",
        frames.pfc,
        frames.pause,
        frames.other,
        frames.wrong,
        watched.lost,
        watched.recent.frames()
    );
    vec![Line::from(first).style(Style::new().add_modifier(Modifier::BOLD)), Line::from(second)]
}

fn figures(watched: &Watched<'_>) -> Table<'static> {
    let head = ["sender", "priority", "XOFF", "XON", "paused", "longest", "now"];
    let rows = watched.recent.rows().iter().map(|row| {
        let style = match row.is_paused {
            true => Style::new().fg(Color::Red),
            false => Style::new(),
        };
        Row::new([
            row.mac.to_string(),
            row.priority.to_string(),
            row.xoff.to_string(),
            row.xon.to_string(),
            format!("{:.1} %", 100.0 * row.share),
            shown(row.longest),
            if row.is_paused { "paused" } else { "" }.to_owned(),
        ])
        .style(style)
    });
    let widths = [18, 9, 10, 10, 9, 10, 8].map(Constraint::Length);
    Table::new(rows, widths).header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeMap;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
    use ratatui::backend::TestBackend;

    use crate::fabric::time::{LineRate, Time};
    use crate::pfc::meter::Meter;

    #[test]
    fn a_terminal_shows_who_is_paused_and_what_is_to_be_known() {
        let mut meter = Meter::new(Some(LineRate::new(512_000_000_000)));
        let control = FlowControl::Pfc { enabled: 8, quanta: [0, 0, 0, 500, 0, 0, 0, 0] };
        let bytes = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control }.to_bytes();
        meter.take(&inspect(&bytes, 60).unwrap(), Time::ZERO);
        meter.advance(Time::from_nanos(400));
        let (mut recent, mut history) = (Recent::default(), History::default());
        recent.look(&meter);
        history.add(&recent);
        let counters = BTreeMap::from([("rx_prio3_pause".to_owned(), 1)]);
        let watched = Watched {
            interface: "eth7",
            meter: &meter,
            recent: &recent,
            counters: &counters,
            lost: 5,
        };
        let mut terminal = Terminal::new(TestBackend::new(90, 20)).unwrap();
        draw(&mut terminal, &watched, &history).unwrap();
        let text = format!("{}", terminal.backend());
        for due in [
            "eth7  512000 Mb/s",
            "02:00:00:00:00:01",
            "100.0 %",
            "paused",
            "rx_prio3_pause 1",
            "5 frames came faster",
        ] {
            assert!(text.contains(due), "{due}: {text}");
        }
    }
}
