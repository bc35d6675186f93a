//! Requests and frames from the bytes of a fuzzer: mostly valid ones, with a value here and there
//! that a hostile program would try.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce_wire::cm::{
    CmMad, CmMessage, Drep, Dreq, IpCmHeader, Mra, PortSpace, Rej, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq,
};
use feroce_wire::{
    Aeth, Bth, Deth, ExtHeaders, FlowSpec, IpAddresses, MacAddr, Msn, Opcode, Pkey, Psn, Qkey, Qpn,
    Syndrome, VlanTag,
};

use super::network::{GROUP, HOST, HOST_MAC, NEIGHBOURS_PEER, PEER, PEER_MAC, local, sealed};
use crate::net::multicast_mac;
use crate::port::daemon::protocol::Request;
use crate::port::kind::ServicePort;

/// Reads the input byte by byte; returns zeros after its end.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(super) fn word(&mut self) -> u32 {
        u32::from_be_bytes([0; 4].map(|_: u8| self.byte()))
    }

    /// A length, and as many bytes.
    pub(super) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// Changes up to three bytes.
    pub(super) fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let [at, bits] = [self.byte(), self.byte()];
            if let Some(byte) = bytes.get_mut(usize::from(at)) {
                *byte ^= bits;
            }
        }
    }

    fn chooses<T: Copy>(&mut self, among: &[T]) -> T {
        among[usize::from(self.byte()) % among.len()]
    }

    /// A QP number. `own`: the first number of each slice of the program.
    fn qpn(&mut self, own: &[u32]) -> u32 {
        let kind = self.byte();
        match (kind % 8, own) {
            (0..=3, [.., last]) => last + u32::from(self.byte()),
            (4, [first, ..]) => first.wrapping_sub(1),
            (5, _) => NEIGHBOURS_PEER.value(),
            (6, _) => self.chooses(&[0, 1, 2, 0xff_ffff, 0x100_0001, u32::MAX]),
            _ => self.word(),
        }
    }

    fn v4(&mut self) -> Ipv4Addr {
        match self.byte() % 8 {
            0..=3 => PEER,
            4 => HOST,
            5 => GROUP,
            6 => self.chooses(&[Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST]),
            _ => self.word().into(),
        }
    }

    fn ip(&mut self) -> IpAddr {
        match self.byte() % 8 {
            0 => Ipv6Addr::UNSPECIFIED.into(),
            1 => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, u16::from(self.byte())).into(),
            2 => self.v4().to_ipv6_mapped().into(),
            _ => self.v4().into(),
        }
    }

    fn service(&mut self) -> ServicePort {
        let space = self.chooses(&[0x106, 0x111, 0x13f, 2, 0]);
        let port = u16::from(self.byte() % 4) * 7000;
        let [flags, ip] = [self.byte(), 0];
        let ip = if flags & 4 == 0 { IpAddr::from([ip; 4]) } else { self.ip() };
        ServicePort { space, port, ip, reuse: flags & 1 != 0, v6_only: flags & 2 != 0 }
    }

    /// A request of a program with the slices `own`.
    pub(super) fn request(&mut self, own: &[u32]) -> Request {
        match self.byte() % 12 {
            0 => {
                let version = u32::from(self.byte());
                let program = String::from_utf8_lossy(self.bytes()).into_owned();
                Request::Attach { version, program }
            }
            1 => Request::Ready,
            2 => Request::Stat,
            3 | 4 => Request::QpnSlice,
            5 => {
                let mut source = local();
                if self.byte().is_multiple_of(4) {
                    source.vlan = Some(u16::from(self.byte()));
                    source.gid[15] = self.byte();
                }
                let destination = crate::net::Gid::from(self.ip()).0;
                Request::Resolve { destination, source, timeout_ms: 0 }
            }
            6 | 7 => {
                let (qpn, remote, remote_qpn) = (self.qpn(own), self.ip(), self.qpn(own));
                Request::Connect { qpn, remote, remote_qpn }
            }
            8 => Request::Disconnect { qpn: self.qpn(own) },
            9 => match self.byte() % 3 {
                0 => Request::Leave { group: self.ip() },
                _ => Request::Join { group: self.ip() },
            },
            10 => Request::Claim(self.service()),
            _ => Request::Release(self.service()),
        }
    }

    /// A frame from a program with the slices `own`.
    pub(super) fn frame(&mut self, own: &[u32]) -> Vec<u8> {
        let (src, dst) = (self.byte(), self.v4());
        let src = if src < 240 { HOST } else { self.v4() };
        let to = match self.byte() {
            0..=199 if dst.is_multicast() => multicast_mac(dst.into()),
            0..=199 => PEER_MAC,
            200..=219 => HOST_MAC,
            _ => MacAddr([self.byte(); 6]),
        };
        let mut flow = FlowSpec::new(to, HOST_MAC, IpAddresses::V4 { src, dst });
        let odd = self.byte();
        if odd >= 240 {
            flow.src_mac = MacAddr([odd; 6]);
            flow.hop_limit = self.byte();
            flow.traffic_class = self.byte();
            flow.vlan = (odd >= 250).then_some(VlanTag { id: 5, pcp: 0, dei: false });
        }
        let mut frame = self.packet(&flow, own);
        self.damage(&mut frame);
        frame
    }

    /// A frame from the link, mostly to a program with the slices `own`.
    pub(super) fn frame_from_link(&mut self, own: &[u32]) -> Vec<u8> {
        let src = self.v4();
        let dst = if self.byte() < 200 { HOST } else { GROUP };
        let mut flow = FlowSpec::new(HOST_MAC, PEER_MAC, IpAddresses::V4 { src, dst });
        flow.traffic_class = self.byte();
        let mut frame = self.packet(&flow, own);
        // The Ethernet addresses stay: the daemon may answer to them.
        self.damage(&mut frame[14..]);
        frame
    }

    /// An Ethernet header with any bytes behind it, or a packet of `flow`.
    fn packet(&mut self, flow: &FlowSpec, own: &[u32]) -> Vec<u8> {
        let kind = self.byte() % 16;
        if kind == 0 {
            let (dst, src) = (flow.dst_mac.0, flow.src_mac.0);
            return [&dst[..], &src, &[8, 0], self.bytes()].concat();
        }
        let mut payload = vec![0; usize::from(self.byte() & !3)];
        let mut bth = Bth {
            dest_qp: Qpn::masked(self.qpn(own)),
            psn: Psn::new(u32::from(self.byte())),
            pkey: Pkey::DEFAULT,
            ..Bth::default()
        };
        let mut ext = ExtHeaders::default();
        match kind {
            1..=4 => bth.opcode = Opcode::RC_SEND_ONLY,
            5 => bth.opcode = Opcode::RC_SEND_MIDDLE,
            6 => {
                bth.opcode = Opcode::RC_ACKNOWLEDGE;
                let syndrome = Syndrome::from_byte(self.byte());
                ext.aeth = Some(Aeth { syndrome, msn: Msn::default() });
                payload.clear();
            }
            7 => {
                bth.opcode = Opcode::CNP;
                payload = vec![0; 16];
            }
            8..=10 => {
                bth.opcode = Opcode::UD_SEND_ONLY;
                let src_qp = Qpn::masked(self.qpn(own));
                ext.deth = Some(Deth { qkey: Qkey(5), src_qp, ..Deth::default() });
            }
            _ => {
                bth.opcode = Opcode::UD_SEND_ONLY;
                bth.dest_qp = Qpn::GSI;
                ext.deth = Some(Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI, ..Deth::default() });
                payload = self.mad(flow, own);
            }
        }
        sealed(flow, &bth, &ext, &payload)
    }

    /// A message of communication management.
    fn mad(&mut self, flow: &FlowSpec, own: &[u32]) -> Vec<u8> {
        let [kind, transaction] = [self.byte(), self.byte() % 4];
        let [local_comm_id, remote_comm_id] = [0; 2].map(|_: u32| u32::from(self.byte() % 6));
        let qpn = Qpn::masked(self.qpn(own));
        let service_id = ServiceId::new(PortSpace::Tcp, u16::from(self.byte() % 4) * 7000);
        let (source, destination) = (flow.addresses.src(), flow.addresses.dst());
        let header = IpCmHeader { source: (source, 40_000).into(), destination }.to_bytes();
        let message: CmMessage = match kind % 9 {
            0 | 1 => {
                let mut req = Req { local_comm_id, service_id, local_qpn: qpn, ..Req::default() };
                req.primary_local_gid = crate::net::Gid::from(source).0;
                req.primary_remote_gid = crate::net::Gid::from(destination).0;
                req.private_data[..IpCmHeader::LEN].copy_from_slice(&header);
                req.into()
            }
            2 => Rep { local_comm_id, remote_comm_id, local_qpn: qpn, ..Rep::default() }.into(),
            3 => Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
            4 => Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::default() }.into(),
            5 => Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
            6 => Rej { local_comm_id, remote_comm_id, ..Rej::default() }.into(),
            7 => {
                let mut req =
                    SidrReq { request_id: local_comm_id, service_id, ..SidrReq::default() };
                req.private_data[..IpCmHeader::LEN].copy_from_slice(&header);
                req.into()
            }
            _ if kind < 128 => {
                SidrRep { request_id: local_comm_id, qpn, service_id, ..SidrRep::default() }.into()
            }
            _ => Mra { local_comm_id, remote_comm_id, ..Mra::default() }.into(),
        };
        let mut mad = CmMad { transaction: transaction.into(), modifier: 0, message }.to_bytes();
        self.damage(&mut mad);
        mad.to_vec()
    }
}
