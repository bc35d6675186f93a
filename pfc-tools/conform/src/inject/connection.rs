//! What is known of a connection: from the script, from the messages that set it up, from options,
//! or from its packets. A checker that needs what is not known is silent.

use std::net::IpAddr;

use feroce_wire::cm::{CmMad, CmMessage, Rep, Req};
use feroce_wire::{Operation, Packet, PathMtu, Position, Psn, Qpn};

use super::script::Traffic;
use super::trace::{Side, Step, StepKind};

/// Properties of a QP pair, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connection {
    /// Path MTU.
    pub mtu: Option<PathMtu>,
    /// Local ACK timeout of the requester.
    pub timeout: Option<TimeoutCodes>,
    /// Retry count of the requester.
    pub retries: Option<u8>,
    /// RNR retry count of the requester; 7 means without limit.
    pub rnr_retries: Option<u8>,
    /// Timer code in the responder's RNR NAKs.
    pub rnr_timer: Option<u8>,
    /// READs and atomics that the responder accepts at the same time.
    pub depth: Option<u8>,
}

/// The least and the greatest code that the local ACK timeout may have: 4.096 us times two to its
/// power; 0: none. An active side of the CM derives its own from a path lifetime that no message
/// names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutCodes {
    /// The least code.
    pub least: u8,
    /// The greatest code.
    pub greatest: u8,
}

impl TimeoutCodes {
    /// Exactly this code.
    pub const fn exactly(code: u8) -> Self {
        Self { least: code, greatest: code }
    }

    /// Returns the shortest and the longest timeout in nanoseconds, [`u64::MAX`] for none.
    pub fn nanos(self) -> [u64; 2] {
        [self.least, self.greatest].map(|code| if code == 0 { u64::MAX } else { 4096 << code })
    }
}

impl std::fmt::Display for TimeoutCodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.least == self.greatest {
            true => write!(f, "{}", self.least),
            false => write!(f, "{} to {}", self.least, self.greatest),
        }
    }
}

impl Connection {
    /// The connection that `traffic` describes.
    pub const fn of(traffic: &Traffic) -> Self {
        Self {
            mtu: Some(traffic.mtu),
            timeout: Some(TimeoutCodes::exactly(traffic.timeout)),
            retries: Some(traffic.retries),
            rnr_retries: Some(traffic.rnr_retries),
            rnr_timer: Some(traffic.rnr_timer),
            depth: Some(traffic.depth),
        }
    }

    /// Takes from `other` what is unknown here.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            mtu: self.mtu.or(other.mtu),
            timeout: self.timeout.or(other.timeout),
            retries: self.retries.or(other.retries),
            rnr_retries: self.rnr_retries.or(other.rnr_retries),
            rnr_timer: self.rnr_timer.or(other.rnr_timer),
            depth: self.depth.or(other.depth),
        }
    }
}

impl std::fmt::Display for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn said(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
        }
        let mtu = said(self.mtu.map(PathMtu::bytes));
        write!(
            f,
            "path MTU {mtu}, timeout code {}, retries {}, RNR retries {}, RNR timer code {}, READs \
             and atomics outstanding {}",
            said(self.timeout),
            said(self.retries),
            said(self.rnr_retries),
            said(self.rnr_timer),
            said(self.depth)
        )
    }
}

/// The message of the CM in a packet, if it is one.
pub fn cm_mad(packet: &Packet<'_>) -> Option<CmMad> {
    if packet.bth.dest_qp != Qpn::GSI {
        return None;
    }
    let mut bytes = vec![0; packet.payload.len()];
    packet.payload.copy_to(&mut bytes);
    CmMad::parse(&bytes).ok()
}

/// An end of a connection as its CM message describes it.
#[derive(Debug, Clone, Copy)]
struct Offer {
    comm_id: u32,
    address: IpAddr,
    qpn: Qpn,
    /// The peer's starting PSN.
    peers_psn: Psn,
    responder_resources: u8,
    rnr_retries: u8,
}

/// A connection that both sides have described.
#[derive(Debug, Clone, Copy)]
struct SetUp {
    /// Sender of the REQ, sender of the REP.
    ends: [Offer; 2],
    mtu: Option<PathMtu>,
    /// Timeouts of the ends.
    timeouts: [TimeoutCodes; 2],
    retries: u8,
}

/// The connections whose set-up has been seen.
#[derive(Debug, Clone, Default)]
pub struct SetUps {
    /// Who asked first.
    asker: Option<IpAddr>,
    requests: Vec<(IpAddr, Req)>,
    known: Vec<SetUp>,
}

/// What the set-up says of a flow.
#[derive(Debug, Clone, Copy)]
pub struct Learned {
    /// Its properties.
    pub connection: Connection,
    /// QP numbers of requester and responder.
    pub qpns: [Qpn; 2],
    /// Starting PSN of the requester.
    pub first_psn: Psn,
}

/// The number of REQs, and of connections, that are remembered.
const REMEMBERED: usize = 1024;

impl SetUps {
    /// Takes a message of the CM.
    pub fn observe(&mut self, from: IpAddr, to: IpAddr, message: &CmMessage) {
        match message {
            CmMessage::Req(req) => {
                self.asker.get_or_insert(from);
                let is_same = |(address, known): &(IpAddr, Req)| {
                    (*address, known.local_comm_id) == (from, req.local_comm_id)
                };
                self.requests.retain(|known| !is_same(known));
                forget_oldest(&mut self.requests);
                self.requests.push((from, *req));
            }
            CmMessage::Rep(rep) => self.on_reply(from, to, rep),
            _ => {}
        }
    }

