//! A ladder diagram of the packets around the findings.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use feroce_wire::Syndrome;

use super::{anchor, escaped};
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::flow::recorder::{Mark, Point};
use crate::rules::Finding;

const ROW: f64 = 22.0;
const WIDTH: f64 = 1040.0;
const FROM: f64 = 170.0;
const TO: f64 = 640.0;
const TOP: f64 = 40.0;

/// Number of packets shown before and after one with a finding, and the most packets in total.
const AROUND: usize = 4;
const MOST: usize = 60;

/// Returns the diagram; empty if there are no packets.
pub(super) fn svg(channel: &Channel, findings: &[&Finding]) -> String {
    let points = channel.recorder.points();
    let rows = chosen(points, findings);
    let Some(first) = points.first() else { return String::new() };
    #[allow(clippy::cast_precision_loss)] // A picture.
    let height = TOP + ROW * (rows.len() as f64 + 1.0);
    let (src, dst) = channel.ends();
    let mut svg = format!(
        "<svg class=\"ladder\" role=\"img\" aria-label=\"ladder\" viewBox=\"0 0 {WIDTH} \
         {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <text x=\"{FROM}\" y=\"16\" text-anchor=\"middle\">{src}</text><text x=\"{TO}\" y=\"16\" \
         text-anchor=\"middle\">{dst}</text>\n\
         <path d=\"M{FROM} 24V{height}M{TO} 24V{height}\" stroke=\"#888\"/>\n"
    );
    let mut y = TOP;
    let mut last = None;
    for index in rows {
        if last.is_some_and(|last| index > last + 1) {
            let _ = writeln!(svg, "<text x=\"4\" y=\"{}\" fill=\"#888\">...</text>", y - 6.0);
        }
        last = Some(index);
        let found = findings.iter().find(|found| found.packet == points[index].packet);
        row(&mut svg, &points[index], first.at, y, found);
        y += ROW;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the packets near findings; without findings, the first ones.
fn chosen(points: &[Point], findings: &[&Finding]) -> Vec<usize> {
    let mut rows = BTreeSet::new();
    for found in findings {
        let at =
            points.partition_point(|point| (point.at, point.packet) < (found.at, found.packet));
        rows.extend(at.saturating_sub(AROUND)..(at + AROUND).min(points.len()));
        if rows.len() >= MOST {
            break;
        }
    }
    if findings.is_empty() {
        rows.extend(0..points.len().min(MOST));
    }
    rows.into_iter().take(MOST).collect()
}

fn row(svg: &mut String, point: &Point, start: u64, y: f64, found: Option<&&Finding>) {
    let answers = matches!(point.mark, Mark::Answer | Mark::Nak | Mark::Rnr | Mark::Cnp);
    let (color, tip, back) = match (point.mark, answers) {
        (Mark::Repeat, _) => ("#e07b00", TO, -8.0),
        (Mark::Nak | Mark::Rnr, _) => ("#b3261e", FROM, 8.0),
        (_, true) => ("#3a9a5b", FROM, 8.0),
        (_, false) => ("#1f6fb4", TO, -8.0),
    };
    let verdict = point.syndrome.map(|byte| format!(", {}", Syndrome::from_byte(byte)));
    let label = format!(
        "{} PSN {:#08x}, {} B{}",
        point.opcode,
        point.psn.value(),
        point.payload,
        verdict.unwrap_or_default()
    );
    let _ = writeln!(
        svg,
        "<text x=\"4\" y=\"{text}\">{number}</text><text x=\"60\" y=\"{text}\">{at}</text>\
         <path d=\"M{FROM} {y}H{TO}M{tip} {y}l{back} -4v8z\" stroke=\"{color}\" fill=\"{color}\"/>\
         <text x=\"{middle}\" y=\"{above}\" text-anchor=\"middle\">{label}</text>",
        text = y + 4.0,
        number = point.packet.number,
        at = duration(point.at.saturating_sub(start)),
        middle = (FROM + TO) / 2.0,
        above = y - 3.0,
        label = escaped(&label),
    );
    if let Some(found) = found {
        let _ = writeln!(
            svg,
            "<a href=\"#{}\"><text x=\"{}\" y=\"{}\" fill=\"#b3261e\">{}</text></a>",
            anchor(found),
            TO + 12.0,
            y + 4.0,
            found.rule
        );
    }
}
