//! Who a device is on the network and how it finds its peers: from the kernel's tables, or given.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, MacAddr, Qpn, VlanTag};

use crate::net::{
    Gid, GidEntry, GidTable, NetError, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver,
    multicast_mac, wait,
};
use crate::port::kind::LinkAddresses;
use crate::time::Duration;

/// The way to a peer, as `ibv_ah_attr` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The peer.
    pub dgid: Gid,
    /// Own address: index in the GID table.
    pub sgid_index: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 takes the route's.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// IPv6 flow label; 0 derives one from the QP numbers.
    pub flow_label: u32,
    /// 802.1Q priority where frames are tagged, 0..=7.
    pub service_level: u8,
    /// The peer takes super-frames: see [`Endpoint::super_frames`](super::Endpoint::super_frames).
    pub super_frames: bool,
}

impl Path {
    /// A path from GID `sgid_index` to `dgid` with the defaults.
    pub fn new(dgid: Gid, sgid_index: u32) -> Self {
        Self {
            dgid,
            sgid_index,
            traffic_class: 0,
            hop_limit: 0,
            source_port: SourcePort::PerQp,
            flow_label: 0,
            service_level: 0,
            super_frames: false,
        }
    }
}

/// Where the UDP source port comes from. Switches and receive queues spread flows by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourcePort {
    /// From the flow label, which without a choice of the program comes from the QP numbers: flows take
    /// all of several equal paths, and all receive queues.
    #[default]
    PerQp,
    /// The same for all, for firewalls and captures: flows between two hosts take one path.
    Fixed(NonZeroU16),
}

/// Addresses given by hand, for ports that no kernel interface stands behind.
#[derive(Debug, Clone)]
pub struct StaticAddresses {
    /// Own Ethernet address.
    pub mac: MacAddr,
    /// Own GIDs, with the VLAN of each.
    pub gids: Vec<(Gid, Option<u16>)>,
    /// Ethernet addresses of the peers.
    pub peers: BTreeMap<Gid, MacAddr>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// Where a device's addresses come from.
#[derive(Debug)]
pub enum Addressing {
    /// From the kernel, followed live.
    Kernel(KernelAddresses),
    /// Given.
    Static(StaticAddresses),
    /// From the port, which answers for its addresses and finds its neighbours itself.
    Port(Arc<dyn LinkAddresses>),
}

/// The kernel's view.
#[derive(Debug)]
pub struct KernelAddresses {
    pub(super) table: RwLock<GidTable>,
    resolver: Mutex<Resolver>,
}

impl KernelAddresses {
    /// The addresses of `interface` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No such interface, or the kernel's tables cannot be read.
    pub fn open(interface: &str) -> Result<Self, NetError> {
        let table = RwLock::new(GidTable::read(interface)?);
        Ok(Self { table, resolver: Mutex::new(Resolver::open()?) })
    }

