//! Datagrams from the program's side: UD QPs, QP 1, and posting to a given destination.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_wire::{Pkey, Psn, Qkey, Qpn};

use super::address_handle::AddressHandle;
use super::queue_pair::{QpInit, QueuePair, SendQueue};
use super::{DeviceError, PostError, ProtectionDomain};
use crate::qp::attributes::QpAttributes;
use crate::qp::{QpState, Service};
use crate::verbs::{DatagramWqe, SendRequest, Status};

/// The destination of a datagram.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// Path.
    pub ah: &'a AddressHandle,
    /// Destination QP; [`Qpn::MULTICAST`] for a group.
    pub remote_qpn: Qpn,
    /// Q_Key of the datagram. A value with the top bit set means the Q_Key of the sending QP.
    pub qkey: Qkey,
}

impl ProtectionDomain {
    /// Makes QP 1, the general services QP, which communication management uses: a UD QP in RTS
    /// whose Q_Key is [`Qkey::GSI`]. A device has at most one; without it, packets to QP 1 are
    /// counted and dropped. `init` supplies everything except the service and the number.
    ///
    /// # Errors
    /// [`DeviceError::Qpn`] while another QP 1 exists; else as for [`ProtectionDomain::create_qp`].
    pub fn create_gsi_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, DeviceError> {
        let device = &self.device;
        if device.gsi_taken.swap(true, Ordering::AcqRel) {
            return Err(DeviceError::Qpn(Qpn::GSI.value()));
        }
        let init = QpInit { service: Service::Ud, qpn: Some(Qpn::GSI), ..*init };
        match self.make_qp(&init, Qpn::GSI) {
            // From here on, dropping the QP frees the number.
            Ok(mut qp) => qp.activate(Qkey::GSI, Psn::new(0)).map(|()| qp),
            Err(error) => {
                device.gsi_taken.store(false, Ordering::Release);
                Err(error)
            }
        }
    }
}

impl QueuePair {
    /// Takes a UD QP from RESET to RTS: it receives datagrams with the Q_Key `qkey`, and sends from
    /// `psn` on.
    ///
    /// # Errors
    /// [`DeviceError::Modify`]; the QP stays in the state that it has reached.
    pub fn activate(&mut self, qkey: Qkey, psn: Psn) -> Result<(), DeviceError> {
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        self.modify(&QpAttributes {
            pkey: Some(Pkey::DEFAULT),
            port: Some(1),
            qkey: Some(qkey),
            ..to(QpState::Init)
        })?;
        self.modify(&to(QpState::Rtr))?;
        self.modify(&QpAttributes { sq_psn: Some(psn), ..to(QpState::Rts) })
    }

    /// Posts a datagram of a UD QP: a SEND with or without immediate data. It is sent in the next
    /// turn of the QP's core, and completes when the port has taken it. A datagram that is longer
    /// than one packet of the path completes with [`Status::LocalLength`]; one with another
    /// operation, or with an address handle of another protection domain (C10-10), with
    /// [`Status::LocalQpOperation`].
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub fn post_send_to(
        &mut self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), PostError> {
        self.batch().post_send_to(request, to)
    }

    /// As [`QueuePair::post_send_to`], for a caller that runs the next turn of the QP's core
    /// ([`QueuePair::turn_core`]): does not wake the helper.
    pub(super) fn post_send_to_quietly(
        &mut self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), PostError> {
        if !self.push_to(request, to)? {
            return Err(PostError::Full);
        }
        self.device().cores[self.core].doorbell.enter(self.slot, &self.posted);
        Ok(())
    }

    /// Runs a turn of the QP's core, which sends what was posted. Does nothing with
    /// [`Driver::Manual`](super::Driver::Manual).
    pub(super) fn turn_core(&self) {
        self.device().turn_core(self.core);
    }

    /// Puts a datagram into the send queue. Returns false if the queue is full.
    #[inline]
    pub(super) fn push_to(
        &mut self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<bool, PostError> {
        self.check_send_to(request, to)?;
        let (limits, fits) = (self.send_limits(), self.pd.is_same(&to.ah.pd));
        let SendQueue::Datagram(sq) = &mut self.sq else { return Err(PostError::Destination) };
        limits.push(sq, request, |send| {
            let (remote_qpn, qkey) = (to.remote_qpn, to.qkey);
            let error = match send.length > u64::from(to.ah.max_datagram()) {
                _ if !fits => Some(Status::LocalQpOperation),
                true => Some(Status::LocalLength),
                false => None,
            };
            Ok(DatagramWqe { send, flow: to.ah.flow(), remote_qpn, qkey, error })
        })
    }

    /// Returns the error that posting this datagram would return, except for a full queue.
    ///
    /// # Errors
    /// [`PostError`]
    #[inline]
    pub fn check_send_to(
        &self,
        request: &SendRequest<'_>,
        to: &Destination<'_>,
    ) -> Result<(), PostError> {
        self.check_post()?;
        if self.service() != Service::Ud || !Arc::ptr_eq(&self.pd.device, &to.ah.pd.device) {
            return Err(PostError::Destination);
        }
        self.send_limits().check(request).map(drop)
    }
}
