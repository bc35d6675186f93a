//! Claims: which client receives the requests for which service.

use std::collections::BTreeMap;
use std::net::IpAddr;

#[cfg(test)]
use feroce_wire::cm::PortSpace;
use feroce_wire::cm::ServiceId;

use crate::cm::is_any;
use crate::daemon::ClientId;

/// A client's right to receive the requests for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The service ID. That of RDMA CM contains port space and port.
    pub service: ServiceId,
    /// The address that the client binds to. Unspecified and loopback addresses mean any address
    /// ([`is_any`]). `None` for a service ID without addresses: it applies to all addresses.
    pub address: Option<IpAddr>,
    /// True if the client shares the port with other clients that claim it with `reuse`. A client
    /// that listens claims the port without `reuse`, because listening ends sharing.
    pub reuse: bool,
    /// True if the address does not include those of the other family (the kernel's `afonly`).
    pub v6_only: bool,
}

impl Claim {
    /// Returns an error if both claims, of the same service, need the same address. The rules are
    /// those of `engine/src/cm/ports.rs`, which follow `cma_check_port` of the kernel
    /// (`drivers/infiniband/core/cma.c`).
    fn conflict(&self, other: &Self) -> Result<(), ClaimError> {
        let (Some(own), Some(theirs)) = (self.address, other.address) else {
            return Err(ClaimError::AddressInUse);
        };
        let are_separate = self.v6_only && other.v6_only && own.is_ipv4() != theirs.is_ipv4();
        if (self.reuse && other.reuse) || are_separate {
            return Ok(());
        }
        match is_any(own) || is_any(theirs) {
            true => Err(ClaimError::AddressNotAvailable),
            false if own == theirs => Err(ClaimError::AddressInUse),
            false => Ok(()),
        }
    }

    /// Returns how well the claim matches requests to `destination` (`None`: a service ID without
    /// addresses): `Some(true)` for its exact address, `Some(false)` as any address, `None` if not
    /// at all.
    fn matches(&self, destination: Option<IpAddr>) -> Option<bool> {
        let Some(own) = self.address else { return Some(false) };
        let destination = destination?;
        let has_family = own.is_ipv4() == destination.is_ipv4() || !(own.is_ipv4() || self.v6_only);
        match own == destination {
            true => Some(true),
            false => (is_any(own) && has_family).then_some(false),
        }
    }
}

#[cfg(test)]
impl Claim {
    /// Claims `port` of `space` at `address`, without sharing; an unspecified IPv6 address includes
    /// IPv4.
    pub fn port(space: PortSpace, port: u16, address: IpAddr) -> Self {
        let service = ServiceId::new(space, port);
        Self { service, address: Some(address), reuse: false, v6_only: false }
    }

    /// Claims a service ID that has no addresses.
    pub fn service(service: ServiceId) -> Self {
        Self { service, address: None, reuse: false, v6_only: false }
    }
}

/// Why a claim is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another client has the address or the service ID (`EADDRINUSE`).
    #[error("another program uses the address")]
    AddressInUse,
    /// Another client has the port at any address, or this client claims any address and another
    /// client has one (`EADDRNOTAVAIL`).
    #[error("the address is not available: another program uses the port")]
    AddressNotAvailable,
    /// The client has as many claims as it may have.
    #[error("a program may bind at most {0} ports")]
    TooMany(usize),
    /// The client is not attached.
    #[error("the program is not attached")]
    UnknownClient,
}

/// Why no client receives a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoClaim {
    /// No client claims the service.
    UnknownService,
    /// Clients claim the service, but at other addresses.
    NoMatch,
}

#[derive(Debug)]
struct Held {
    client: ClientId,
    claim: Claim,
    /// How often the client has made this claim. The client must release it as often.
    times: u32,
}

/// The claims of all clients.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: BTreeMap<ServiceId, Vec<Held>>,
    /// Distinct claims per client.
    counts: BTreeMap<ClientId, usize>,
}

impl Claims {
    /// Adds `claim` for `client`, which may have up to `limit` distinct claims; a repeated claim is
    /// only counted.
    pub fn add(&mut self, client: ClientId, claim: Claim, limit: usize) -> Result<(), ClaimError> {
        let count = self.count(client);
        if let Some(held) = self.held.get_mut(&claim.service) {
            let own = held.iter_mut().find(|held| (held.client, held.claim) == (client, claim));
            if let Some(own) = own {
                own.times = own.times.saturating_add(1);
                return Ok(());
            }
            let mut others = held.iter().filter(|held| held.client != client);
            others.try_for_each(|other| claim.conflict(&other.claim))?;
        }
        if count >= limit {
            return Err(ClaimError::TooMany(limit));
        }
        self.held.entry(claim.service).or_default().push(Held { client, claim, times: 1 });
        self.counts.insert(client, count + 1);
        Ok(())
    }

    /// Undoes one [`Self::add`] of `claim`. Undoing the last one ends the claim. Does nothing if
    /// `client` does not have the claim.
    pub fn release(&mut self, client: ClientId, claim: Claim) {
        let Some(held) = self.held.get_mut(&claim.service) else { return };
        let is_own = |held: &Held| (held.client, held.claim) == (client, claim);
        let Some(at) = held.iter().position(is_own) else { return };
        held[at].times -= 1;
        if held[at].times > 0 {
            return;
        }
        held.remove(at);
        if held.is_empty() {
            self.held.remove(&claim.service);
        }
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
        }
    }

    /// Ends all claims of `client`.
    pub fn remove_client(&mut self, client: ClientId) {
        self.counts.remove(&client);
        self.held.retain(|_, held| {
            held.retain(|held| held.client != client);
            !held.is_empty()
        });
    }

    /// Distinct claims of `client`.
    pub fn count(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Returns the client that receives requests for `service` at `destination`. A claim of the
    /// exact address takes precedence over one of any address. Among equals, the oldest client
    /// (lowest ID) receives them.
    pub fn find(
        &self,
        service: ServiceId,
        destination: Option<IpAddr>,
    ) -> Result<ClientId, NoClaim> {
        let held = self.held.get(&service).ok_or(NoClaim::UnknownService)?;
        let matching = held.iter().filter_map(|held| {
            let is_exact = held.claim.matches(destination)?;
            Some((!is_exact, held.client))
        });
        matching.min().map(|(_, client)| client).ok_or(NoClaim::NoMatch)
    }
}
