//! The attributes of a QP, and the checks of their values.

use feroce_wire::{FlowHeader, PathMtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

use super::state::{QpAttrMask, QpState};
use super::transitions::TransitionError;
use crate::memory::Access;
use crate::time::Duration;

/// Largest number of READs and atomics that a QP may have outstanding, as requester or as
/// responder.
pub const MAX_RD_ATOMIC: u8 = 64;
/// Default number of READs and atomics outstanding, which `max_qp_rd_atom` also reports: as many as
/// a ConnectX supports. An application may take the limit of its own device for the peer's limit.
pub const RD_ATOMIC: u8 = 16;

/// Attributes of a QP, with the meaning of `ibv_qp_attr`. `None`: not given.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpAttributes {
    /// The new state.
    pub state: Option<QpState>,
    /// The state that the application expects the QP to be in.
    pub current_state: Option<QpState>,
    /// True: raise an event when the send queue is drained.
    pub en_sqd_async_notify: Option<bool>,
    /// Rights that the peer has through the QP.
    pub access: Option<Access>,
    /// The partition key, in place of `pkey_index`: RoCE has one partition table entry.
    pub pkey: Option<Pkey>,
    /// The device's port, always 1.
    pub port: Option<u8>,
    /// The Q_Key that a datagram needs to be received. UD only.
    pub qkey: Option<Qkey>,
    /// Headers of the packets to the peer, in place of the address vector.
    pub flow: Option<FlowHeader>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout: 4.096 us * 2^n for n in 1..=31; 0: no timeout.
    pub timeout: Option<u8>,
    /// Retries after timeouts and sequence errors, 0..=7.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs, 0..=6; 7: unlimited.
    pub rnr_retry: Option<u8>,
    /// First PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// Initiator depth: READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: Option<u8>,
    /// Responder depth: READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// Code of the time that the peer must wait after an RNR NAK.
    pub min_rnr_timer: Option<RnrTimer>,
    /// Number of the peer's QP.
    pub dest_qp: Option<Qpn>,
    /// True: use end-to-end credits, if both sides agreed to (the flow control bit of the CM REQ).
    /// Accepted on the transitions to RTR and RTS. Not part of `ibv_qp_attr`.
    pub flow_control: Option<bool>,
    /// True: long WRITEs and READs may be sent as several messages, see
    /// [`Split`](crate::device::Split). Accepted on the transitions to RTR and RTS. Not part of
    /// `ibv_qp_attr`.
    pub split: Option<bool>,
    /// True: repeat only lost packets, if both sides agreed to. Accepted on the transition to RTR
    /// of an RC QP of a device with the setting. Not part of `ibv_qp_attr`.
    pub selective_repeat: Option<bool>,
}

/// Why a change of attributes is refused. Nothing is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The transition, or the set of attributes given for it, is illegal.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// `current_state` differs from the QP's actual state, which this variant holds.
    #[error("the QP is in {0:?}")]
    CurrentState(QpState),
    /// The value of this attribute is out of range.
    #[error("attribute {0} is out of range")]
    Range(&'static str),
}

/// The local ACK timeout for the code `n`: 4.096 us * 2^n; `None`: no timeout, for the code 0.
pub fn ack_timeout(n: u8) -> Option<Duration> {
    (n > 0).then(|| Duration::from_nanos(4096u64 << n.min(31)))
}

impl QpAttributes {
    /// The set of attributes that are given.
    pub fn mask(&self) -> QpAttrMask {
        use QpAttrMask as A;
        let given = [
            (self.state.is_some(), A::STATE),
            (self.current_state.is_some(), A::CUR_STATE),
            (self.en_sqd_async_notify.is_some(), A::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), A::ACCESS_FLAGS),
            (self.pkey.is_some(), A::PKEY_INDEX),
            (self.port.is_some(), A::PORT),
            (self.qkey.is_some(), A::QKEY),
            (self.flow.is_some(), A::AV),
            (self.path_mtu.is_some(), A::PATH_MTU),
            (self.timeout.is_some(), A::TIMEOUT),
            (self.retry_cnt.is_some(), A::RETRY_CNT),
            (self.rnr_retry.is_some(), A::RNR_RETRY),
            (self.rq_psn.is_some(), A::RQ_PSN),
            (self.sq_psn.is_some(), A::SQ_PSN),
            (self.max_rd_atomic.is_some(), A::MAX_QP_RD_ATOMIC),
            (self.max_dest_rd_atomic.is_some(), A::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), A::MIN_RNR_TIMER),
            (self.dest_qp.is_some(), A::DEST_QPN),
        ];
        given.into_iter().filter(|(is_given, _)| *is_given).fold(A::NONE, |all, (_, bit)| all | bit)
    }

    pub(super) fn check_ranges(&self) -> Result<(), ModifyError> {
        let limits = [
            ("port", self.port.map(|port| port.wrapping_sub(1)), 0),
            ("timeout", self.timeout, 31),
            ("retry_cnt", self.retry_cnt, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("max_rd_atomic", self.max_rd_atomic, MAX_RD_ATOMIC),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic, MAX_RD_ATOMIC),
        ];
        for (name, value, most) in limits {
            if value.is_some_and(|value| value > most) {
                return Err(ModifyError::Range(name));
            }
        }
        let known = Access::REMOTE | Access::LOCAL_WRITE | Access::MW_BIND;
        match self.access {
            Some(access) if !known.contains(access) => Err(ModifyError::Range("access")),
            _ => Ok(()),
        }
    }
}
