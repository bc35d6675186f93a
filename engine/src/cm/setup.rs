//! Before a connection: options, local address and port, address and route resolution.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Endpoint;
use super::ports::{Owner, is_any};
use super::state::Phase;
use super::types::{CmError, CmId, Ece, EventKind, Path, QpKind, Status, Unresolved};

impl Endpoint {
    /// Allows or forbids sharing the port with others that also allow it.
    ///
    /// # Errors
    /// [`CmError::State`] while listening, or when sharing is forbidden after binding.
    pub fn set_reuse_address(&mut self, id: CmId, reuse: bool) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        let may = if reuse { conn.phase != Phase::Listen } else { conn.phase == Phase::Idle };
        if !may {
            return Err(CmError::State);
        }
        conn.reuse_address = reuse;
        self.update_port_options(id);
        Ok(())
    }

    /// Chooses whether an unspecified IPv6 address excludes IPv4 (`RDMA_OPTION_ID_AFONLY`). Two
    /// addresses of different families share a port only if neither includes the other family; an
    /// IPv4 address does not by default, as in the kernel (`rdma_bind_addr_dst`).
    ///
    /// # Errors
    /// [`CmError::State`] beyond binding.
    pub fn set_v6_only(&mut self, id: CmId, v6_only: bool) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if !matches!(conn.phase, Phase::Idle | Phase::Bound) {
            return Err(CmError::State);
        }
        conn.v6_only = Some(v6_only);
        self.update_port_options(id);
        Ok(())
    }

    /// Applies the options to the port that the identifier already has.
    fn update_port_options(&mut self, id: CmId) {
        if let Some(conn) = self.ids.get(&id)
            && let Some(source) = conn.source
        {
            let chosen = (conn.reuse_address, conn.excludes_other_family(source.ip()));
            self.ports.set_options(conn.space, source.port(), id, chosen);
        }
    }

    /// Sets the traffic class of the identifier's packets.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn set_traffic_class(&mut self, id: CmId, traffic_class: u8) -> Result<(), CmError> {
        self.conn_mut(id)?.traffic_class = traffic_class;
        Ok(())
    }

    /// Sets the ACK timeout code of the identifier's QP; 0 for the default.
    ///
    /// # Errors
    /// [`CmError::State`] if the code exceeds 5 bits, or if the QP kind has no ACK timeout.
    pub fn set_ack_timeout(&mut self, id: CmId, code: u8) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if code > 31 || !matches!(conn.kind, QpKind::Rc | QpKind::XrcIni) {
            return Err(CmError::State);
        }
        conn.ack_timeout_set = Some(code).filter(|code| *code > 0);
        Ok(())
    }

    /// Sets the options of enhanced connection establishment that messages carry.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn set_local_ece(&mut self, id: CmId, ece: Ece) -> Result<(), CmError> {
        self.conn_mut(id)?.local_ece = ece;
        Ok(())
    }

    /// Returns the peer's options of enhanced connection establishment.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn remote_ece(&self, id: CmId) -> Result<Ece, CmError> {
        Ok(self.conn(id)?.peer.ece)
    }

    /// Binds to an address and a port; port 0 chooses a free one. The caller checks that the
    /// address is local.
    ///
    /// # Errors
    /// [`CmError::State`] if it is already bound, or that the port is not available.
    pub fn bind(&mut self, id: CmId, address: SocketAddr) -> Result<(), CmError> {
        self.bind_port(id, address, true)
    }

    /// Binds `id` to `address`, to any port if its port is 0. `claims`: other programs of the host
    /// must not listen there.
    fn bind_port(&mut self, id: CmId, address: SocketAddr, claims: bool) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.phase != Phase::Idle {
            return Err(CmError::State);
        }
        let (space, ip) = (conn.space, address.ip());
        let (reuse, v6_only) = (conn.reuse_address, conn.excludes_other_family(ip));
        let owner = Owner { id, ip, reuse, v6_only };
        let port = if address.port() == 0 {
            let random = (self.random)();
            self.ports.bind_any(space, self.config.ephemeral, random, owner)?
        } else {
            self.ports.bind(space, address.port(), owner)?;
            address.port()
        };
        if claims && let Err(error) = self.ports.claim(space, port, owner) {
            self.ports.release(space, port, id);
            return Err(error);
        }
        let conn = self.conn_mut(id)?;
        conn.source = Some(SocketAddr::new(ip, port));
        conn.phase = Phase::Bound;
        Ok(())
    }

    /// Starts address resolution for `destination`. An unbound identifier is bound to `source`, or
    /// to any address. Followed by [`Endpoint::address_resolved`].
    ///
    /// # Errors
    /// As for [`Endpoint::bind`]; [`CmError::Family`].
    pub fn resolve_address(
        &mut self,
        id: CmId,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), CmError> {
        let any: IpAddr = match destination {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let conn = self.conn(id)?;
        let from = match (conn.phase, source) {
            (Phase::Idle, source) => source.unwrap_or(SocketAddr::new(any, 0)),
            (Phase::Bound, _) => conn.source.ok_or(CmError::State)?,
            _ => return Err(CmError::State),
        };
        if from.is_ipv4() != destination.is_ipv4() {
            return Err(CmError::Family);
        }
        if conn.phase == Phase::Idle {
            // No program listens at a port that this side did not choose.
            self.bind_port(id, from, from.port() != 0)?;
        }
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::AddrQuery;
        conn.destination = Some(destination);
        Ok(())
    }

    /// Reports the result of address resolution.
    ///
    /// # Errors
    /// [`CmError::State`] unless address resolution is running.
    pub fn address_resolved(
        &mut self,
        id: CmId,
        found: Result<Path, Unresolved>,
    ) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if conn.phase != Phase::AddrQuery {
            return Err(CmError::State);
        }
        let (kind, status) = match found {
            Ok(path) => {
                conn.phase = Phase::AddrResolved;
                let port = conn.source.map_or(0, |source| source.port());
                let is_bound = conn.source.is_some_and(|source| !is_any(source.ip()));
                let ip = match conn.destination {
                    // As `cma_bind_loopback` of the kernel: the device is chosen, the address stays
                    // that of the loopback.
                    Some(SocketAddr::V4(v4)) if v4.ip().is_loopback() && !is_bound => {
                        Ipv4Addr::LOCALHOST.into()
                    }
                    Some(SocketAddr::V6(v6)) if v6.ip().is_loopback() && !is_bound => {
                        Ipv6Addr::LOCALHOST.into()
                    }
                    _ => path.local,
                };
                conn.source = Some(SocketAddr::new(ip, port));
                let class = conn.traffic_class | path.traffic_class;
                conn.path = Some(Path { traffic_class: class, ..path });
                (EventKind::AddrResolved, Status::Success)
            }
            Err(why) => {
                conn.phase = Phase::Bound;
                (EventKind::AddrError, Status::Unresolved(why))
            }
        };
        self.push_event(id, kind, status, Vec::new());
        Ok(())
    }

    /// Starts route resolution. Followed by [`Endpoint::route_resolved`].
    ///
    /// # Errors
    /// [`CmError::State`] unless the address is resolved.
    pub fn resolve_route(&mut self, id: CmId) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if conn.phase != Phase::AddrResolved {
            return Err(CmError::State);
        }
        conn.phase = Phase::RouteQuery;
        Ok(())
    }

    /// Reports the result of route resolution.
    ///
    /// # Errors
    /// [`CmError::State`] unless route resolution is running.
    pub fn route_resolved(
        &mut self,
        id: CmId,
        found: Result<(), Unresolved>,
    ) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if conn.phase != Phase::RouteQuery {
            return Err(CmError::State);
        }
        let (phase, kind, status) = match found {
            Ok(()) => (Phase::RouteResolved, EventKind::RouteResolved, Status::Success),
            Err(why) => (Phase::AddrResolved, EventKind::RouteError, Status::Unresolved(why)),
        };
        conn.phase = phase;
        self.push_event(id, kind, status, Vec::new());
        Ok(())
    }
}