    fn on_reply(&mut self, from: IpAddr, to: IpAddr, rep: &Rep) {
        let asked = |(address, req): &&(IpAddr, Req)| {
            *address == to && req.local_comm_id == rep.remote_comm_id
        };
        let Some((_, req)) = self.requests.iter().find(asked) else { return };
        let active = Offer {
            comm_id: req.local_comm_id,
            address: to,
            qpn: req.local_qpn,
            peers_psn: req.starting_psn,
            responder_resources: req.responder_resources,
            rnr_retries: req.rnr_retry_count,
        };
        let passive = Offer {
            comm_id: rep.local_comm_id,
            address: from,
            qpn: rep.local_qpn,
            peers_psn: rep.starting_psn,
            responder_resources: rep.responder_resources,
            rnr_retries: rep.rnr_retry_count,
        };
        let set_up = SetUp {
            ends: [active, passive],
            mtu: PathMtu::from_code(req.path_mtu),
            timeouts: timeouts(req, rep),
            retries: req.retry_count,
        };
        let is_same = |known: &SetUp| {
            let end = &known.ends[0];
            (end.address, end.comm_id) == (active.address, active.comm_id)
        };
        self.known.retain(|known| !is_same(known));
        forget_oldest(&mut self.known);
        self.known.push(set_up);
    }

    /// Returns the side that sends a message of the CM: the requester is who asked first.
    pub fn side(&self, packet: &Packet<'_>) -> Side {
        match self.asker == Some(packet.ip.src()) {
            true => Side::Requester,
            false => Side::Responder,
        }
    }

    /// Returns what is known of the connection to which a request belongs.
    pub fn find(&self, request: &Packet<'_>) -> Option<Learned> {
        let (from, to) = (request.ip.src(), request.ip.dst());
        self.known.iter().rev().find_map(|set_up| {
            let target = set_up
                .ends
                .iter()
                .position(|end| (end.address, end.qpn) == (to, request.bth.dest_qp))?;
            let (ours, theirs) = (set_up.ends[1 - target], set_up.ends[target]);
            let connection = Connection {
                mtu: set_up.mtu,
                timeout: Some(set_up.timeouts[1 - target]),
                retries: Some(set_up.retries),
                rnr_retries: Some(theirs.rnr_retries),
                rnr_timer: None,
                depth: Some(theirs.responder_resources),
            };
            let qpns = [ours.qpn, theirs.qpn];
            let learned = Learned { connection, qpns, first_psn: theirs.peers_psn };
            (ours.address == from).then_some(learned)
        })
    }
}

/// The timeouts of active and passive side. The passive side takes the code of the REQ; the active
/// side adds the peer's ACK delay to its path lifetime, which the code of the REQ bounds
/// (`cm_ack_timeout` in the kernel's drivers/infiniband/core/cm.c).
fn timeouts(req: &Req, rep: &Rep) -> [TimeoutCodes; 2] {
    let passive = req.primary_ack_timeout;
    let greatest = (passive.max(rep.target_ack_delay) + 1).min(31);
    // Never 0, which would stand for no timeout.
    let active = TimeoutCodes { least: rep.target_ack_delay.max(1).min(greatest), greatest };
    [active, TimeoutCodes::exactly(passive)]
}

/// Finds the path MTU from the packets of a flow. A First or Middle packet carries exactly one
/// path MTU; a READ takes as many PSNs as its responses are packets. `None`: no packet depends on
/// it.
pub fn mtu_of(steps: &[Step<'_>]) -> Option<PathMtu> {
    let is_full =
        |step: &&Step<'_>| matches!(step.packet.info.position, Position::First | Position::Middle);
    let full = steps.iter().filter(|step| step.kind == StepKind::Sent).find(is_full);
    let bytes = full.and_then(|step| u32::try_from(step.packet.payload.len()).ok());
    bytes.and_then(PathMtu::from_bytes).or_else(|| mtu_of_reads(steps))
}

fn mtu_of_reads(steps: &[Step<'_>]) -> Option<PathMtu> {
    let requests = steps.iter().filter(|step| step.is_sent_by(Side::Requester));
    let requests: Vec<_> = requests.filter(|step| step.packet.info.is_request()).collect();
    requests.windows(2).find_map(|pair| {
        let reth = pair[0].packet.ext.reth?;
        let is_read = pair[0].packet.info.operation == Operation::ReadRequest;
        let packets = pair[0].psn().distance_to(pair[1].psn());
        let fits = |mtu: &PathMtu| reth.dma_len.div_ceil(mtu.bytes()).max(1) == packets;
        PathMtu::ALL.into_iter().find(fits).filter(|_| is_read && packets > 1)
    })
}

fn forget_oldest<T>(list: &mut Vec<T>) {
    if list.len() == REMEMBERED {
        list.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some drivers report no delay of their acknowledgements.
    #[test]
    fn a_timeout_from_the_cm_is_never_none() {
        let req = Req { primary_ack_timeout: 17, ..Req::default() };
        let [active, passive] = timeouts(&req, &Rep::default());
        assert_eq!((active.least, active.greatest), (1, 18));
        assert_eq!(passive, TimeoutCodes::exactly(17));
    }

    #[test]
    fn connections_of_two_hosts_may_have_one_communication_id() {
        let [a, b, c]: [IpAddr; 3] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap());
        let mut set_ups = SetUps::default();
        for from in [a, c] {
            let req = Req { local_comm_id: 7, path_mtu: 3, ..Req::default() };
            set_ups.observe(from, b, &CmMessage::Req(req));
            let rep = Rep { local_comm_id: 9, remote_comm_id: 7, ..Rep::default() };
            set_ups.observe(b, from, &CmMessage::Rep(rep));
        }
        assert_eq!((set_ups.requests.len(), set_ups.known.len()), (2, 2));
        assert_eq!(set_ups.asker, Some(a));
    }
}
