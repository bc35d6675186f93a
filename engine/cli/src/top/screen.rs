//! The screen of `feroce top`, and the same as text for `--batch`.

use std::fmt::Write;

use feroce_pfc_tools::terminal::{BOLD, DIM, WARNING};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as TableRow, Table};

use super::columns::{COLUMNS, Column, Sort, short};
use super::model::{Interface, Kind, Rates, Row, View};

/// Keys, in the last line.
const KEYS: &str = "q quit   < > sort column   r reverse   up/down scroll   space refresh";

/// What the user has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub sort: Sort,
    pub is_reversed: bool,
    /// Number of rows above the window.
    pub scrolled: usize,
}

/// Draws `view`, whose rows are sorted.
pub fn draw(frame: &mut Frame<'_>, view: &View, choice: &Choice) {
    let area = frame.area();
    let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
    // A host with many interfaces keeps room for programs.
    let head = count(1 + view.interfaces.len()).min(area.height / 2);
    let [heads, table, errors, keys] = Layout::vertical([
        Constraint::Length(head),
        Constraint::Min(2),
        Constraint::Length(count(view.errors.len()).min(area.height / 4)),
        Constraint::Length(1),
    ])
    .areas(area);
    let lines = std::iter::once(Line::styled(title(view), BOLD))
        .chain(view.interfaces.iter().map(|interface| Line::raw(interface_line(interface))));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), heads);
    programs(frame, table, view, choice);
    let lines: Vec<_> =
        view.errors.iter().map(|error| Line::styled(error.clone(), WARNING)).collect();
    frame.render_widget(Paragraph::new(lines), errors);
    let sorted = if choice.is_reversed { "sorted in reverse by" } else { "sorted by" };
    let hint = format!("{KEYS}   {sorted} {}", choice.sort.column().name);
    frame.render_widget(Paragraph::new(Line::styled(hint, DIM)), keys);
}

fn title(view: &View) -> String {
    let count = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let programs = count(view.rows.len(), "program");
    format!("feroce top: {programs} on {}", count(view.interfaces.len(), "interface"))
}

fn interface_line(interface: &Interface) -> String {
    let Interface { name, daemon, port, programs, qps, rates } = interface;
    let owner = daemon.map_or_else(|| "no daemon".to_owned(), |pid| format!("daemon {pid}"));
    let rates = rates.as_ref().map_or_else(|| "rates follow".to_owned(), totals);
    format!("{name}: {owner}, {port}, programs {programs}, QPs {qps}, {rates}")
}

fn totals(rates: &Rates) -> String {
    let of = |kind| short(rates.of(kind));
    format!(
        "rx {} b/s {} f/s, tx {} b/s {} f/s, retx {}/s, CNP {}/s, pause {}/s, drop {}/s",
        of(Kind::RxBits),
        of(Kind::RxFrames),
        of(Kind::TxBits),
        of(Kind::TxFrames),
        of(Kind::Retransmissions),
        of(Kind::Cnps),
        of(Kind::Pauses),
        of(Kind::Drops),
    )
}

fn programs(frame: &mut Frame<'_>, place: Rect, view: &View, choice: &Choice) {
    let room = usize::from(place.height.saturating_sub(1));
    let first = choice.scrolled.min(view.rows.len().saturating_sub(room));
    let aligned = |column: &Column, text: String| {
        let side = if column.is_text { Alignment::Left } else { Alignment::Right };
        Line::from(text).alignment(side)
    };
    let rows = view.rows.iter().skip(first).take(room).map(|row| {
        let cells = COLUMNS.iter().map(|column| aligned(column, column.cell(row)));
        TableRow::new(cells).style(style(row))
    });
    let head = COLUMNS.iter().map(|column| {
        let is_chosen = column.name == choice.sort.column().name;
        let style = if is_chosen { BOLD } else { DIM };
        aligned(column, column.title.to_owned()).style(style)
    });
    let widths = COLUMNS.iter().map(|column| match column.name {
        "program" => Constraint::Min(column.width),
        _ => Constraint::Length(column.width),
    });
    frame.render_widget(Table::new(rows, widths).header(TableRow::new(head)), place);
}

/// Rows of programs that lose frames or retransmit attract attention.
fn style(row: &Row) -> Style {
    let loses = row
        .rates
        .is_some_and(|rates| rates.of(Kind::Drops) > 0.0 || rates.of(Kind::Retransmissions) > 0.0);
    if loses { WARNING } else { Style::new() }
}

/// The view as lines of text.
pub fn text(view: &View) -> String {
    let mut text = title(view) + "\n";
    for interface in &view.interfaces {
        text += &interface_line(interface);
        text.push('\n');
    }
    text += &line(|column| column.title.to_owned());
    for row in &view.rows {
        text += &line(|column| column.cell(row));
    }
    text
}

fn line(cell: impl Fn(&Column) -> String) -> String {
    let mut line = String::new();
    for column in COLUMNS {
        let (text, width) = (cell(column), usize::from(column.width));
        let _ = match column.is_text {
            true => write!(line, "{text:<width$} "),
            false => write!(line, "{text:>width$} "),
        };
    }
    line.trim_end().to_owned() + "\n"
}
