//! A graph of PSNs over time that highlights retransmissions and findings.

use maud::{Markup, html};

use super::Ids;
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::flow::recorder::{Point, PointKind};
use crate::rules::Finding;

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 104.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Returns class, radius and legend of a kind of packet.
const fn style(kind: PointKind) -> (&'static str, f64, &'static str) {
    match kind {
        PointKind::Request => ("request", 2.0, "request"),
        PointKind::Retransmission => ("again", 3.0, "retransmission"),
        PointKind::Response => ("response", 2.0, "response"),
        PointKind::Nak => ("nak", 4.5, "NAK"),
        PointKind::Rnr => ("rnr", 4.5, "RNR NAK"),
        PointKind::Cnp => ("cnp", 4.5, "CNP"),
    }
}

/// Returns the graph; empty if there are no packets.
#[allow(clippy::cast_precision_loss)] // Times become pixels.
pub(super) fn svg(channel: &Channel, findings: &[&Finding], ids: Ids) -> Markup {
    let points = channel.recorder.points();
    let Some(first) = points.first() else { return Markup::default() };
    let height_of = |point: &Point| f64::from(point.psn.offset_from(first.psn));
    let is_cnp = |point: &&Point| point.kind == PointKind::Cnp;
    let is_placed = |point: &&Point| !is_cnp(point) && height_of(point).abs() < 4e6;
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for point in points.iter().filter(is_placed) {
        low = low.min(height_of(point));
        high = high.max(height_of(point));
    }
    let start = first.at;
    let span = points.iter().map(|point| point.at.saturating_sub(start)).max().unwrap_or(0).max(1);
    let x = |at: u64| LEFT + at.saturating_sub(start) as f64 / span as f64 * (WIDTH - LEFT - 20.0);
    let y = |psn: f64| TOP + (high - psn) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let (left, right, bottom) = (LEFT, WIDTH - 20.0, HEIGHT - BOTTOM);
    let label = bottom + 16.0;
    html! {
        svg.graph role="img" aria-label="PSN over time" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) }
            xmlns="http://www.w3.org/2000/svg"
        {
            "\n" path.axis d={ "M" (left) " " (TOP) "V" (bottom) "H" (right) } {}
            "\n" text x="4" y=(TOP + 4.0) { "PSN " (hex(psn(first, high))) }
            text x="4" y=(bottom) { "PSN " (hex(psn(first, low))) }
            "\n" text x=(left) y=(label) { "0" }
            text x=(right) y=(label) text-anchor="end" { (duration(span)) }
            "\n" (legend(points))
            @for found in findings.iter().take(super::SHOWN) {
                a href={ "#" (ids.anchor(found)) } {
                    path.found d={ "M" (tenths(x(found.at))) " " (TOP) "V" (bottom) }
                        stroke-opacity=".25" stroke-width="3" {}
                    title { (found.sentence) }
                } "\n"
            }
            @for point in points.iter().filter(|point| is_placed(point) || is_cnp(point)) {
                @let (class, radius, _) = style(point.kind);
                @let height = if point.kind == PointKind::Cnp { TOP } else { y(height_of(point)) };
                circle cx=(tenths(x(point.at))) cy=(tenths(height)) r=(radius) class=(class) {
                    title {
                        "packet " (point.packet.number) ": " (point.opcode) ", PSN "
                        (hex(point.psn.value()))
                    }
                } "\n"
            }
        } "\n"
        @if channel.recorder.every() > 1 {
            p { "One of " (channel.recorder.every()) " packets is drawn." } "\n"
        }
    }
}

/// Formats a coordinate with one digit after the point.
fn tenths(coordinate: f64) -> String {
    format!("{coordinate:.1}")
}

/// Formats a PSN.
fn hex(psn: u32) -> String {
    format!("{psn:#08x}")
}

/// Returns the PSN of `first` plus `offset`.
#[allow(clippy::cast_possible_truncation)] // `offset` is a difference of PSNs.
fn psn(first: &Point, offset: f64) -> u32 {
    first.psn.add((offset as i32).cast_unsigned()).value()
}

/// Returns the legend: the kinds of packet that `points` contain.
fn legend(points: &[Point]) -> Markup {
    let all = [
        PointKind::Request,
        PointKind::Retransmission,
        PointKind::Response,
        PointKind::Nak,
        PointKind::Rnr,
        PointKind::Cnp,
    ];
    let shown = all.into_iter().filter(|kind| points.iter().any(|point| point.kind == *kind));
    let columns = std::iter::successors(Some(LEFT), |at| Some(at + 120.0));
    html! {
        @for (kind, at) in shown.zip(columns) {
            @let (class, _, name) = style(kind);
            circle cx=(at) cy="12" r="5" class=(class) {}
            text x=(at + 9.0) y="16" { (name) } "\n"
        }
    }
}
