//! The states of a queue pair, and the set of attributes that a transition may change.

use std::ops::BitOr;

/// State of a QP, with the values of `ibv_qp_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// New or reset: nothing can be posted.
    Reset = 0,
    /// Receives can be posted; no packet is processed.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained, or draining: started requests continue, no new request is started.
    Sqd = 4,
    /// Send queue error: QPs of the unreliable services go here when a send request fails. The send
    /// queue is flushed, packets are still received. An RC QP never enters this state.
    Sqe = 5,
    /// Error: all posted requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Returns true if packets are received in this state.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Returns true if started requests are sent in this state.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

/// A set of QP attributes, with the bit values of `ibv_qp_attr_mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpAttrMask(pub u32);

impl QpAttrMask {
    /// No attribute.
    pub const NONE: Self = Self(0);
    /// `state`
    pub const STATE: Self = Self(1);
    /// `current_state`
    pub const CUR_STATE: Self = Self(1 << 1);
    /// `en_sqd_async_notify`
    pub const EN_SQD_ASYNC_NOTIFY: Self = Self(1 << 2);
    /// `access`
    pub const ACCESS_FLAGS: Self = Self(1 << 3);
    /// `pkey`
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// `port`
    pub const PORT: Self = Self(1 << 5);
    /// `qkey`
    pub const QKEY: Self = Self(1 << 6);
    /// `path`
    pub const AV: Self = Self(1 << 7);
    /// `path_mtu`
    pub const PATH_MTU: Self = Self(1 << 8);
    /// `timeout`
    pub const TIMEOUT: Self = Self(1 << 9);
    /// `retry_cnt`
    pub const RETRY_CNT: Self = Self(1 << 10);
    /// `rnr_retry`
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// `rq_psn`
    pub const RQ_PSN: Self = Self(1 << 12);
    /// `max_rd_atomic`
    pub const MAX_QP_RD_ATOMIC: Self = Self(1 << 13);
    /// `min_rnr_timer`
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// `sq_psn`
    pub const SQ_PSN: Self = Self(1 << 16);
    /// `max_dest_rd_atomic`
    pub const MAX_DEST_RD_ATOMIC: Self = Self(1 << 17);
    /// `dest_qp`
    pub const DEST_QPN: Self = Self(1 << 20);

    /// Returns true if every attribute of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The attributes of `self` that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for QpAttrMask {
    type Output = Self;
    fn bitor(self, rhs: Self) -> Self {
        self.or(rhs)
    }
}

impl std::fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ibv_qp_attr_mask {:#x}", self.0)
    }
}
