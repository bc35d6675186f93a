//! A ladder diagram of the packets around the findings.

use feroce_wire::Syndrome;
use maud::{Markup, html};
use std::collections::BTreeSet;

use super::Ids;
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::flow::recorder::{Point, PointKind};
use crate::rules::Finding;

const ROW: f64 = 22.0;
/// Added between packets that do not follow each other.
const GAP: f64 = 14.0;
const WIDTH: f64 = 1040.0;
const FROM: f64 = 170.0;
const TO: f64 = 640.0;
const TOP: f64 = 40.0;

/// Number of packets shown before and after one with a finding, and the maximum number of packets.
const CONTEXT: usize = 4;
const MAX_ROWS: usize = 60;

/// Returns the diagram; empty if there are no packets.
pub(super) fn svg(channel: &Channel, findings: &[&Finding], ids: Ids) -> Markup {
    let points = channel.recorder.points();
    let rows = chosen(points, findings);
    let Some(first) = points.first() else { return Markup::default() };
    let rows = placed(&rows);
    let height = rows.last().map_or(TOP, |row| row.y) + 2.0 * ROW;
    let (src, dst) = channel.ends();
    html! {
        svg.ladder role="img" aria-label="ladder" viewBox={ "0 0 " (WIDTH) " " (height) }
            xmlns="http://www.w3.org/2000/svg"
        {
            "\n" text x=(FROM) y="16" text-anchor="middle" { (src) }
            text x=(TO) y="16" text-anchor="middle" { (dst) }
            "\n" path.axis d={ "M" (FROM) " 24V" (height) "M" (TO) " 24V" (height) } {}
            "\n"
            @for Placed { index, follows_gap, y } in rows {
                @let point = &points[index];
                @if follows_gap {
                    text x="4" y=(y - ROW + 7.0) class="dim" { "..." } "\n"
                }
                (row(point, first.at, y))
                @if let Some(found) = findings.iter().find(|found| found.packet == point.packet) {
                    a href={ "#" (ids.anchor(found)) } {
                        text x=(TO + 12.0) y=(y + 4.0) class="bad" { (found.rule) }
                    } "\n"
                }
            }
        } "\n"
    }
}

/// A packet's place in the diagram.
struct Placed {
    index: usize,
    follows_gap: bool,
    y: f64,
}

fn placed(indices: &[usize]) -> Vec<Placed> {
    let (mut y, mut previous) = (TOP - ROW, None);
    let place = |&index: &usize| {
        let follows_gap = previous.replace(index).is_some_and(|previous| index > previous + 1);
        y += if follows_gap { ROW + GAP } else { ROW };
        Placed { index, follows_gap, y }
    };
    indices.iter().map(place).collect()
}

/// Returns the packets near findings; without findings, the first ones.
fn chosen(points: &[Point], findings: &[&Finding]) -> Vec<usize> {
    let mut rows = BTreeSet::new();
    for found in findings {
        let at =
            points.partition_point(|point| (point.at, point.packet) < (found.at, found.packet));
        rows.extend(at.saturating_sub(CONTEXT)..(at + CONTEXT).min(points.len()));
        if rows.len() >= MAX_ROWS {
            break;
        }
    }
    if findings.is_empty() {
        rows.extend(0..points.len().min(MAX_ROWS));
    }
    rows.into_iter().take(MAX_ROWS).collect()
}

/// Returns the row of a packet at the height `y`. `start` is the time of the first packet.
fn row(point: &Point, start: u64, y: f64) -> Markup {
    let is_response = matches!(
        point.kind,
        PointKind::Response | PointKind::Nak | PointKind::Rnr | PointKind::Cnp
    );
    let (class, tip, back) = match (point.kind, is_response) {
        (PointKind::Retransmission, _) => ("again", TO, -8.0),
        (PointKind::Nak | PointKind::Rnr, _) => ("nak", FROM, 8.0),
        (_, true) => ("response", FROM, 8.0),
        (_, false) => ("request", TO, -8.0),
    };
    let syndrome = point.syndrome.map(|byte| format!(", {}", Syndrome::from_byte(byte)));
    let label = format!(
        "{} PSN {:#08x}, {} B{}",
        point.opcode,
        point.psn.value(),
        point.payload,
        syndrome.unwrap_or_default()
    );
    let text = y + 4.0;
    html! {
        text x="4" y=(text) { (point.packet.number) }
        text x="60" y=(text) { (duration(point.at.saturating_sub(start))) }
        path class=(class)
            d={ "M" (FROM) " " (y) "H" (TO) "M" (tip) " " (y) "l" (back) " -4v8z" } {}
        text x=((FROM + TO) / 2.0) y=(y - 3.0) text-anchor="middle" { (label) }
        "\n"
    }
}
