//! Before a conversation: what is chosen, the address and the port, and the way to the peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Endpoint;
use super::ports::Owner;
use super::state::Phase;
use super::types::{CmError, CmId, Ece, EventKind, Path, QpKind, Status, Unresolved};

impl Endpoint {
    /// Lets it share its port with others that say so, too.
    ///
    /// # Errors
    /// [`CmError::State`] if it listens, or if it is bound and shall share no more.
    pub fn set_reuse_address(&mut self, id: CmId, reuse: bool) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        let may = if reuse { conn.phase != Phase::Listen } else { conn.phase == Phase::Idle };
        if !may {
            return Err(CmError::State);
        }
        conn.reuse_address = reuse;
        self.tell_ports(id);
        Ok(())
    }

    /// Lets an unspecified IPv6 address be none of IPv4.
    ///
    /// # Errors
    /// [`CmError::State`] once it does more than to have an address.
    pub fn set_v6_only(&mut self, id: CmId, v6_only: bool) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if !matches!(conn.phase, Phase::Idle | Phase::Bound) {
            return Err(CmError::State);
        }
        conn.v6_only = v6_only;
        self.tell_ports(id);
        Ok(())
    }

    /// What was chosen counts for the port that it has.
    fn tell_ports(&mut self, id: CmId) {
        if let Some(conn) = self.ids.get(&id)
            && let Some(source) = conn.source
        {
            let chosen = (conn.reuse_address, conn.v6_only);
            self.ports.choose(conn.space, source.port(), id, chosen);
        }
    }

    /// The traffic class of what it will send.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn set_traffic_class(&mut self, id: CmId, traffic_class: u8) -> Result<(), CmError> {
        self.conn_mut(id)?.traffic_class = traffic_class;
        Ok(())
    }

    /// The acknowledgement timeout of its QP, as a code; 0 for the usual one.
    ///
    /// # Errors
    /// [`CmError::State`] if it needs more than 5 bits, or its QP asks for no acknowledgements.
    pub fn set_ack_timeout(&mut self, id: CmId, code: u8) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if code > 31 || !matches!(conn.kind, QpKind::Rc | QpKind::XrcIni) {
            return Err(CmError::State);
        }
        conn.ack_timeout_set = Some(code).filter(|code| *code > 0);
        Ok(())
    }

    /// The options of enhanced connection establishment that it will say.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn set_local_ece(&mut self, id: CmId, ece: Ece) -> Result<(), CmError> {
        self.conn_mut(id)?.local_ece = ece;
        Ok(())
    }

    /// Those that the peer has said.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn remote_ece(&self, id: CmId) -> Result<Ece, CmError> {
        Ok(self.conn(id)?.peer.ece)
    }

    /// Gives it an address and a port; port 0 is any. Whether the address is the host's is for the caller to know.
    ///
    /// # Errors
    /// [`CmError::State`] if it has one, or that it is not to be had.
    pub fn bind(&mut self, id: CmId, address: SocketAddr) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.phase != Phase::Idle {
            return Err(CmError::State);
        }
        let (space, ip) = (conn.space, address.ip());
        let owner = Owner { id, ip, reuse: conn.reuse_address, v6_only: conn.v6_only };
        let port = if address.port() == 0 {
            let random = (self.random)();
            self.ports.bind_any(space, self.config.ephemeral, random, owner)?
        } else {
            self.ports.bind(space, address.port(), owner)?;
            address.port()
        };
        let conn = self.conn_mut(id)?;
        conn.source = Some(SocketAddr::new(ip, port));
        conn.phase = Phase::Bound;
        Ok(())
    }

    /// Begins to look for the way to `destination`; binds it to `source`, or to any address, if it is not bound. Followed by
    /// [`Endpoint::address_resolved`].
    ///
    /// # Errors
    /// As of [`Endpoint::bind`]; [`CmError::Family`].
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
            self.bind(id, from)?;
        }
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::AddrQuery;
        conn.destination = Some(destination);
        Ok(())
    }

    /// The way was found, or not.
    ///
    /// # Errors
    /// [`CmError::State`] if nobody asked.
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
                conn.source = Some(SocketAddr::new(path.local, port));
                let class = conn.traffic_class | path.traffic_class;
                conn.path = Some(Path { traffic_class: class, ..path });
                (EventKind::AddrResolved, Status::Success)
            }
            Err(why) => {
                conn.phase = Phase::Bound;
                (EventKind::AddrError, Status::Unresolved(why))
            }
        };
        self.tell(id, kind, status, Vec::new());
        Ok(())
    }

    /// Begins to look for the path. Followed by [`Endpoint::route_resolved`].
    ///
    /// # Errors
    /// [`CmError::State`] if no address is resolved.
    pub fn resolve_route(&mut self, id: CmId) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if conn.phase != Phase::AddrResolved {
            return Err(CmError::State);
        }
        conn.phase = Phase::RouteQuery;
        Ok(())
    }

    /// The path was found, or not.
    ///
    /// # Errors
    /// [`CmError::State`] if nobody asked.
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
        self.tell(id, kind, status, Vec::new());
        Ok(())
    }
}
