//! `feroce conform check`: every packet of captures against the rules.

mod answers;
mod command;
mod congestion;
mod connect;
mod datagram;
mod ending;
mod figures;
mod findings;
mod message;
mod output;
mod packet;
mod quirks;
mod recorder;
mod requester;
mod responder;
mod sides;
mod waiting;

use feroce_wire::{Opcode, Psn, Qpn, Syndrome, Transport};

use super::flow::{Answers, Channel, Flows, Key};
use super::packet::{Look, Reader, Seen};
use super::rules::RuleId;
use super::trace::{Frame, Trace, TraceError};

pub use command::{Options, run};
pub use figures::{Figures, Times, duration};
pub use findings::{Findings, Place, TOLD};
pub use output::{Format, Report, title};
pub use recorder::{Mark, Point, Recorder};

/// Which packets are looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    /// Flows with this QP at either end; with datagrams, at the receiving end.
    pub qpn: Option<Qpn>,
    /// From this time on, in nanoseconds since the first frame.
    pub from: Option<u64>,
    /// Up to this time.
    pub to: Option<u64>,
}

/// Holds packets against the rules, one after the other. It keeps what it knows of flows, and a bounded number of packets of each.
#[derive(Debug, Default)]
pub struct Checker {
    flows: Flows,
    connections: connect::Connections,
    /// If there are several captures.
    sides: Option<sides::Sides>,
    findings: Findings,
    filter: Filter,
    records: bool,
    first_at: Option<u64>,
    last_at: u64,
    frames: u64,
    packets: u64,
}

impl Checker {
    /// With `filter`; it keeps what pictures need if `records`.
    pub fn new(filter: Filter, records: bool) -> Self {
        Self { filter, records, ..Self::default() }
    }

