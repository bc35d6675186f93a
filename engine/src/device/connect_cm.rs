//! Connecting a QP with the parameters that communication management agreed on.

use super::connect_options::ResolvedPath;
use super::{ConnectOptions, DeviceError, Endpoint, Path, QueuePair};
use crate::cm::QpParameters;
use crate::net::Gid;

impl QueuePair {
    /// Takes an RC or UC QP from RESET to RTS with `parameters`, which
    /// [`cm::Endpoint::qp_parameters`](crate::cm::Endpoint::qp_parameters) returns. The passive
    /// side calls this before it accepts, the active side before it establishes. The peer may write
    /// to, read from and execute atomics on memory as the rights of the memory regions allow.
    ///
    /// May wait for the next hop's Ethernet address.
    ///
    /// # Errors
    /// [`DeviceError::Foreign`] if the path starts at another device; otherwise as for
    /// [`QueuePair::connect`].
    pub fn connect_cm(&mut self, parameters: &QpParameters) -> Result<(), DeviceError> {
        let QpParameters { path: route, agreed, .. } = *parameters;
        let local = Gid::from(route.local);
        let gids = self.device().addressing.gids();
        let source = gids.into_iter().find(|(_, entry)| entry.gid == local);
        let (sgid_index, _) = source.ok_or(DeviceError::Foreign("the local address"))?;
        let peer = Endpoint::new(agreed.qpn, parameters.rq_psn, Gid::from(route.remote));
        let options = ConnectOptions {
            timeout: parameters.ack_timeout,
            retry_cnt: agreed.retry_count,
            rnr_retry: agreed.rnr_retry_count,
            ..ConnectOptions::default()
        };
        let mut path = Path::new(peer.gid, sgid_index);
        path.traffic_class = route.traffic_class;
        path.hop_limit = route.hop_limit;
        let flow = self.resolve(&path, peer.qpn)?;
        let resolved = ResolvedPath { flow, path_mtu: Some(route.mtu), agreed_super_frames: false };
        let [init, mut rtr, mut rts] =
            options.attributes(self.service(), parameters.sq_psn, &peer, &resolved);
        rtr.max_dest_rd_atomic = rtr.max_dest_rd_atomic.and(Some(agreed.responder_resources));
        rts.max_rd_atomic = rts.max_rd_atomic.and(Some(agreed.initiator_depth));
        self.modify(&init)?;
        self.modify(&rtr)?;
        self.modify(&rts)
    }
}
