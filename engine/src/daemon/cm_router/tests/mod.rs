//! Tests of the router: literal messages, conversations of real endpoints, random input.

mod claims;
mod conversations;
mod deaths;
mod incoming;
mod outgoing;
mod properties;
mod sim;
mod swarm;

use std::net::Ipv4Addr;

use feroce_wire::cm::{
    CmMad, CmMessage, Drep, Dreq, IpCmHeader, Mra, PortSpace, Rej, RejectReason, Rep, Req, Rtu,
    ServiceId, SidrRep, SidrReq,
};
use feroce_wire::{FlowSpec, IpAddresses, MAD_LEN, MacAddr, Qpn};

use super::{Claim, CmRouter, Limits, Refused, Route, RouterMad};
use crate::daemon::ClientId;
use crate::time::{Duration, Instant};

/// Clients of the router.
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
/// Node GUIDs of the router's device and of the peer's.
const GUID: u64 = 0x0200_00ff_fe00_0001;
const PEER_GUID: u64 = 0x0200_00ff_fe00_0002;
/// Port of RDMA CM, and its service ID.
const PORT: u16 = 7174;
const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, PORT);
const UDP_SERVICE: ServiceId = ServiceId::new(PortSpace::Udp, PORT);
/// QPs of the clients.
const A_QP: Qpn = Qpn::masked(0x101);
const B_QP: Qpn = Qpn::masked(0x202);
/// Local address, and those of two peers.
const LOCAL: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const OTHER: [u8; 4] = [10, 0, 0, 3];

/// A flow from [`LOCAL`] to a host.
fn flow_to(dst: [u8; 4]) -> FlowSpec {
    flow(LOCAL, dst)
}

fn flow(src: [u8; 4], dst: [u8; 4]) -> FlowSpec {
    let addresses = IpAddresses::V4 { src: src.into(), dst: dst.into() };
    FlowSpec::new(MacAddr([2, 0, 0, 0, 0, dst[3]]), MacAddr([2, 0, 0, 0, 0, src[3]]), addresses)
}

fn mad(transaction: u64, message: impl Into<CmMessage>) -> [u8; MAD_LEN] {
    CmMad { transaction, modifier: 0, message: message.into() }.to_bytes()
}

fn mapped(ip: [u8; 4]) -> [u8; 16] {
    Ipv4Addr::from(ip).to_ipv6_mapped().octets()
}

/// The header in front of the private data of a request.
fn addresses<const N: usize>(src: [u8; 4], dst: [u8; 4]) -> [u8; N] {
    let destination = Ipv4Addr::from(dst).into();
    let header = IpCmHeader { source: (Ipv4Addr::from(src), 40_000).into(), destination };
    let mut field = [0; N];
    field[..IpCmHeader::LEN].copy_from_slice(&header.to_bytes());
    field
}

/// A REQ from `src` to [`PORT`] of `dst`.
fn req(id: u32, qpn: Qpn, src: [u8; 4], dst: [u8; 4]) -> Req {
    Req {
        local_comm_id: id,
        service_id: SERVICE,
        local_ca_guid: if src == LOCAL { GUID } else { PEER_GUID },
        local_qpn: qpn,
        remote_response_timeout: 18,
        local_response_timeout: 18,
        path_mtu: 3,
        primary_local_gid: mapped(src),
        primary_remote_gid: mapped(dst),
        private_data: addresses(src, dst),
        ..Req::default()
    }
}

fn sidr_req(id: u32, src: [u8; 4], dst: [u8; 4]) -> SidrReq {
    SidrReq {
        request_id: id,
        service_id: UDP_SERVICE,
        private_data: addresses(src, dst),
        ..SidrReq::default()
    }
}

fn rep(local: u32, remote: u32, qpn: Qpn, guid: u64) -> Rep {
    Rep {
        local_comm_id: local,
        remote_comm_id: remote,
        local_qpn: qpn,
        local_ca_guid: guid,
        ..Rep::default()
    }
}

