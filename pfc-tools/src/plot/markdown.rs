//! A page as Markdown, with its charts as files beside it.

use std::fmt::Write as _;

use super::page::{Page, Part, Table};

impl Page {
    /// The text, and the names and contents of the images that it references in `folder`.
    pub fn markdown(&self, folder: &str) -> (String, Vec<(String, String)>) {
        let mut writer =
            Writer { text: format!("# {}\n", self.title), folder, pictures: Vec::new() };
        self.parts.iter().for_each(|part| writer.part("page", part));
        for section in &self.sections {
            let _ = write!(writer.text, "\n## {}\n", section.heading);
            section.parts.iter().for_each(|part| writer.part(&section.id, part));
        }
        (writer.text, writer.pictures)
    }
}

struct Writer<'a> {
    text: String,
    folder: &'a str,
    pictures: Vec<(String, String)>,
}

impl Writer<'_> {
    fn part(&mut self, id: &str, part: &Part) {
        match part {
            Part::Paragraph(text) => {
                let _ = write!(self.text, "\n{text}\n");
            }
            Part::Table(table) => self.table(table),
            Part::Charts(charts) => {
                self.text.push('\n');
                for chart in charts {
                    let number = self
                        .pictures
                        .iter()
                        .filter(|(name, _)| name.starts_with(&format!("{id}-")))
                        .count();
                    let name = format!("{id}-{}.svg", number + 1);
                    let _ = writeln!(self.text, "![{}]({}/{name})", chart.title, self.folder);
                    self.pictures.push((name, chart.svg()));
                }
            }
        }
    }

    fn table(&mut self, table: &Table) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        self.text.push('\n');
        self.text.push_str(&line(&table.head));
        self.text.push_str(&line(&vec!["---".to_owned(); table.head.len()]));
        for row in &table.rows {
            let cells: Vec<String> =
                row.iter().map(|cell| cell.shown().1.replace('|', "\\|")).collect();
            self.text.push_str(&line(&cells));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plot::{Axis, Cell, Chart, Page, Part, Section, Table};

    #[test]
    fn charts_are_files_beside_the_text() {
        let chart = Chart::new("queue", Axis::linear("x"), Axis::linear("y"));
        let table = Table { head: vec!["a".into()], rows: vec![vec![Cell::Text("x|y".into())]] };
        let parts = vec![Part::Table(table), Part::Charts(vec![chart.clone(), chart.clone()])];
        let section = Section { id: "fig-3".into(), heading: "Figure 3".into(), parts };
        let page = Page {
            title: "T".into(),
            parts: vec![Part::Paragraph("p".into())],
            sections: vec![section],
        };
        let (text, pictures) = page.markdown("plots");
        let due = "# T\n\np\n\n## Figure 3\n\n| a |\n| --- |\n| x\\|y |\n\n\
                   ![queue](plots/fig-3-1.svg)\n![queue](plots/fig-3-2.svg)\n";
        assert_eq!(text, due);
        assert_eq!(pictures[1], ("fig-3-2.svg".into(), chart.svg()));
    }
}
