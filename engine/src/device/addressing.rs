//! The addresses of a device and the paths to its peers: from the kernel's tables, given by the
//! caller, or from the port.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, MacAddr, Qpn, VlanTag};

use super::error::DeviceError;
use crate::net::{
    Gid, GidEntry, GidTable, NetError, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver,
    multicast_mac, wait,
};
use crate::port::kind::{FilterAddress, LinkAddresses};
use crate::time::Duration;

/// The path to a peer, as in `ibv_ah_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// GID of the peer.
    pub dgid: Gid,
    /// Index of the local address in the GID table.
    pub sgid_index: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 uses that of the route.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// IPv6 flow label; 0 derives a label from the QP numbers.
    pub flow_label: u32,
    /// 802.1Q priority of tagged frames, 0..=7.
    pub service_level: u8,
    /// True if the peer accepts [super-frames](crate::port::super_frame).
    pub super_frames: bool,
}

impl Path {
    /// A path from GID `sgid_index` to `dgid` with default values.
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

/// Choice of the UDP source port, by which switches and receive queues spread flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourcePort {
    /// Derived from the flow label, which by default is derived from the QP numbers. Flows then use
    /// all equal-cost paths and all receive queues.
    #[default]
    PerQp,
    /// The same port for all flows, for firewalls and captures. All flows between two hosts then
    /// take one path.
    Fixed(NonZeroU16),
}

/// Addresses given by the caller, for ports without a kernel interface.
#[derive(Debug, Clone)]
pub struct StaticAddresses {
    /// Local Ethernet address.
    pub mac: MacAddr,
    /// Local GIDs, each with its VLAN.
    pub gids: Vec<(Gid, Option<u16>)>,
    /// Ethernet addresses of the peers.
    pub peers: BTreeMap<Gid, MacAddr>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// The source of the addresses of a device.
#[derive(Debug)]
pub enum Addressing {
    /// The kernel; changes are followed.
    Kernel(KernelAddresses),
    /// The caller.
    Static(StaticAddresses),
    /// The port, which answers requests for its addresses and resolves its neighbours itself.
    Port(Arc<dyn LinkAddresses>),
}

/// Addresses and routes of the kernel.
#[derive(Debug)]
pub struct KernelAddresses {
    pub(crate) table: RwLock<GidTable>,
    resolver: Mutex<Resolver>,
}

impl KernelAddresses {
    /// Reads the addresses of `interface` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no such interface, or the kernel's tables cannot be read.
    pub fn open(interface: &str) -> Result<Self, NetError> {
        let table = RwLock::new(GidTable::read(interface)?);
        Ok(Self { table, resolver: Mutex::new(Resolver::open()?) })
    }

    /// The same for ports whose packets the kernel routes: paths need no neighbour.
    #[must_use]
    pub(super) fn routed(mut self) -> Self {
        self.resolver.get_mut().unwrap_or_else(PoisonError::into_inner).set_routed();
        self
    }

    /// Opens another resolver of the same kind, for a thread of its own.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open_resolver(&self) -> Result<Resolver, NetError> {
        self.resolver().open_alike()
    }

    fn resolver(&self) -> MutexGuard<'_, Resolver> {
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Addressing {
    /// The GIDs in use with their indices.
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
        if let Self::Kernel(kernel) = self {
            let table = kernel.table.read().unwrap_or_else(PoisonError::into_inner);
            return table.get(usize::try_from(index).ok()?).cloned();
        }
        self.gids().into_iter().find(|(at, _)| *at == index).map(|(_, entry)| entry)
    }

    /// The local addresses, with the Ethernet addresses of their interfaces where the kernel has
    /// them, for the filter of the ports.
    pub(crate) fn filter_addresses(&self) -> Vec<FilterAddress> {
        let of = |entry: &GidEntry, mac| FilterAddress { ip: Ipv6Addr::from(entry.gid.0), mac };
        if let Self::Kernel(kernel) = self {
            let table = kernel.table.read().unwrap_or_else(PoisonError::into_inner);
            return table.iter().map(|(_, entry)| of(entry, table.mac_of(entry))).collect();
        }
        self.gids().iter().map(|(_, entry)| of(entry, None)).collect()
    }

