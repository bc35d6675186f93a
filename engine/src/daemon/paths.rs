//! Resolves the paths that clients request.

use std::sync::PoisonError;

use super::client::ClientId;
use super::shared::{NextHop, Shared};
use crate::net::{Gid, GidEntry, PathHeaders, ROUTED_MAC, ResolveError};
use crate::port::daemon::protocol::{Answer, Local, PathRefusal, Refusal};
use crate::time::Duration;

/// A request of a client for a path.
#[derive(Debug, Clone)]
pub(super) struct PathRequest {
    pub(super) client: ClientId,
    pub(super) destination: Gid,
    pub(super) source: Local,
    pub(super) timeout: Duration,
}

impl PathRequest {
    pub(super) fn resolve(&self, shared: &Shared) -> Result<Answer, Refusal> {
        let source = GidEntry::from(&self.source);
        let known = shared.gids();
        let Some(source) =
            known.into_iter().find(|own| (own.gid, own.vlan) == (source.gid, source.vlan))
        else {
            return Err(Refusal::Path(PathRefusal::SourceGone));
        };
        let found = shared.addressing.resolve(self.destination, &source, self.timeout);
        let refused = |error: ResolveError| Refusal::Path(PathRefusal::from(&error));
        let mut headers = found.map_err(refused)?;
        if shared.is_own(headers.dst_ip) {
            // Not the host's Ethernet address: the client's core would take the packets for
            // loopback, and another client may have the destination QP.
            headers.dst_mac = ROUTED_MAC;
        } else {
            self.permit(shared, &headers);
        }
        Ok(Answer::Path(headers.into()))
    }

    /// Allows the client to send along the path, and follows its next hop.
    fn permit(&self, shared: &Shared, headers: &PathHeaders) {
        if let Some(ip) = headers.next_hop {
            let hop = NextHop { vlan: headers.vlan, mac: headers.dst_mac };
            let mut hops = shared.hops.lock().unwrap_or_else(PoisonError::into_inner);
            hops.insert((headers.interface, ip), hop);
        }
        shared.with(|switch| {
            if let Some(client) = switch.tables.get_mut(self.client) {
                client.permits.next_hops.insert(headers.dst_mac);
            }
        });
    }
}
