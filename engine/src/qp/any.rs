//! A queue pair of any service, as its core holds it.

use feroce_wire::{FlowHeader, Packet, Pkey, Qpn};

use super::attributes::{ModifyError, QpAttributes};
use super::ud::UdQp;
use super::{Env, Qp, QpSnapshot, QpState, Transmit};
use crate::time::{Duration, Instant};

/// A queue pair of any service, as a core holds it. The methods are those of [`Qp`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Cores keep each in a box of its own.
pub enum AnyQp {
    /// Of a connected service.
    Connected(Qp),
    /// Of the datagram service.
    Datagram(UdQp),
}

impl AnyQp {
    /// Its state.
    #[inline]
    pub fn state(&self) -> QpState {
        match self {
            Self::Connected(qp) => qp.state(),
            Self::Datagram(qp) => qp.state(),
        }
    }

    /// Its number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        match self {
            Self::Connected(qp) => qp.qpn(),
            Self::Datagram(qp) => qp.qpn(),
        }
    }

    /// Headers of the packet that [`AnyQp::poll_transmit`] would write now; `None` if it would write none.
    #[inline]
    pub fn next_flow(&mut self) -> Option<&FlowHeader> {
        match self {
            Self::Connected(qp) => qp.flow(),
            Self::Datagram(qp) => qp.next_flow(),
        }
    }

    /// Headers of the packet that was written last.
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        match self {
            Self::Connected(qp) => qp.flow(),
            Self::Datagram(qp) => qp.flow(),
        }
    }

    /// Changes the headers of the packets to the peer, if it has one.
    pub fn set_flow(&mut self, flow: FlowHeader) {
        if let Self::Connected(qp) = self {
            qp.set_flow(flow);
        }
    }

    /// Attributes as they stand now.
    pub fn attributes(&self) -> QpAttributes {
        match self {
            Self::Connected(qp) => qp.attributes(),
            Self::Datagram(qp) => qp.attributes(),
        }
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is broken; nothing was changed then.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        match self {
            Self::Connected(qp) => qp.modify(new, env),
            Self::Datagram(qp) => qp.modify(new, env),
        }
    }

    /// Takes a packet for this QP. The caller has verified its ICRC.
    #[inline]
    pub fn handle_packet(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) {
        match self {
            Self::Connected(qp) => qp.handle_packet(packet, env),
            Self::Datagram(qp) => qp.handle_packet(packet, env),
        }
    }

    /// Does what has become due at `env.now`.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        if let Self::Connected(qp) = self {
            qp.handle_timeout(env);
        }
    }

    /// Takes notice of work requests that were posted.
    #[inline]
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Connected(qp) => qp.handle_doorbell(env),
            Self::Datagram(qp) => qp.handle_doorbell(env),
        }
    }

    /// The earliest time at which [`AnyQp::handle_timeout`] has something to do.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Connected(qp) => qp.poll_timeout(),
            Self::Datagram(_) => None,
        }
    }

    /// The port is stuck: see [`Qp::wait_for_port`].
    pub fn wait_for_port(&mut self, now: Instant) {
        if let Self::Connected(qp) = self {
            qp.wait_for_port(now);
        }
    }

    /// Writes the next packet, BTH first, to the front of `out`.
    #[inline]
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        match self {
            Self::Connected(qp) => qp.poll_transmit(env, out),
            Self::Datagram(qp) => qp.poll_transmit(env, out),
        }
    }

    /// It has no requests to send: acknowledgements and other answers at most.
    pub fn owes_only_answers(&self) -> bool {
        match self {
            Self::Connected(qp) => qp.owes_only_answers(),
            Self::Datagram(_) => false,
        }
    }

    /// Does the requests that are next and send nothing.
    pub fn do_local(&mut self, env: &mut Env<'_>) {
        if let Self::Connected(qp) = self {
            qp.do_local(env);
        }
    }

    /// The longest frame that it sends in bytes, of at most `port_max`.
    pub fn largest_frame(&self, port_max: usize) -> u64 {
        match self {
            Self::Connected(qp) => qp.largest_frame(),
            Self::Datagram(_) => port_max as u64,
        }
    }

    /// Headers and numbers of packets to the peer of a connected QP.
    pub fn peer(&self) -> Option<(&FlowHeader, Qpn, Pkey)> {
        match self {
            Self::Connected(qp) => qp.peer(),
            Self::Datagram(_) => None,
        }
    }

    /// `packet` has addresses that it takes packets from.
    pub fn hears(&self, packet: &Packet<'_>) -> bool {
        match self {
            Self::Connected(qp) => qp.hears(packet),
            Self::Datagram(_) => true,
        }
    }

    /// It takes `packet`, as far as can be told by who sent it.
    pub fn takes(&self, packet: &Packet<'_>) -> bool {
        match self {
            Self::Connected(qp) => qp.takes(packet),
            Self::Datagram(qp) => qp.takes(packet),
        }
    }

    /// The local ACK timeout; `None` where there is none.
    pub fn ack_timeout(&self) -> Option<Duration> {
        match self {
            Self::Connected(qp) => qp.ack_timeout(),
            Self::Datagram(_) => None,
        }
    }

    /// Windows may be bound on it.
    pub fn binds_windows(&self) -> bool {
        match self {
            Self::Connected(qp) => qp.binds_windows(),
            Self::Datagram(_) => false,
        }
    }

    /// Where it stands now.
    pub fn snapshot(&self) -> QpSnapshot {
        match self {
            Self::Connected(qp) => qp.snapshot(),
            Self::Datagram(qp) => qp.snapshot(),
        }
    }
}
