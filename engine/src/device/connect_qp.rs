//! Connecting a QP to the endpoint of its peer.

use std::sync::PoisonError;

use feroce_wire::{PathMtu, Psn};

use super::addressing::Path;
use super::connect_options::ResolvedPath;
use super::follow::PathUser;
use super::host::HostId;
use super::{ConnectOptions, DeviceError, Endpoint, QueuePair};
use crate::qp::Service;

impl QueuePair {
    /// Returns the data that a peer needs to connect to this QP, if the QP starts at `psn`.
    ///
    /// # Errors
    /// [`DeviceError::GidIndex`].
    pub fn endpoint(&self, psn: Psn, sgid_index: u32) -> Result<Endpoint, DeviceError> {
        let entry = self.device().addressing.gid(sgid_index);
        let gid = entry.ok_or(DeviceError::GidIndex(sgid_index))?.gid;
        Ok(Endpoint {
            super_frames: self.super_frames(),
            selective_repeat: self.offers_selective_repeat(),
            ..Endpoint::new(self.qpn(), psn, gid)
        })
    }

    /// Takes a QP of a connected service from RESET to RTS, starting at `psn`, with `peer` at the
    /// other end. A UC QP ignores the options about acknowledgements. Waits for the Ethernet
    /// address of the next hop if it is unknown, at most 3 s.
    ///
    /// # Errors
    /// [`DeviceError`]; the QP stays in the state that it had reached.
    pub fn connect(
        &mut self,
        psn: Psn,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        let mut path = Path::new(peer.gid, options.sgid_index);
        path.traffic_class = options.traffic_class;
        path.hop_limit = options.hop_limit;
        path.source_port = options.source_port;
        path.service_level = options.service_level;
        let agreed_super_frames =
            peer.super_frames.is_some() && peer.super_frames == self.super_frames();
        path.super_frames = agreed_super_frames;
        let flow = self.resolve(&path, peer.qpn)?;
        let path_mtu = options.path_mtu.or_else(|| self.largest_mtu());
        let path = ResolvedPath { flow, path_mtu, agreed_super_frames };
        let [init, mut rtr, rts] = options.attributes(self.service(), psn, peer, &path);
        let selective_repeat = peer.selective_repeat && self.offers_selective_repeat();
        rtr.selective_repeat = selective_repeat.then_some(true);
        self.modify(&init)?;
        self.modify(&rtr)?;
        self.modify(&rts)
    }

    /// Returns true if the QP can hold packets behind a lost one, so that its peer need not repeat
    /// them: an RC QP of a device with
    /// [`DeviceConfig::selective_repeat`](super::DeviceConfig). Both ends must agree, by their
    /// [`Endpoint`]s or by
    /// [`QpAttributes::selective_repeat`](crate::qp::attributes::QpAttributes).
    pub fn offers_selective_repeat(&self) -> bool {
        self.service() == Service::Rc && self.device().ahead.is_some()
    }

    /// Returns true if every peer gets super-frames.
    pub(super) fn has_super_frames_to_all(&self) -> bool {
        self.device().config.super_frames_to_all && self.super_frames().is_some()
    }

    /// Returns the host within which the port carries super-frames, if it does.
    fn super_frames(&self) -> Option<HostId> {
        let attributes = &self.device().attributes;
        attributes.read().unwrap_or_else(PoisonError::into_inner).super_frames
    }

    /// Returns the largest path MTU that the interface and the route to the peer carry.
    fn largest_mtu(&self) -> Option<PathMtu> {
        let device = self.device();
        let mtu = device.attributes.read().unwrap_or_else(PoisonError::into_inner).mtu;
        let paths = device.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let route = paths.get(&PathUser::Qp(self.qpn())).map_or(mtu, |path| path.headers.mtu);
        PathMtu::largest_for(mtu.min(route)).or(Some(PathMtu::Mtu256))
    }
}
