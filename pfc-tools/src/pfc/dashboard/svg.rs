//! The terminal's content as SVG. Every cell has a fixed position, independent of the font.

use std::fmt::Write as _;

use maud::Escaper;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a cell in SVG units.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
/// Margin around the content.
const MARGIN: f64 = 12.0;
/// Distance from the top of a row to the text baseline.
const BASELINE: f64 = 13.5;
const BACKGROUND: &str = "#16181d";

/// Renders the buffer as SVG.
pub fn svg(buffer: &Buffer) -> String {
    let (columns, rows) = (f64::from(buffer.area.width), f64::from(buffer.area.height));
    let (width, height) = (columns * WIDTH + 2.0 * MARGIN, rows * HEIGHT + 2.0 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" \
         width=\"{width:.0}\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    let width = usize::from(buffer.area.width).max(1);
    for (row, cells) in (0_u32..).zip(buffer.content().chunks(width)) {
        let top = MARGIN + f64::from(row) * HEIGHT;
        let mut column = 0;
        while column < cells.len() {
            let len = run_length(&cells[column..]);
            draw(&mut text, &cells[column..column + len], column, top);
            column += len;
        }
    }
    text.push_str("</svg>\n");
    text
}

/// Number of leading cells that form one word, one line or one piece of a bar.
fn run_length(cells: &[Cell]) -> usize {
    let kind = |cell: &Cell| match cell.symbol() {
        " " => 0,
        "─" => 1,
        symbol => {
            if eighths(symbol).is_some() {
                2
            } else {
                3
            }
        }
    };
    let first = &cells[0];
    let is_alike = |cell: &&Cell| {
        let is_same = cell.style() == first.style() && kind(cell) == kind(first);
        is_same && (kind(first) != 2 || cell.symbol() == first.symbol())
    };
    cells.iter().take_while(is_alike).count().max(1)
}

fn draw(out: &mut String, cells: &[Cell], column: usize, top: f64) {
    let at = |column: usize| MARGIN + WIDTH * f64::from(u32::try_from(column).unwrap_or(u32::MAX));
    let (left, width) = (at(column), at(column + cells.len()) - at(column));
    let colour = colour(cells[0].fg);
    let mut bar = |top: f64, height: f64| {
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.2}\" width=\"{width:.1}\" \
             height=\"{height:.2}\" fill=\"{colour}\"/>"
        );
    };
    match cells[0].symbol() {
        " " => {}
        "─" => bar(top + HEIGHT / 2.0, 1.0),
        symbol => match eighths(symbol) {
            Some(eighths) => {
                let height = HEIGHT * f64::from(eighths) / 8.0;
                bar(top + HEIGHT - height, height);
            }
            None => {
                let word: String = cells.iter().map(Cell::symbol).collect();
                let is_bold = cells[0].modifier.contains(Modifier::BOLD);
                let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
                let _ = write!(
                    out,
                    "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" \
                     lengthAdjust=\"spacingAndGlyphs\" fill=\"{colour}\"{weight}>",
                    top + BASELINE
                );
                let _ = Escaper::new(out).write_str(&word);
                out.push_str("</text>\n");
            }
        },
    }
}

/// Height of a bar character in eighths of a cell.
fn eighths(symbol: &str) -> Option<u32> {
    let code = u32::from(symbol.chars().next()?);
    (0x2581..=0x2588).contains(&code).then(|| code - 0x2580)
}

const fn colour(colour: Color) -> &'static str {
    match colour {
        Color::Red => "#ff6b68",
        Color::Yellow => "#e5c07b",
        Color::Cyan => "#56b6c2",
        Color::DarkGray => "#7f8694",
        _ => "#d7dae0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn every_cell_has_a_fixed_position() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        buffer.set_string(0, 0, "a<b  c", Style::new());
        buffer.set_string(0, 1, "──▄▄█", Style::new().fg(Color::Cyan));
        let text = svg(&buffer);
        for due in [
            "<text x=\"12.0\" y=\"25.5\" textLength=\"25.2\"",
            ">a&lt;b</text>",
            "<text x=\"54.0\"",
            "<rect x=\"12.0\" y=\"39.00\" width=\"16.8\" height=\"1.00\" fill=\"#56b6c2\"/>",
            "<rect x=\"28.8\" y=\"39.00\" width=\"16.8\" height=\"9.00\"",
            "<rect x=\"45.6\" y=\"30.00\" width=\"8.4\" height=\"18.00\"",
        ] {
            assert!(text.contains(due), "{due}\n{text}");
        }
    }
}
