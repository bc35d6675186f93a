//! What a capture misses of the responses to a lane, or of their requests.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use feroce_engine::qp::Service;
use feroce_wire::{Operation, Packet, Position, Psn};

use super::align::{Kind, ResponseId};
use super::holes::Hole;
use super::lanes::{Captured, Lane, read_span};
use super::sent_response::SentResponse;
use super::tolerance::Tolerance;

/// Any response may take this long, and may then be behind the end of the capture.
const LEAST_RESPONSE_TIME: Duration = Duration::from_millis(10);

/// See the [module](self).
#[derive(Debug)]
pub struct Missing<'a> {
    lane: &'a Lane,
    frames: &'a [Captured],
    holes: &'a [Hole],
    /// PSNs of the captured responses.
    psns: BTreeSet<u32>,
    /// Captured responses to READs, by their distance from the first request.
    reads: BTreeMap<i32, Position>,
    first: Psn,
    /// PSN after the last request.
    end: Psn,
    response_time: OnceCell<Duration>,
}

/// Returns the number of holes ahead of the frame `index`.
pub fn holes_ahead(holes: &[Hole], index: usize) -> usize {
    holes.partition_point(|hole| hole.first_after <= index)
}

impl<'a> Missing<'a> {
    /// What the capture misses of `lane`, which has these holes.
    pub fn of(lane: &'a Lane, frames: &'a [Captured], holes: &'a [Hole]) -> Self {
        let requests = lane.requests.iter().map(|&index| frames[index].packet());
        let first = requests.clone().next().map_or(Psn::new(0), |packet| packet.bth.psn);
        let ends = requests.map(|packet| {
            let span = read_span(&packet, lane.mtu.bytes());
            packet.bth.psn.add(span).offset_from(first)
        });
        let end = first.add(u32::try_from(ends.max().unwrap_or(0).max(0)).expect("not negative"));
        let mut psns = BTreeSet::new();
        let mut reads = BTreeMap::new();
        for packet in lane.responses.iter().map(|&index| frames[index].packet()) {
            psns.insert(packet.bth.psn.value());
            if packet.info.operation == Operation::ReadResponse {
                reads.insert(packet.bth.psn.offset_from(first), packet.info.position);
            }
        }
        let response_time = OnceCell::new();
        Self { lane, frames, holes, psns, reads, first, end, response_time }
    }

    /// Returns true if the capture misses the request of the captured response in frame `index`.
    pub fn hides_request(&self, index: usize) -> bool {
        let id = ResponseId::of(&self.frames[index].packet());
        let (passed, next) = self.holes.split_at(holes_ahead(self.holes, index));
        let around = passed.last().into_iter().chain(next.first());
        around.into_iter().any(|hole| hole.contains_psn(id.psn))
            || matches!(id.kind, Kind::Read | Kind::Atomic) && !id.psn.is_before(self.end)
    }

    /// Returns why the engine may lack the captured response in frame `index`: its request is ahead
    /// of the capture, or of a hole, behind which retransmissions are not played.
    pub fn why_unsent(&self, index: usize) -> Option<Tolerance> {
        let id = ResponseId::of(&self.frames[index].packet());
        if id.kind != Kind::Sequence && id.psn.is_before(self.first) {
            return Some(Tolerance::CaptureEnds);
        }
        let hole = holes_ahead(self.holes, index).checked_sub(1).map(|last| &self.holes[last])?;
        hole.explains(id.psn).then_some(Tolerance::CaptureHole)
    }

    /// Returns true if the capture misses the engine's response because of a hole.
    pub fn hides_response(&self, sent: &SentResponse, id: &ResponseId) -> bool {
        let hole = self.holes.get(holes_ahead(self.holes, sent.after));
        let may_be_in_hole =
            hole.is_some_and(|hole| hole.answered.is_none_or(|last| last.is_before(id.psn)));
        let is_captured = self.psns.contains(&id.psn.value());
        !is_captured && (may_be_in_hole || id.kind == Kind::Read && self.is_inside_read(id.psn))
    }

    /// Returns true if the responses to a READ around `psn` are captured in part. Had the requester
    /// missed the others, it would have asked again.
    fn is_inside_read(&self, psn: Psn) -> bool {
        let at = psn.offset_from(self.first);
        let before = self.reads.range(..at).next_back().map(|(_, position)| position);
        let after = self.reads.range(at + 1..).next().map(|(_, position)| position);
        let (Some(before), Some(after)) = (before, after) else { return false };
        !before.ends_message() || !after.starts_message()
    }

    /// Returns true if the response may have followed the end of the capture: its request is after
    /// the last captured response, or as near the end as a response takes, or it continues the
    /// responses to a READ that the end cuts off.
    pub fn is_behind_end(&self, sent: &SentResponse) -> bool {
        let Some(&last) = self.lane.responses.last() else {
            return self.lane.service == Service::Rc;
        };
        let end = self.frames.last().map_or(Duration::ZERO, |frame| frame.at);
        // The responder goes on after its last response.
        let takes = *self.response_time.get_or_init(|| response_time(self.frames));
        let is_near_end = self.frames[sent.after.max(last)].at + takes > end;
        let read = self.frames[sent.after].packet();
        let cut_off = self.frames[last].packet();
        let is_cut_off = is_part_of(&read, &cut_off, self.lane.mtu.bytes());
        self.lane.service == Service::Rc && (sent.after > last || is_near_end || is_cut_off)
    }
}

/// Returns true if `response` is one to the READ `request`.
fn is_part_of(request: &Packet<'_>, response: &Packet<'_>, mtu: u32) -> bool {
    let (first, psn) = (request.bth.psn, response.bth.psn);
    request.info.operation == Operation::ReadRequest
        && response.info.operation == Operation::ReadResponse
        && !psn.is_before(first)
        && psn.is_before(first.add(read_span(request, mtu)))
}

/// Returns the longest time between a captured request and its response, doubled: later responses
/// may take longer.
fn response_time(frames: &[Captured]) -> Duration {
    let mut sent: BTreeMap<(IpAddr, IpAddr, u32), Duration> = BTreeMap::new();
    let mut longest = LEAST_RESPONSE_TIME / 2;
    for frame in frames {
        let packet = frame.packet();
        let (from, to, psn) = (packet.ip.src(), packet.ip.dst(), packet.bth.psn.value());
        if packet.info.is_request() {
            sent.insert((from, to, psn), frame.at);
        } else if let Some(sent) = sent.get(&(to, from, psn)) {
            longest = longest.max(frame.at.saturating_sub(*sent));
        }
    }
    longest * 2
}