    /// Returns true if `gid` is a local address.
    pub fn is_own(&self, gid: Gid) -> bool {
        self.gids().iter().any(|(_, entry)| entry.gid == gid)
    }

    /// The headers of the path from `source` to `dgid`. For a local address `dgid`, source and
    /// destination are the local Ethernet address. May wait for a neighbour to answer, at most
    /// `timeout`.
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
            // The resolver is locked for one lookup only, so threads do not wait for each
            // other's neighbours.
            Self::Kernel(kernel) => {
                wait(timeout, |is_requested| kernel.resolver().look_up(dgid, source, is_requested))
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

/// Maximum time that a path waits for a neighbour.
pub(super) const PATH_TIMEOUT: Duration = RESOLVE_TIMEOUT;

/// The frame headers of `path` between the QPs `local` and `remote`, for a port that can send from
/// `source_ports` (empty: from any port).
///
/// # Errors
/// [`DeviceError::SourcePort`] if the port cannot send from the port that `path` demands.
pub(super) fn flow_header(
    path: &Path,
    headers: &PathHeaders,
    local: Qpn,
    remote: Qpn,
    ecn: bool,
    source_ports: &[u16],
) -> Result<FlowHeader, DeviceError> {
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
    let requested_ecn = path.traffic_class & 0b11;
    let ect = if ecn && requested_ecn == 0 { ECT_0 } else { requested_ecn };
    let udp_source_port = match path.source_port {
        SourcePort::PerQp => source_port(label, source_ports),
        SourcePort::Fixed(port) => port.get(),
    };
    if !source_ports.is_empty() && !source_ports.contains(&udp_source_port) {
        return Err(DeviceError::SourcePort(udp_source_port));
    }
    Ok(FlowHeader::new(&FlowSpec {
        dst_mac: headers.dst_mac,
        src_mac: headers.src_mac,
        vlan: headers.vlan.map(|id| VlanTag { id, pcp: path.service_level & 7, dei: false }),
        addresses,
        traffic_class: path.traffic_class & !0b11 | ect,
        hop_limit: if path.hop_limit == 0 { headers.hop_limit } else { path.hop_limit },
        flow_label: label,
        udp_source_port,
        super_frames: path.super_frames,
    }))
}

const ECT_0: u8 = 0b10;
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// A flow label that differs between QPs and is the same at both ends. As in Linux, the product of
/// the QP numbers folded to 20 bits.
fn flow_label(a: Qpn, b: Qpn) -> u32 {
    let product = u64::from(a.value()) * u64::from(b.value());
    let folded = product ^ product >> 20 ^ product >> 40;
    u32::try_from(folded & u64::from(FLOW_LABEL_MASK)).expect("20 bits")
}

/// The UDP source port for a flow label, so that ECMP spreads QPs: one of `possible` or, if it is
/// empty, of 0xC000 to 0xFFFF (RoCEv2 annex A17). The upper six bits of the label are folded into
/// the lower fourteen.
fn source_port(label: u32, possible: &[u16]) -> u16 {
    let folded = (label ^ label >> 14) & 0x3fff;
    match possible.len() {
        0 => u16::try_from(0xc000 | folded).expect("16 bits"),
        count => possible[folded as usize % count],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RoCEv2 annex A17.
    #[test]
    fn source_ports_spread_and_are_equal_at_both_ends() {
        let (a, b) = (Qpn::masked(0x12_3456), Qpn::masked(0x00_0abc));
        assert_eq!(flow_label(a, b), flow_label(b, a));
        let mut ports: Vec<u16> =
            (0x40..0x140).map(|n| source_port(flow_label(Qpn::masked(n), b), &[])).collect();
        assert!(ports.iter().all(|&port| port >= 0xc000));
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() > 200, "{} ports for 256 QPs", ports.len());
    }
}
