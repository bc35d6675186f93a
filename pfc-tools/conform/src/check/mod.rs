//! `feroce conform check`: checks every packet of captures against the rules.

mod command;
mod congestion;
mod connect;
mod connection_failure;
mod data_responses;
mod datagram;
mod findings;
mod gap;
mod hole;
mod mad;
mod message;
mod output;
mod packet;
mod requester;
mod responder;
mod retransmission;
mod stray;
mod two_captures;
mod unmatched;
mod vendor_quirks;

use feroce_wire::{Opcode, Psn, Qpn, Syndrome};
use indicatif::ProgressBar;

use super::flow::recorder::{Point, PointKind};
use super::flow::{Channel, Flows, Key, ResponseFlow, Service};
use super::packet::{Contents, Reader, Seen};
use super::rules::RuleId;
use super::trace::{Frame, Trace, TraceError};

pub use command::{Options, run};
pub use findings::{DETAILED, Findings, Place};
pub use output::{Format, Report, title};

/// Number of frames after which a terminal shows how many were checked.
const PROGRESS: u64 = 1 << 18;

/// Selects the packets to check.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    /// Only flows with this QP at either end; for datagrams, at the receiving end.
    pub qpn: Option<Qpn>,
    /// Only packets from this time on, in nanoseconds since the first frame.
    pub from: Option<u64>,
    /// Only packets up to this time, in nanoseconds since the first frame.
    pub to: Option<u64>,
}

/// Checks packets against the rules, one after the other. Keeps the state of every flow and a
/// bounded number of packets of each flow.
#[derive(Debug, Default)]
pub struct Checker {
    flows: Flows,
    connections: connect::Connections,
    /// Present if there are several captures.
    sides: Option<two_captures::TwoCaptures>,
    findings: Findings,
    /// CNPs to QPs of which no packet was captured before.
    lost_cnps: Vec<(Key, Place)>,
    filter: Filter,
    records: bool,
    first_at: Option<u64>,
    last_at: u64,
    frames: u64,
    packets: u64,
}

impl Checker {
    /// Creates a checker with `filter`. If `records` is true, it also keeps the packets that
    /// pictures of a flow show.
    pub fn new(filter: Filter, records: bool) -> Self {
        Self { filter, records, ..Self::default() }
    }

