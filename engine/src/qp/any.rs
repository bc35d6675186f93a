//! A queue pair of any service, as a core holds it.

use std::net::IpAddr;

use feroce_wire::{FlowHeader, PacketView, Pkey, Qpn};

use super::attributes::{ModifyError, QpAttributes};
use super::connected::Qp;
use super::env::{Env, Transmit};
use super::snapshot::QpSnapshot;
use super::state::QpState;
use super::ud::UdQp;
use crate::time::{Duration, Instant};
use crate::verbs::AttachedCounters;

/// A queue pair of any service. The methods are those of [`Qp`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A core keeps each QP in a box.
pub enum AnyQp {
    /// A QP of a connected service.
    Connected(Qp),
    /// A QP of the datagram service.
    Datagram(UdQp),
}

impl AnyQp {
    /// State of the QP.
    #[inline]
    pub fn state(&self) -> QpState {
        match self {
            Self::Connected(qp) => qp.state(),
            Self::Datagram(qp) => qp.state(),
        }
    }

    /// Number of the QP.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        match self {
            Self::Connected(qp) => qp.qpn(),
            Self::Datagram(qp) => qp.qpn(),
        }
    }

    /// Returns true if all packets of the QP have the same headers in front of the BTH.
    #[inline]
    pub fn is_connected(&self) -> bool {
        matches!(self, Self::Connected(_))
    }

    /// Headers of the packet that [`AnyQp::poll_transmit`] writes next; `None` if there is no
    /// packet.
    #[inline]
    pub fn next_flow(&mut self) -> Option<&FlowHeader> {
        match self {
            Self::Connected(qp) => qp.flow(),
            Self::Datagram(qp) => qp.next_flow(),
        }
    }

    /// Headers of the last packet written.
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        match self {
            Self::Connected(qp) => qp.flow(),
            Self::Datagram(qp) => qp.flow(),
        }
    }

    /// See [`Qp::set_stopping`].
    pub fn set_stopping(&mut self, is_stopping: bool) {
        match self {
            Self::Connected(qp) => qp.set_stopping(is_stopping),
            Self::Datagram(qp) => qp.set_stopping(is_stopping),
        }
    }

    /// Replaces the headers of the packets to the peer of a connected QP.
    pub fn set_flow(&mut self, flow: FlowHeader) {
        if let Self::Connected(qp) = self {
            qp.set_flow(flow);
        }
    }

    /// The completion counters.
    pub fn counters_mut(&mut self) -> &mut AttachedCounters {
        match self {
            Self::Connected(qp) => qp.counters_mut(),
            Self::Datagram(qp) => qp.counters_mut(),
        }
    }

    /// The current attributes.
    pub fn attributes(&self) -> QpAttributes {
        match self {
            Self::Connected(qp) => qp.attributes(),
            Self::Datagram(qp) => qp.attributes(),
        }
    }

    /// Changes state and attributes.
    ///
    /// # Errors
    /// The rule that is violated; nothing is changed.
    pub fn modify(&mut self, new: &QpAttributes, env: &mut Env<'_>) -> Result<(), ModifyError> {
        match self {
            Self::Connected(qp) => qp.modify(new, env),
            Self::Datagram(qp) => qp.modify(new, env),
        }
    }

    /// Removes the completions of this QP that the program has not polled.
    pub fn remove_completions(&self) {
        match self {
            Self::Connected(qp) => qp.remove_completions(),
            Self::Datagram(qp) => qp.remove_completions(),
        }
    }

    /// Handles a packet to this QP. The caller has verified its ICRC.
    #[inline]
    pub fn handle_packet(&mut self, packet: &PacketView<'_>, env: &mut Env<'_>) {
        match self {
            Self::Connected(qp) => qp.handle_packet(packet, env),
            Self::Datagram(qp) => qp.handle_packet(packet, env),
        }
    }

    /// See [`Qp::handle_timeout`].
    pub fn handle_timeout(&mut self, frames_wait: bool, env: &mut Env<'_>) {
        if let Self::Connected(qp) = self {
            qp.handle_timeout(frames_wait, env);
        }
    }

    /// Handles newly posted work requests.
    #[inline]
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Connected(qp) => qp.handle_doorbell(env),
            Self::Datagram(qp) => qp.handle_doorbell(env),
        }
    }

    /// The earliest time at which a timer expires.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Connected(qp) => qp.poll_timeout(),
            Self::Datagram(_) => None,
        }
    }

    /// See [`Qp::start_timeout_on_stuck_port`].
    pub fn start_timeout_on_stuck_port(&mut self, now: Instant) {
        if let Self::Connected(qp) = self {
            qp.start_timeout_on_stuck_port(now);
        }
    }

    /// Writes the next packet, from the BTH on, to the front of `out`.
    #[inline]
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        match self {
            Self::Connected(qp) => qp.poll_transmit(env, out),
            Self::Datagram(qp) => qp.poll_transmit(env, out),
        }
    }

    /// See [`Qp::outstanding`].
    #[inline]
    pub fn outstanding(&self) -> u32 {
        match self {
            Self::Connected(qp) => qp.outstanding(),
            Self::Datagram(_) => 0,
        }
    }

    /// See [`Qp::responses_outstanding`].
    #[inline]
    pub fn responses_outstanding(&self) -> u32 {
        match self {
            Self::Connected(qp) => qp.responses_outstanding(),
            Self::Datagram(_) => 0,
        }
    }

    /// See [`Qp::can_request_responses`].
    pub fn can_request_responses(&self) -> bool {
        match self {
            Self::Connected(qp) => qp.can_request_responses(),
            Self::Datagram(_) => false,
        }
    }

    /// See [`Qp::is_held_by`].
    #[inline]
    pub fn is_held_by(&self, window: u32) -> bool {
        match self {
            Self::Connected(qp) => qp.is_held_by(window),
            Self::Datagram(_) => false,
        }
    }

    /// See [`Qp::window_peer`].
    pub fn window_peer(&self) -> Option<IpAddr> {
        match self {
            Self::Connected(qp) => qp.window_peer(),
            Self::Datagram(_) => None,
        }
    }

    /// See [`Qp::moves_to_front_after`].
    #[inline]
    pub fn moves_to_front_after(&self, packet: &PacketView<'_>, env: &Env<'_>) -> bool {
        if !env.to_sleeper {
            return false; // The most frequent case needs no look at the QP.
        }
        match self {
            Self::Connected(qp) => qp.moves_to_front_after(packet, env),
            Self::Datagram(_) => false,
        }
    }

    /// See [`Qp::execute_local_requests`].
    pub fn execute_local_requests(&mut self, env: &mut Env<'_>) {
        if let Self::Connected(qp) = self {
            qp.execute_local_requests(env);
        }
    }

    /// Length in bytes of the longest frame that the QP sends. `port_max`: the longest frame of the
    /// port.
    pub fn largest_frame(&self, port_max: usize) -> u64 {
        match self {
            Self::Connected(qp) => qp.largest_frame(),
            Self::Datagram(_) => port_max as u64,
        }
    }

    /// Headers, QP number and partition key of packets to the peer of a connected QP.
    pub fn peer(&self) -> Option<(&FlowHeader, Qpn, Pkey)> {
        match self {
            Self::Connected(qp) => qp.peer(),
            Self::Datagram(_) => None,
        }
    }

    /// Returns true if the QP receives packets with the IP addresses of `packet`.
    pub fn accepts_addresses_of(&self, packet: &PacketView<'_>) -> bool {
        match self {
            Self::Connected(qp) => qp.has_peer_addresses(packet),
            Self::Datagram(_) => true,
        }
    }

    /// Returns true if the QP receives packets in its state, and accepts those of the sender of
    /// `packet`.
    pub fn accepts_sender_of(&self, packet: &PacketView<'_>) -> bool {
        match self {
            Self::Connected(qp) => qp.accepts_sender_of(packet),
            Self::Datagram(qp) => qp.accepts_sender_of(packet),
        }
    }

    /// The local ACK timeout; `None`: there is none.
    pub fn ack_timeout(&self) -> Option<Duration> {
        match self {
            Self::Connected(qp) => qp.ack_timeout(),
            Self::Datagram(_) => None,
        }
    }

    /// Returns true if memory windows may be bound on this QP.
    pub fn has_bound_windows(&self) -> bool {
        match self {
            Self::Connected(qp) => qp.has_bound_windows(),
            Self::Datagram(_) => false,
        }
    }

    /// A snapshot of the QP.
    pub fn snapshot(&self) -> QpSnapshot {
        match self {
            Self::Connected(qp) => qp.snapshot(),
            Self::Datagram(qp) => qp.snapshot(),
        }
    }
}