    fn resolver(&self) -> MutexGuard<'_, Resolver> {
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Addressing {
    /// GIDs in use, by index.
    pub fn gids(&self) -> Vec<(u32, GidEntry)> {
        let index = |index: usize| u32::try_from(index).expect("a GID table is short");
        match self {
            Self::Kernel(kernel) => {
                let table = kernel.table.read().unwrap_or_else(PoisonError::into_inner);
                table.iter().map(|(at, entry)| (index(at), entry.clone())).collect()
            }
            Self::Static(given) => {
                let entry = |&(gid, vlan): &(Gid, Option<u16>)| GidEntry {
                    gid,
                    vlan,
                    interface: 0,
                    interface_name: String::new(),
                };
                given.gids.iter().enumerate().map(|(at, gid)| (index(at), entry(gid))).collect()
            }
            Self::Port(port) => {
                port.gids().into_iter().enumerate().map(|(at, entry)| (index(at), entry)).collect()
            }
        }
    }

    /// The GID with index `index`.
    pub fn gid(&self, index: u32) -> Option<GidEntry> {
        self.gids().into_iter().find(|(at, _)| *at == index).map(|(_, entry)| entry)
    }

    /// True if `gid` is an address of the device itself.
    pub fn is_own(&self, gid: Gid) -> bool {
        self.gids().iter().any(|(_, entry)| entry.gid == gid)
    }

    /// The headers that lead from `source` to `dgid`. To an address of the device itself, they lead from its
    /// Ethernet address back to it. May wait for a neighbour to answer.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &self,
        dgid: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        let is_own = self.is_own(dgid);
        match self {
            Self::Kernel(kernel) if is_own => kernel.resolver().resolve_own(dgid, source),
            Self::Static(given) if is_own => {
                PathHeaders::to_self(dgid, source, given.mac, given.mtu)
            }
            Self::Port(port) if is_own => port.resolve_own(dgid, source),
            // The resolver is held for a look at a time: nobody waits for another's neighbour.
            Self::Kernel(kernel) => {
                wait(timeout, |has_asked| kernel.resolver().look(dgid, source, has_asked))
            }
            Self::Static(given) => given.resolve(dgid, source),
            Self::Port(port) => port.resolve(dgid, source, timeout),
        }
    }
}

impl StaticAddresses {
    fn resolve(&self, dgid: Gid, source: &GidEntry) -> Result<PathHeaders, ResolveError> {
        let group = dgid.multicast_group();
        let (src_ip, dst_ip) = (source.gid.ip(), group.unwrap_or(dgid.ip()));
        if src_ip.is_ipv4() != dst_ip.is_ipv4() {
            return Err(ResolveError::FamilyMismatch { source_ip: src_ip, destination: dst_ip });
        }
        let unresolved = ResolveError::Unresolved { next_hop: dst_ip, after: Duration::ZERO };
        let dst_mac = match group {
            Some(group) => multicast_mac(group),
            None => *self.peers.get(&dgid).ok_or(unresolved)?,
        };
        Ok(PathHeaders {
            dst_mac,
            src_mac: self.mac,
            vlan: source.vlan,
            src_ip,
            dst_ip,
            hop_limit: if group.is_some() { 1 } else { 64 },
            mtu: self.mtu,
            interface: 0,
            next_hop: group.is_none().then_some(dst_ip),
        })
    }
}

/// How long a path waits for a neighbour.
pub(super) const PATH_TIMEOUT: Duration = RESOLVE_TIMEOUT;

/// The frame headers for `path`, between the QPs `local` and `remote`.
pub(super) fn flow_header(
    path: &Path,
    headers: &PathHeaders,
    local: Qpn,
    remote: Qpn,
    ecn: bool,
) -> FlowHeader {
    use std::net::IpAddr;
    let addresses = match (headers.src_ip, headers.dst_ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpAddresses::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => IpAddresses::V6 { src, dst },
        _ => unreachable!("a path has one address family"),
    };
    let label = match path.flow_label & FLOW_LABEL_MASK {
        0 => flow_label(local, remote),
        label => label,
    };
    let asked_ecn = path.traffic_class & 0b11;
    let ect = if ecn && asked_ecn == 0 { ECT_0 } else { asked_ecn };
    FlowHeader::new(&FlowSpec {
        dst_mac: headers.dst_mac,
        src_mac: headers.src_mac,
        vlan: headers.vlan.map(|id| VlanTag { id, pcp: path.service_level & 7, dei: false }),
        addresses,
        traffic_class: path.traffic_class & !0b11 | ect,
        hop_limit: if path.hop_limit == 0 { headers.hop_limit } else { path.hop_limit },
        flow_label: label,
        udp_source_port: match path.source_port {
            SourcePort::PerQp => source_port(label),
            SourcePort::Fixed(port) => port.get(),
        },
        super_frames: path.super_frames,
    })
}

const ECT_0: u8 = 0b10;
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// A flow label that differs from QP to QP and is the same from both ends, as Linux derives it: the
/// product of the QP numbers folded to 20 bits.
fn flow_label(a: Qpn, b: Qpn) -> u32 {
    let product = u64::from(a.value()) * u64::from(b.value());
    let folded = product ^ product >> 20 ^ product >> 40;
    u32::try_from(folded & u64::from(FLOW_LABEL_MASK)).expect("20 bits")
}

/// The UDP source port for a flow label (RoCEv2 annex A17: 0xC000 to 0xFFFF), so that ECMP spreads QPs:
/// the upper six bits folded into the lower fourteen.
fn source_port(label: u32) -> u16 {
    let folded = (label ^ label >> 14) & 0x3fff;
    u16::try_from(0xc000 | folded).expect("16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_spread_and_are_the_same_from_both_ends() {
        let (a, b) = (Qpn::masked(0x12_3456), Qpn::masked(0x00_0abc));
        assert_eq!(flow_label(a, b), flow_label(b, a));
        let mut ports: Vec<u16> =
            (0x40..0x140).map(|n| source_port(flow_label(Qpn::masked(n), b))).collect();
        assert!(ports.iter().all(|&port| port >= 0xc000));
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() > 200, "{} ports for 256 QPs", ports.len());
    }
}
