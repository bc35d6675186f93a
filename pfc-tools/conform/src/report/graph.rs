//! A graph of PSNs over time that highlights retransmissions and findings.

use std::fmt::Write as _;

use super::{anchor, escaped};
use crate::flow::Channel;
use crate::flow::figures::duration;
use crate::flow::recorder::{Mark, Point};
use crate::rules::Finding;

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;

/// Returns color, radius and legend of a kind of packet.
const fn look(mark: Mark) -> (&'static str, f64, &'static str) {
    match mark {
        Mark::Request => ("#1f6fb4", 2.0, "request"),
        Mark::Repeat => ("#e07b00", 3.0, "retransmission"),
        Mark::Answer => ("#3a9a5b", 2.0, "response"),
        Mark::Nak => ("#b3261e", 4.5, "NAK"),
        Mark::Rnr => ("#8e24aa", 4.5, "RNR NAK"),
        Mark::Cnp => ("#444444", 4.5, "CNP"),
    }
}

/// Returns the graph; empty if there are no packets.
#[allow(clippy::cast_precision_loss)] // A picture.
pub(super) fn svg(channel: &Channel, findings: &[&Finding]) -> String {
    let points = channel.recorder.points();
    let Some(first) = points.first() else { return String::new() };
    let height_of = |point: &Point| f64::from(point.psn.offset_from(first.psn));
    let is_placed = |point: &&Point| point.mark != Mark::Cnp && height_of(point).abs() < 4e6;
    let (mut low, mut high) = (0.0_f64, 1.0_f64);
    for point in points.iter().filter(is_placed) {
        low = low.min(height_of(point));
        high = high.max(height_of(point));
    }
    let start = first.at;
    let span = points.iter().map(|point| point.at.saturating_sub(start)).max().unwrap_or(0).max(1);
    let x = |at: u64| LEFT + at.saturating_sub(start) as f64 / span as f64 * (WIDTH - LEFT - 20.0);
    let y = |psn: f64| TOP + (high - psn) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg class=\"graph\" role=\"img\" aria-label=\"PSN over time\" viewBox=\"0 0 {WIDTH} \
         {HEIGHT}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <path d=\"M{LEFT} {TOP}V{0}H{1}\" fill=\"none\" stroke=\"#888\"/>\n\
         <text x=\"4\" y=\"{2}\">PSN {3:#08x}</text><text x=\"4\" y=\"{0}\">PSN {4:#08x}</text>\n\
         <text x=\"{LEFT}\" y=\"{5}\">0</text><text x=\"{1}\" y=\"{5}\" \
         text-anchor=\"end\">{6}</text>\n",
        HEIGHT - BOTTOM,
        WIDTH - 20.0,
        TOP + 10.0,
        psn(first, high),
        psn(first, low),
        HEIGHT - BOTTOM + 16.0,
        duration(span),
    );
    legend(&mut svg, points);
    for found in findings.iter().take(super::SHOWN) {
        let at = x(found.at);
        let _ = writeln!(
            svg,
            "<a href=\"#{}\"><path d=\"M{at:.1} {TOP}V{}\" stroke=\"#b3261e\" \
             stroke-opacity=\".25\" stroke-width=\"3\"/><title>{}</title></a>",
            anchor(found),
            HEIGHT - BOTTOM,
            escaped(&found.sentence)
        );
    }
    for point in points.iter().filter(|point| is_placed(point) || point.mark == Mark::Cnp) {
        let (color, radius, _) = look(point.mark);
        let at = if point.mark == Mark::Cnp { TOP } else { y(height_of(point)) };
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{at:.1}\" r=\"{radius}\" fill=\"{color}\"><title>packet \
             {}: {}, PSN {:#08x}</title></circle>",
            x(point.at),
            point.packet.number,
            point.opcode,
            point.psn.value()
        );
    }
    svg.push_str("</svg>\n");
    if channel.recorder.every() > 1 {
        let _ = writeln!(svg, "<p>One of {} packets is drawn.</p>", channel.recorder.every());
    }
    svg
}

/// Returns the PSN of `first` plus `offset`.
#[allow(clippy::cast_possible_truncation)] // It came from one.
fn psn(first: &Point, offset: f64) -> u32 {
    first.psn.add((offset as i32).cast_unsigned()).value()
}

fn legend(svg: &mut String, points: &[Point]) {
    let all = [Mark::Request, Mark::Repeat, Mark::Answer, Mark::Nak, Mark::Rnr, Mark::Cnp];
    let mut at = LEFT;
    for mark in all.into_iter().filter(|mark| points.iter().any(|point| point.mark == *mark)) {
        let (color, _, name) = look(mark);
        let _ = writeln!(
            svg,
            "<circle cx=\"{at}\" cy=\"12\" r=\"5\" fill=\"{color}\"/><text x=\"{}\" \
             y=\"16\">{name}</text>",
            at + 9.0
        );
        at += 120.0;
    }
}