    /// Checks all frames of `trace`. An error of `trace` ends the check; the report then covers the
    /// frames before the error.
    pub fn check(mut self, trace: &mut Trace) -> (Report, Result<(), TraceError>) {
        let files: Vec<_> = trace.names().map(|name| name.display().to_string()).collect();
        self.sides = (files.len() > 1).then(two_captures::TwoCaptures::default);
        let mut reader = Reader::default();
        // Draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new_spinner();
        let ended = loop {
            match trace.next_frame() {
                Ok(Some(frame)) => {
                    self.frame(&frame, &mut reader);
                    if self.frames.is_multiple_of(PROGRESS) {
                        bar.set_message(format!("{} frames checked", self.frames));
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        bar.finish_and_clear();
        (self.finish(files), ended)
    }

    /// Checks one frame.
    pub fn frame(&mut self, frame: &Frame<'_>, reader: &mut Reader) {
        let first = *self.first_at.get_or_insert(frame.at);
        let since = frame.at.saturating_sub(first);
        let Filter { from, to, .. } = self.filter;
        if from.is_some_and(|from| since < from) || to.is_some_and(|to| since > to) {
            return;
        }
        self.frames += 1;
        self.last_at = self.last_at.max(frame.at);
        reader.read(frame, |contents| match contents {
            Contents::Roce(seen) => self.packet(&seen),
            Contents::Broken(error) => {
                self.packets += 1;
                let packet = super::rules::PacketRef { file: frame.file, number: frame.number };
                let place = Place { packet, at: frame.at, flow: None };
                packet::broken(error, place, &mut self.findings);
            }
            Contents::Other => {}
        });
    }

    /// Checks one RoCE packet.
    pub fn packet(&mut self, seen: &Seen<'_>) {
        self.packets += 1;
        let nowhere = Place::of(seen, None);
        if let Some(sides) = &mut self.sides {
            sides.take(seen, nowhere);
        }
        if !packet::is_whole(seen, nowhere, &mut self.findings) {
            return;
        }
        let info = seen.packet.info;
        match Service::of(info.transport) {
            None => self.cnp(seen),
            Some(Service::Ud) => self.datagram(seen, key(seen, Service::Ud)),
            Some(service) if info.is_response() => self.response(seen, key(seen, service)),
            Some(service) => self.request(seen, key(seen, service)),
        }
    }

    fn request(&mut self, seen: &Seen<'_>, key: Key) {
        let Some(flow) = self.flows.of_request(key) else { return };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        let out = &mut self.findings;
        connected(channel, 0, seen, place, out);
        let before = channel.figures.retransmitted;
        requester::Request { seen, channel, place, out }.take();
        if self.records {
            let is_retransmission = channel.figures.retransmitted > before;
            let kind =
                if is_retransmission { PointKind::Retransmission } else { PointKind::Request };
            channel.recorder.add(point(seen, place, kind));
        }
    }

    fn response(&mut self, seen: &Seen<'_>, key: Key) {
        let psn = seen.packet.bth.psn;
        let flow = match self.flows.of_response(key, psn) {
            Some(ResponseFlow::Flow(flow) | ResponseFlow::OnlyResponses(flow)) => flow,
            Some(ResponseFlow::OtherQp(flow)) => {
                let expected = self.flows.get(flow).response_qpn.unwrap_or_default();
                self.findings.add(RuleId::AnswerQp, Place::of(seen, Some(flow)), || {
                    format!(
                        "{} with PSN {} goes to QP {}, but the request came from QP {expected}",
                        seen.packet.info.name,
                        findings::hex(psn),
                        key.qpn
                    )
                });
                if !self.flows.is_doubtful(flow, key.qpn) {
                    return;
                }
                flow
            }
            None => return,
        };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        channel.bound_responses = channel
            .bound_responses
            .saturating_add(u32::from(channel.response_qpn == Some(key.qpn)));
        let out = &mut self.findings;
        connected(channel, 1, seen, place, out);
        responder::Response { seen, channel, place, out }.take();
        if self.records {
            let kind = match seen.packet.ext.aeth.map(|aeth| aeth.syndrome) {
                Some(Syndrome::Nak(_)) => PointKind::Nak,
                Some(Syndrome::RnrNak(_)) => PointKind::Rnr,
                _ => PointKind::Response,
            };
            channel.recorder.add(point(seen, place, kind));
        }
    }

    fn datagram(&mut self, seen: &Seen<'_>, key: Key) {
        let Some(flow) = self.flows.of_request(key) else { return };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        let out = &mut self.findings;
        channel.first.get_or_insert(place.packet);
        packet::fields(seen, place, out);
        vendor_quirks::check_packet(channel, seen, place, out);
        packet::reserved(channel, seen, place, out);
        datagram::take(channel, seen, place, out);
        if self.records {
            channel.recorder.add(point(seen, place, PointKind::Request));
        }
        if key.qpn == Qpn::GSI {
            self.connections.take(seen, place, &mut self.flows, out);
        }
    }

    fn cnp(&mut self, seen: &Seen<'_>) {
        // A CNP goes to the sender of requests, or to the sender of READ responses.
        let keys = Service::ALL.map(|service| key(seen, service));
        let bound = keys.iter().find_map(|key| self.flows.bound(key)).map(|flow| (flow, 0));
        let known = keys.iter().find_map(|key| self.flows.known_request(key)).map(|flow| (flow, 1));
        let both = [bound, known];
        let channel = |flow: usize| &self.flows.all()[flow];
        let is_marked = |&(flow, side): &(usize, usize)| channel(flow).marks[side].marked > 0;
        let is_sent = |&(flow, side): &(usize, usize)| {
            let figures = channel(flow).figures;
            [figures.requests, figures.responses][side] > 0
        };
        let is_captured = both.iter().flatten().any(is_sent);
        let found = both.into_iter().flatten().find(is_marked).or(bound).or(known);
        let place = Place::of(seen, found.map(|(flow, _)| flow));
        packet::fields(seen, place, &mut self.findings);
        congestion::format(seen, place, &mut self.findings);
        let channel = found.map(|(flow, _)| &self.flows.all()[flow]);
        congestion::fields(channel, seen, place, &mut self.findings);
        let Some((flow, side)) = found else {
            if self.lost_cnps.len() < stray::MAX_CNPS {
                self.lost_cnps.push((key(seen, Service::Rc), place));
            }
            return;
        };
        let channel = self.flows.get(flow);
        congestion::notified(channel, (side, is_captured), seen, place, &mut self.findings);
        if self.records {
            channel.recorder.add(point(seen, place, PointKind::Cnp));
        }
    }

    /// Adds the findings that need the whole capture, and returns the report.
    pub fn finish(mut self, files: Vec<String>) -> Report {
        for (flow, channel) in self.flows.all().iter().enumerate() {
            connection_failure::end(channel, flow, &mut self.findings);
            congestion::end(channel, flow, &mut self.findings);
        }
        stray::end(&mut self.flows, &mut self.findings);
        stray::cnps(&self.lost_cnps, &self.flows, &mut self.findings);
        self.connections.end(self.last_at, &mut self.findings);
        if let Some(sides) = &mut self.sides {
            sides.end(&mut self.findings);
        }
        self.findings.sort();
        let mut report = Report {
            files,
            flows: self.flows,
            findings: self.findings,
            frames: self.frames,
            packets: self.packets,
            first_at: self.first_at.unwrap_or(0),
            last_at: self.last_at,
        };
        // Done at the end, because responses reveal which QP the requests come from.
        if let Some(qpn) = self.filter.qpn {
            report.retain_flows(true, |_, channel| {
                channel.key.qpn == qpn || channel.response_qpn == Some(qpn)
            });
        }
        if report.packets == 0 || (self.filter.qpn.is_some() && report.shown().next().is_none()) {
            stray::nothing(&mut report);
        }
        report
    }
}

/// Returns the key of the flow of a packet.
fn key(seen: &Seen<'_>, service: Service) -> Key {
    let qpn = seen.packet.bth.dest_qp;
    Key { tap: seen.tap, src: seen.src(), dst: seen.dst(), service, qpn }
}

/// Checks what every packet of a connection must satisfy, sent by the requester (`side` 0) or by
/// the responder (`side` 1).
fn connected(
    channel: &mut Channel,
    side: usize,
    seen: &Seen<'_>,
    place: Place,
    out: &mut Findings,
) {
    channel.first.get_or_insert(place.packet);
    packet::fields(seen, place, out);
    packet::constants(channel, seen, place, out);
    vendor_quirks::check_packet(channel, seen, place, out);
    packet::reserved(channel, seen, place, out);
    congestion::data(channel, side, seen, place);
}

fn point(seen: &Seen<'_>, place: Place, kind: PointKind) -> Point {
    let packet = &seen.packet;
    let psn: Psn = packet.bth.psn;
    let opcode: Opcode = packet.bth.opcode;
    Point {
        packet: place.packet,
        at: seen.at,
        psn,
        opcode,
        kind,
        syndrome: packet.ext.aeth.map(|aeth| aeth.syndrome.to_byte()),
        payload: u32::try_from(packet.payload.len()).unwrap_or(u32::MAX),
    }
}