fn rtu(local: u32, remote: u32) -> Rtu {
    Rtu { local_comm_id: local, remote_comm_id: remote, ..Rtu::default() }
}

fn dreq(local: u32, remote: u32, qpn: Qpn) -> Dreq {
    Dreq { local_comm_id: local, remote_comm_id: remote, remote_qpn: qpn, ..Dreq::default() }
}

fn drep(local: u32, remote: u32) -> Drep {
    Drep { local_comm_id: local, remote_comm_id: remote, ..Drep::default() }
}

fn mra(local: u32, remote: u32, message: u8, service_timeout: u8) -> Mra {
    let (local_comm_id, remote_comm_id) = (local, remote);
    Mra { local_comm_id, remote_comm_id, message, service_timeout, ..Mra::default() }
}

fn rej(local: u32, remote: u32, message: u8, reason: RejectReason) -> Rej {
    let (local_comm_id, remote_comm_id) = (local, remote);
    Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() }
}

fn sidr_rep(id: u32, qpn: Qpn) -> SidrRep {
    SidrRep { request_id: id, qpn, service_id: UDP_SERVICE, ..SidrRep::default() }
}

/// A router with the clients [`A`] and [`B`], and the time.
struct Bench {
    router: CmRouter,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    fn with_limits(limits: Limits) -> Self {
        let mut router = CmRouter::new(GUID, || 0x5eed_0001);
        router.add_client(A, limits);
        router.add_client(B, limits);
        Self { router, now: Instant::from_nanos(1_000_000_000) }
    }

    /// A bench whose client [`A`] has both ports.
    fn listening() -> Self {
        let mut bench = Self::new();
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            bench.router.claim(A, Claim::port(space, PORT, [0, 0, 0, 0].into())).unwrap();
        }
        bench
    }

    /// `client` sends to [`PEER`].
    fn sends(&mut self, client: ClientId, message: impl Into<CmMessage>) -> Result<(), Refused> {
        self.sends_to(client, PEER, message)
    }

    fn sends_to(
        &mut self,
        client: ClientId,
        dst: [u8; 4],
        message: impl Into<CmMessage>,
    ) -> Result<(), Refused> {
        let owns = |qpn: Qpn| qpn == if client == A { A_QP } else { B_QP };
        self.router.outgoing(client, &flow_to(dst), &mad(7, message), &owns, self.now)
    }

    /// A message arrives from [`PEER`].
    fn arrives(&mut self, message: impl Into<CmMessage>) -> Route {
        self.arrives_from(PEER, message)
    }

    fn arrives_from(&mut self, src: [u8; 4], message: impl Into<CmMessage>) -> Route {
        let route = self.router.incoming(&flow_to(src), &mad(9, message), self.now);
        self.router.table.check();
        route
    }

    /// The messages that the router sends.
    fn sent(&mut self) -> Vec<CmMessage> {
        let mads = std::iter::from_fn(|| self.router.transmit());
        mads.map(|sent| CmMad::parse(&sent.mad).unwrap().message).collect()
    }

    fn advance(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.router.expire(self.now);
        self.router.table.check();
    }

    /// [`A`] has connected to [`PEER`]: IDs 0x11 and 0x91, QPs [`A_QP`] and 0x901.
    fn connected_actively() -> Self {
        let mut bench = Self::new();
        bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
        let route = bench.arrives(rep(0x91, 0x11, Qpn::masked(0x901), PEER_GUID));
        assert_eq!(route, Route::Client(A));
        bench.sends(A, rtu(0x11, 0x91)).unwrap();
        bench
    }

    /// [`PEER`] has connected to [`A`]: IDs 0x11 and 0x91, QPs [`A_QP`] and 0x901.
    fn connected_passively() -> Self {
        let mut bench = Self::listening();
        let route = bench.arrives(req(0x91, Qpn::masked(0x901), PEER, LOCAL));
        assert_eq!(route, Route::Client(A));
        bench.sends(A, rep(0x11, 0x91, A_QP, GUID)).unwrap();
        assert_eq!(bench.arrives(rtu(0x91, 0x11)), Route::Client(A));
        bench
    }
}
