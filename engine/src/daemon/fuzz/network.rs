//! The network of the daemon: its host, a peer, and frames between them.

use std::net::Ipv4Addr;

use feroce_wire::{Bth, ExtHeaders, FlowHeader, FlowSpec, MacAddr, Qpn, write_transport};

use crate::net::Gid;
use crate::port::daemon::protocol::Local;

pub(super) const HOST_MAC: MacAddr = MacAddr([2, 0xfe, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([2, 0xfe, 0, 0, 0, 2]);
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// A multicast group.
pub(super) const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// The QP of the neighbour's peer.
pub(super) const NEIGHBOURS_PEER: Qpn = Qpn::masked(0x123);
/// Bytes of the longest frame: of an MTU that is just enough for a MAD.
pub(super) const FRAME_MAX: usize = MTU as usize + 18;

/// Largest IP packet in bytes.
pub(super) const MTU: u32 = 382;

/// The local address of a request.
pub(super) fn local() -> Local {
    Local { gid: Gid::from(HOST).0, vlan: None, interface: 0, interface_name: String::new() }
}

/// The frame of a packet with a valid ICRC.
pub(super) fn sealed(flow: &FlowSpec, bth: &Bth, ext: &ExtHeaders, payload: &[u8]) -> Vec<u8> {
    let header = FlowHeader::new(flow);
    let mut frame = vec![0; FRAME_MAX];
    let start = header.len();
    let at = write_transport(&mut frame[start..], bth, ext);
    frame[start + at..start + at + payload.len()].copy_from_slice(payload);
    let len = header.seal(&mut frame, at + payload.len(), 1);
    frame.truncate(len);
    frame
}
