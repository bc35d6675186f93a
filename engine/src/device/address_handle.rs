//! The handle to an address: the destination of datagrams.

use std::sync::Arc;

use feroce_wire::{FlowHeader, MacAddr, PathMtu, Qpn};

use super::addressing::{PATH_TIMEOUT, Path, flow_header};
use super::follow::{self, EthernetAddresses};
use super::quota::Place;
use super::{DeviceError, ProtectionDomain};
use crate::net::PathHeaders;
use crate::time::Duration;

/// The path to a host or to a multicast group, for datagrams: `ibv_ah`. The engine follows changes:
/// when the Ethernet address of the next hop or of the interface changes, datagrams posted later
/// use the new one. Handles to one peer share the path, which stays known for 30 seconds or until
/// the host's addresses, routes or links change: making a handle for a known path makes no system
/// call.
///
/// Posted requests hold a copy of the headers, so a handle may be dropped at once.
#[derive(Debug)]
pub struct AddressHandle {
    path: Path,
    /// Headers at creation; the current Ethernet addresses are in `ethernet`.
    flow: FlowHeader,
    /// Maximum payload in bytes.
    mtu: u32,
    ethernet: Arc<EthernetAddresses>,
    pub(super) pd: ProtectionDomain,
    _place: Place,
}

impl ProtectionDomain {
    /// Makes a handle for `path`, as `ibv_create_ah`. Waits for the next hop's Ethernet address if
    /// the kernel does not know it. The QPs that use the handle must be in this protection domain.
    ///
    /// # Errors
    /// [`DeviceError::GidIndex`], [`DeviceError::Path`], [`DeviceError::Exhausted`].
    pub fn create_ah(&self, path: &Path) -> Result<AddressHandle, DeviceError> {
        self.create_ah_within(path, PATH_TIMEOUT)
    }

    /// As [`Self::create_ah`], with a given timeout.
    pub(super) fn create_ah_within(
        &self,
        path: &Path,
        timeout: Duration,
    ) -> Result<AddressHandle, DeviceError> {
        let device = &self.device;
        // Consecutive datagrams may have different destinations, so they never share a super-frame.
        let path = Path { super_frames: false, ..*path };
        let _place = device.ah_quota.take()?;
        let (headers, ethernet) = follow::begin_handle(device, &path, timeout)?;
        let (local, remote) = endpoints(&path, &headers);
        // Not ECN-capable to a group: no receiver reports marks, and the sender would not slow
        // down.
        let ecn = device.config.marks_data() && path.dgid.multicast_group().is_none();
        let flow = flow_header(&path, &headers, local, remote, ecn, &device.source_ports)?;
        let mtu = PathMtu::largest_for(headers.mtu).map_or(0, PathMtu::bytes);
        Ok(AddressHandle { path, flow, mtu, ethernet, pd: self.clone(), _place })
    }
}

/// Returns stand-ins for QP numbers, from which the flow label is computed: a handle serves many
/// QPs. All datagrams between two addresses take one path and stay in order.
fn endpoints(path: &Path, headers: &PathHeaders) -> (Qpn, Qpn) {
    let last = |octets: [u8; 16]| {
        Qpn::masked(u32::from_be_bytes([octets[12], octets[13], octets[14], octets[15]]) | 1)
    };
    let own: crate::net::Gid = headers.src_ip.into();
    (last(own.0), last(path.dgid.0))
}

impl AddressHandle {
    /// Returns the path that the handle was made for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the maximum payload of a datagram on this path, in bytes.
    pub fn max_datagram(&self) -> u32 {
        self.mtu
    }

    /// Returns the current destination Ethernet address and VLAN.
    pub fn ethernet(&self) -> (MacAddr, Option<u16>) {
        let flow = self.flow();
        (flow.spec().dst_mac, flow.spec().vlan.map(|tag| tag.id))
    }

    /// Returns the headers for a datagram posted now.
    #[inline]
    pub(super) fn flow(&self) -> FlowHeader {
        let (dst, src) = self.ethernet.get();
        self.flow.between(dst, src)
    }
}
