//! Splits a capture into lanes: the requests from one QP to another, and their responses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use feroce_engine::qp::Service;
use feroce_wire::cm::{CmMad, CmMessage};
use feroce_wire::{NakCode, Operation, Packet, PathMtu, Position, Psn, Qpn, Syndrome, Transport};

use super::spans::Spans;
use crate::party::Party;

/// A frame of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Number in the capture, from 1, as Wireshark counts.
    pub number: u64,
    /// Time since the first frame.
    pub at: Duration,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// Parses the frame.
    ///
    /// # Panics
    /// If [`roce_frames`] did not keep it.
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes, &[]).expect("kept because it parses")
    }
}

/// Returns the complete RoCEv2 packets with a valid ICRC, and the number of other frames.
pub fn roce_frames(frames: Vec<Captured>) -> (Vec<Captured>, usize) {
    let all = frames.len();
    let is_good =
        |frame: &Captured| Packet::parse(&frame.bytes, &[]).is_ok_and(|packet| packet.icrc_valid());
    let kept: Vec<Captured> = frames.into_iter().filter(is_good).collect();
    let left = all - kept.len();
    (kept, left)
}

/// Requests in one direction, and their responses.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Service of the QPs.
    pub service: Service,
    /// The requester. Its QP number is [`UNKNOWN_QPN`] if no packet shows it.
    pub requester: Party,
    /// The responder.
    pub responder: Party,
    /// Path MTU, as far as the packets show it.
    pub mtu: PathMtu,
    /// VLAN of the frames.
    pub vlan: Option<u16>,
    /// Indices of the requests.
    pub requests: Vec<usize>,
    /// Indices of the responses.
    pub responses: Vec<usize>,
    /// The most READs and atomics that had no response at the same time.
    pub outstanding: usize,
}

impl Lane {
    /// Returns true if communication management in the capture tells that the first request of the
    /// lane is the first one of the connection.
    pub fn begins_in(&self, frames: &[Captured]) -> bool {
        let Some(&first) = self.requests.first() else { return false };
        let starting = (self.responder.qpn, frames[first].packet().bth.psn);
        frames.iter().take(first).any(|frame| {
            let packet = frame.packet();
            let is_from_responder = packet.ip.src() == self.responder.ip;
            let mad = (packet.bth.dest_qp == Qpn::GSI && is_from_responder)
                .then(|| CmMad::parse(packet.payload.first).ok())
                .flatten();
            match mad.map(|mad| mad.message) {
                Some(CmMessage::Req(req)) => (req.local_qpn.value(), req.starting_psn) == starting,
                Some(CmMessage::Rep(rep)) => (rep.local_qpn.value(), rep.starting_psn) == starting,
                _ => false,
            }
        })
    }
}

/// Replaces a QP number that the capture does not show.
pub const UNKNOWN_QPN: u32 = 0x12;

/// Identifies the packets from one host to one QP; for datagrams, from one QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    dest_qp: u32,
    src_qp: Option<u32>,
    transport: u8,
}

#[derive(Debug, Default)]
struct Flow {
    requests: Vec<usize>,
    responses: Vec<usize>,
    /// PSNs of requests and of the responses to READs.
    psns: Spans,
    /// PSNs of responses.
    answered: BTreeSet<u32>,
    /// Longest payload of a packet that fills the path MTU, and of any packet.
    filled: u32,
    longest: u32,
}

/// Returns the lanes of a capture, in the order of their first requests, and the number of packets
/// in no lane: communication management, CNPs, responses without requests.
pub fn lanes(frames: &[Captured]) -> (Vec<Lane>, usize) {
    let flows = flows(frames);
    let mut lanes: Vec<Lane> = Vec::new();
    for (key, flow) in &flows {
        if flow.requests.is_empty() {
            continue;
        }
        let back = answering(&flows, key, flow);
        lanes.push(lane(frames, key, flow, back.map(|key| (key, &flows[key]))));
    }
    lanes.sort_by_key(|lane| lane.requests[0]);
    // Several lanes may have the same responses.
    let used = lanes.iter().flat_map(|lane| lane.requests.iter().chain(&lane.responses));
    let used: BTreeSet<usize> = used.copied().collect();
    (lanes, frames.len() - used.len())
}

