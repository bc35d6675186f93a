//! Pages as self-contained HTML files with charts and tables.

use std::fmt::Write as _;

use maud::{DOCTYPE, Escaper, Markup, PreEscaped, Render, html};

use super::chart::Chart;

/// A page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Title.
    pub title: String,
    /// Introduction, before the table of contents.
    pub parts: Vec<Part>,
    /// Sections, in the order of the table of contents.
    pub sections: Vec<Section>,
}

/// A section with a heading.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    /// Anchor of the section: letters, digits, hyphens.
    pub id: String,
    /// Heading.
    pub heading: String,
    /// Content.
    pub parts: Vec<Part>,
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Paragraph(String),
    /// Rows and columns.
    Table(Table),
    /// Charts, side by side if there is room.
    Charts(Vec<Chart>),
}

/// A table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Column headings.
    pub head: Vec<String>,
    /// Rows, each as long as the head.
    pub rows: Vec<Vec<Cell>>,
}

/// A table cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Text, left-aligned.
    Text(String),
    /// A number with its unit, right-aligned.
    Number(String),
    /// The verdict of a gate.
    Verdict(Verdict),
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The expectation holds.
    Holds,
    /// The expectation does not hold.
    Fails,
    /// The expectation does not hold, and the reason is given.
    Explained,
    /// The expectation does not hold, and is known not to.
    Missed,
    /// No expectation.
    Shown,
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#111;--page:#fff;--line:#ccc;--dim:#666;--bad:#b3261e;
--warn:#8a5a00;--good:#00734d;--link:#1f5fa8}
@media(prefers-color-scheme:dark){:root{--ink:#e4e6ea;--page:#14171c;--line:#3a4049;--dim:#9aa1ab;
--bad:#ff8a80;--warn:#e0b050;--good:#6fd3a3;--link:#6cb2f0}
.charts svg{filter:invert(.91) hue-rotate(180deg)}}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5em auto;padding:0 1.5em;max-width:2000px}
body{color:var(--ink);background:var(--page);overflow-wrap:anywhere}a{color:var(--link)}
h1{font-size:1.5em}h2{font-size:1.25em;border-top:1px solid var(--line);padding-top:1em}
h2{margin-top:2em}nav{columns:3 20em}nav a{display:block}p{max-width:80em}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:1em 0;overflow-wrap:normal}
th,td{padding:.2em .8em;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{border-bottom:2px solid var(--dim)}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.prose{min-width:14em}
td.holds{color:var(--good)}td.fails{color:var(--bad);font-weight:bold}
td.explained{color:var(--warn)}td.missed{color:var(--warn);font-weight:bold}
td.shown{color:var(--dim)}
.charts{display:flex;flex-wrap:wrap;gap:1em}
.charts svg{flex:1 1 560px;max-width:900px;min-width:0;height:auto}
@media print{h2{break-before:page}nav{display:none}}
";

impl Page {
    /// The page as HTML, with style and charts inline.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    @for part in &self.parts { (part) "\n" }
                    @if self.sections.len() > 1 {
                        nav {
                            @for section in &self.sections {
                                a href={ "#" (section.id) } { (section.heading) } "\n"
                            }
                        }
                    }
                    @for section in &self.sections {
                        h2 id=(section.id) { (section.heading) } "\n"
                        @for part in &section.parts { (part) "\n" }
                    }
                }
            }
        };
        page.into_string()
    }
}

impl Render for Part {
    fn render(&self) -> Markup {
        html! {
            @match self {
                Self::Paragraph(text) => p { (text) },
                Self::Table(table) => (table),
                Self::Charts(charts) => div class="charts" {
                    @for chart in charts { (labelled(chart)) }
                },
            }
        }
    }
}

/// The chart with its title as the accessible name.
fn labelled(chart: &Chart) -> PreEscaped<String> {
    let mut head = "<svg role=\"img\" aria-label=\"".to_owned();
    let _ = Escaper::new(&mut head).write_str(&chart.title);
    head.push('"');
    PreEscaped(chart.svg().replacen("<svg", &head, 1))
}

impl Render for Table {
    fn render(&self) -> Markup {
        html! {
            div.wide {
                table {
                    tr { @for head in &self.head { th { (head) } } } "\n"
                    @for row in &self.rows {
                        tr {
                            @for cell in row {
                                @let (class, text) = cell.shown();
                                td class=(class) { (text) }
                            }
                        } "\n"
                    }
                }
            }
        }
    }
}

/// The most characters of a text that may be squeezed into several lines.
const SHORT: usize = 40;

impl Cell {
    /// CSS class and text.
    pub fn shown(&self) -> (&'static str, &str) {
        match self {
            // On a narrow screen the table scrolls, instead of a word per line.
            Self::Text(text) if text.len() > SHORT => ("prose", text),
            Self::Text(text) => ("text", text),
            Self::Number(text) => ("number", text),
            Self::Verdict(Verdict::Holds) => ("holds", "holds"),
            Self::Verdict(Verdict::Fails) => ("fails", "FAILS"),
            Self::Verdict(Verdict::Explained) => ("explained", "explained"),
            Self::Verdict(Verdict::Missed) => ("missed", "missed"),
            Self::Verdict(Verdict::Shown) => ("shown", "-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, Series};

    fn page() -> Page {
        let chart = Chart::new("a \"queue\"", Axis::linear("t / ms"), Axis::linear("queue / KB"))
            .with(Series::line("Feroce", vec![(0.0, 1.0), (1.0, 2.0)]));
        let row = vec![
            Cell::Text("a<b".into()),
            Cell::Number("1.5".into()),
            Cell::Verdict(Verdict::Fails),
        ];
        let table =
            Table { head: ["what", "value", "gate"].map(String::from).into(), rows: vec![row] };
        let section =
            |id: &str, parts| Section { id: id.into(), heading: format!("Figure {id}"), parts };
        let sections = vec![
            section("1", vec![Part::Table(table)]),
            section("2", vec![Part::Charts(vec![chart])]),
        ];
        Page { title: "R & D".into(), parts: vec![Part::Paragraph("x > y".into())], sections }
    }

    #[test]
    fn text_is_escaped_and_links_have_targets() {
        let html = page().html();
        for due in [
            "<title>R &amp; D</title>",
            "<p>x &gt; y</p>",
            "a&lt;b",
            "href=\"#2\"",
            "<h2 id=\"2\">",
            "FAILS",
        ] {
            assert!(html.contains(due), "{due}: {html}");
        }
        assert!(html.contains("aria-label=\"a &quot;queue&quot;\""));
    }

    #[test]
    fn the_page_is_self_contained() {
        let html = page().html().replace("http://www.w3.org/2000/svg", "");
        assert!(!html.contains("http") && !html.contains("src="), "{html}");
    }
}