    /// All frames of `trace`, whose fault ends the check: what comes before it is in the report.
    pub fn check(mut self, trace: &mut Trace) -> (Report, Result<(), TraceError>) {
        let files: Vec<_> = trace.names().map(|name| name.display().to_string()).collect();
        self.sides = (files.len() > 1).then(sides::Sides::default);
        let mut reader = Reader::default();
        let ended = loop {
            match trace.next_frame() {
                Ok(Some(frame)) => self.frame(&frame, &mut reader),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (self.finish(files), ended)
    }

    /// A frame.
    pub fn frame(&mut self, frame: &Frame<'_>, reader: &mut Reader) {
        let first = *self.first_at.get_or_insert(frame.at);
        let since = frame.at.saturating_sub(first);
        let Filter { from, to, .. } = self.filter;
        if from.is_some_and(|from| since < from) || to.is_some_and(|to| since > to) {
            return;
        }
        self.frames += 1;
        self.last_at = self.last_at.max(frame.at);
        reader.look(frame, |look| match look {
            Look::Roce(seen) => self.packet(&seen),
            Look::Broken(error) => {
                self.packets += 1;
                let packet = super::rules::PacketRef { file: frame.file, number: frame.number };
                let place = Place { packet, at: frame.at, flow: None };
                packet::broken(error, place, &mut self.findings);
            }
            Look::Other => {}
        });
    }

    /// A RoCE packet.
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
        let key =
            Key { tap: seen.tap, src: seen.src(), dst: seen.dst(), qpn: seen.packet.bth.dest_qp };
        if info.transport == Transport::Cnp {
            self.cnp(seen, key);
        } else if info.transport == Transport::Ud {
            self.datagram(seen, key);
        } else if info.is_response() {
            self.answer(seen, key);
        } else {
            self.request(seen, key);
        }
    }

    fn request(&mut self, seen: &Seen<'_>, key: Key) {
        let Some(flow) = self.flows.of_request(key) else { return };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        let out = &mut self.findings;
        connected(channel, 0, seen, place, out);
        let repeated = channel.figures.repeated;
        requester::Request { seen, channel, place, out }.take();
        if self.records {
            let is_repeat = channel.figures.repeated > repeated;
            let mark = if is_repeat { Mark::Repeat } else { Mark::Request };
            channel.recorder.add(point(seen, place, mark));
        }
    }

    fn answer(&mut self, seen: &Seen<'_>, key: Key) {
        let psn = seen.packet.bth.psn;
        let flow = match self.flows.of_answer(key, psn) {
            Some(Answers::Flow(flow) | Answers::Alone(flow)) => flow,
            Some(Answers::OtherQp(flow)) => {
                let due = self.flows.get(flow).answers.unwrap_or_default();
                self.findings.add(RuleId::AnswerQp, Place::of(seen, Some(flow)), || {
                    format!(
                        "{} with PSN {} goes to QP {}; the request came from QP {due}",
                        seen.packet.info.name,
                        requester::hex(psn),
                        key.qpn
                    )
                });
                return;
            }
            None => return,
        };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        let out = &mut self.findings;
        connected(channel, 1, seen, place, out);
        responder::Answer { seen, channel, place, out }.take();
        if self.records {
            let mark = match seen.packet.ext.aeth.map(|aeth| aeth.syndrome) {
                Some(Syndrome::Nak(_)) => Mark::Nak,
                Some(Syndrome::RnrNak(_)) => Mark::Rnr,
                _ => Mark::Answer,
            };
            channel.recorder.add(point(seen, place, mark));
        }
    }

    fn datagram(&mut self, seen: &Seen<'_>, key: Key) {
        let Some(flow) = self.flows.of_request(key) else { return };
        let place = Place::of(seen, Some(flow));
        let channel = self.flows.get(flow);
        let out = &mut self.findings;
        packet::fields(seen, place, out);
        quirks::look(channel, seen, place, out);
        packet::reserved(channel, seen, place, out);
        datagram::take(channel, seen, place, out);
        if self.records {
            channel.recorder.add(point(seen, place, Mark::Request));
        }
        if key.qpn == Qpn::GSI {
            self.connections.take(seen, place, &mut self.flows, out);
        }
    }

    fn cnp(&mut self, seen: &Seen<'_>, key: Key) {
        // It goes to who sends requests, or READ responses.
        let found = match self.flows.bound(&key) {
            Some(flow) => Some((flow, 0)),
            None => self.flows.known_request(&key).map(|flow| (flow, 1)),
        };
        let place = Place::of(seen, found.map(|(flow, _)| flow));
        packet::fields(seen, place, &mut self.findings);
        congestion::format(seen, place, &mut self.findings);
        let Some((flow, side)) = found else { return };
        let channel = self.flows.get(flow);
        congestion::notified(channel, side, seen, place, &mut self.findings);
        if self.records {
            channel.recorder.add(point(seen, place, Mark::Cnp));
        }
    }

    /// What became of it all.
    pub fn finish(mut self, files: Vec<String>) -> Report {
        for (flow, channel) in self.flows.all().iter().enumerate() {
            ending::end(channel, flow, &mut self.findings);
            congestion::end(channel, flow, &mut self.findings);
        }
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
        // At the end, as the answers tell which QP the requests come from.
        if let Some(qpn) = self.filter.qpn {
            report
                .choose(true, |_, channel| channel.key.qpn == qpn || channel.answers == Some(qpn));
        }
        report
    }
}

/// What holds for every packet of a connection, from the requester (`side` 0) or from the responder (1).
fn connected(
    channel: &mut Channel,
    side: usize,
    seen: &Seen<'_>,
    place: Place,
    out: &mut Findings,
) {
    packet::fields(seen, place, out);
    packet::constants(channel, seen, place, out);
    quirks::look(channel, seen, place, out);
    packet::reserved(channel, seen, place, out);
    congestion::data(channel, side, seen, place);
}

fn point(seen: &Seen<'_>, place: Place, mark: Mark) -> Point {
    let packet = &seen.packet;
    let psn: Psn = packet.bth.psn;
    let opcode: Opcode = packet.bth.opcode;
    Point {
        packet: place.packet,
        at: seen.at,
        psn,
        opcode,
        mark,
        syndrome: packet.ext.aeth.map(|aeth| aeth.syndrome.to_byte()),
        payload: u32::try_from(packet.payload.len()).unwrap_or(u32::MAX),
    }
}