fn flows(frames: &[Captured]) -> BTreeMap<Key, Flow> {
    let mut flows: BTreeMap<Key, Flow> = BTreeMap::new();
    for (index, frame) in frames.iter().enumerate() {
        let packet = frame.packet();
        let transport = match packet.info.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Ud if packet.bth.dest_qp != Qpn::GSI => 2,
            _ => continue,
        };
        let (src, dst) = (packet.ip.src(), packet.ip.dst());
        let src_qp = packet.ext.deth.map(|deth| deth.src_qp.value());
        let key = Key { src, dst, dest_qp: packet.bth.dest_qp.value(), src_qp, transport };
        let flow = flows.entry(key).or_default();
        let length = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        flow.longest = flow.longest.max(length);
        if matches!(packet.info.position, Position::First | Position::Middle) {
            flow.filled = flow.filled.max(length);
        }
        match packet.info.is_request() {
            true => flow.requests.push(index),
            false => {
                flow.answered.insert(packet.bth.psn.value());
                flow.responses.push(index);
            }
        }
    }
    let mtus: BTreeMap<Key, u32> = flows.iter().map(|(key, flow)| (*key, flow.filled)).collect();
    for (key, flow) in &mut flows {
        // The size of READ responses shows in the other direction.
        let back = mtus.iter().filter(|(other, _)| (other.src, other.dst) == (key.dst, key.src));
        let mtu = back.map(|(_, &mtu)| mtu).chain([flow.filled]).max().unwrap_or(0);
        let mtu = if mtu == 0 { 1024 } else { mtu };
        for &index in &flow.requests {
            let packet = frames[index].packet();
            let span = read_span(&packet, mtu);
            flow.psns.add(packet.bth.psn, span, index);
        }
    }
    flows
}

/// Returns the number of PSNs of a request; for a READ, that of its responses.
pub fn read_span(packet: &Packet<'_>, mtu: u32) -> u32 {
    match (packet.info.operation, packet.ext.reth) {
        (Operation::ReadRequest, Some(reth)) => reth.dma_len.div_ceil(mtu).max(1),
        _ => 1,
    }
}

/// Returns the reverse flow: the candidate whose responses have the most PSNs of `flow`. If no
/// candidate has any, the only candidate.
fn answering<'a>(flows: &'a BTreeMap<Key, Flow>, key: &Key, flow: &Flow) -> Option<&'a Key> {
    if key.transport == 2 {
        return None;
    }
    let reverse =
        |other: &&Key| (other.src, other.dst, other.transport) == (key.dst, key.src, key.transport);
    let candidates: Vec<&Key> = flows.keys().filter(reverse).collect();
    let is_asked = |psn: &&u32| flow.psns.last_of(Psn::new(**psn)).is_some();
    let answered_psns = |other: &&&Key| flows[**other].answered.iter().filter(is_asked).count();
    match (candidates.iter().max_by_key(answered_psns), candidates.as_slice()) {
        (Some(best), _) if answered_psns(&best) > 0 => Some(best),
        (_, [only]) => Some(only),
        _ => None,
    }
}

fn lane(frames: &[Captured], key: &Key, flow: &Flow, back: Option<(&Key, &Flow)>) -> Lane {
    let first = frames[flow.requests[0]].packet();
    let requester_qpn = key.src_qp.or(back.map(|(key, _)| key.dest_qp)).unwrap_or(UNKNOWN_QPN);
    let filled = back.map_or(0, |(_, back)| back.filled).max(flow.filled);
    let longest = back.map_or(0, |(_, back)| back.longest).max(flow.longest).max(1024);
    let mtu = PathMtu::from_bytes(filled);
    let fits = || PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() >= longest);
    let mtu = mtu.or_else(fits).unwrap_or(PathMtu::Mtu4096);
    let responses = back.map_or_else(Vec::new, |(_, back)| back.responses.clone());
    let outstanding = outstanding(frames, &flow.requests, &responses, mtu.bytes());
    Lane {
        outstanding,
        service: match key.transport {
            0 => Service::Rc,
            1 => Service::Uc,
            _ => Service::Ud,
        },
        requester: Party { mac: first.ethernet.src, ip: key.src, qpn: requester_qpn },
        responder: Party { mac: first.ethernet.dst, ip: key.dst, qpn: key.dest_qp },
        mtu,
        vlan: first.vlan.map(|tag| tag.id),
        requests: flow.requests.clone(),
        responses,
    }
}

/// Returns the most READs and atomics that had no complete response at the same time. A request and
/// its retransmissions count once.
fn outstanding(frames: &[Captured], requests: &[usize], responses: &[usize], mtu: u32) -> usize {
    let mut both: Vec<usize> = requests.iter().chain(responses).copied().collect();
    both.sort_unstable();
    let mut last_psns: Vec<Psn> = Vec::new();
    let mut most = 0;
    for index in both {
        let packet = frames[index].packet();
        let psn = packet.bth.psn;
        if packet.info.is_response() {
            // A NAK that asks for a retransmission acknowledges only earlier requests.
            let repeats = matches!(
                packet.ext.aeth.map(|aeth| aeth.syndrome),
                Some(Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence))
            );
            let remains = |last: &Psn| psn.is_before(*last) || repeats && *last == psn;
            last_psns.retain(remains);
            continue;
        }
        let last = psn.add(read_span(&packet, mtu) - 1);
        let takes_resource = matches!(packet.info.operation, Operation::ReadRequest)
            || packet.ext.atomic_eth.is_some();
        if takes_resource && last_psns.last().is_none_or(|before| before.is_before(last)) {
            last_psns.push(last);
            most = most.max(last_psns.len());
        }
    }
    most
}
