//! The states of a queue pair, and what may be changed on the way from one to another.

use std::ops::BitOr;

use super::Service;
use super::transitions::{
    UC_TRANSITIONS, UD_TRANSITIONS, XRC_INI_TRANSITIONS, XRC_TGT_TRANSITIONS,
};

/// State of a QP, with the values of `ibv_qp_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just made: nothing can be posted.
    Reset = 0,
    /// Receives can be posted; nothing is processed.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: what was begun goes on, nothing new is begun.
    Sqd = 4,
    /// Send queue in error, where the unreliable services go when a send request fails: it is flushed, while
    /// packets are still received. An RC QP never enters it.
    Sqe = 5,
    /// In error: whatever is posted is flushed.
    Err = 6,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Packets are received.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Requests that were begun are sent.
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

    /// True if every attribute of `other` is in `self`.
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

/// One row of the table: a legal transition.
#[derive(Debug, Clone, Copy)]
pub struct Transition {
    /// From.
    pub from: QpState,
    /// To.
    pub to: QpState,
    /// Attributes that must be given.
    pub required: QpAttrMask,
    /// Attributes that may be given.
    pub optional: QpAttrMask,
}

/// The legal transitions of an RC QP (IBA volume 1, section 11.2.5.2, and `ib_modify_qp_is_ok` of
/// Linux), but for those to RESET and to ERR, which every state has and which take no attributes.
pub const TRANSITIONS: &[Transition] = {
    use QpAttrMask as A;
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    const fn row(from: QpState, to: QpState, required: A, optional: A) -> Transition {
        Transition { from, to, required, optional }
    }
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const RTR_NEEDS: A = A::AV
        .or(A::PATH_MTU)
        .or(A::DEST_QPN)
        .or(A::RQ_PSN)
        .or(A::MAX_DEST_RD_ATOMIC)
        .or(A::MIN_RNR_TIMER);
    const RTS_NEEDS: A =
        A::TIMEOUT.or(A::RETRY_CNT).or(A::RNR_RETRY).or(A::SQ_PSN).or(A::MAX_QP_RD_ATOMIC);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS).or(A::MIN_RNR_TIMER);
    const DRAINED: A = LIVE
        .or(A::PORT)
        .or(A::AV)
        .or(A::TIMEOUT)
        .or(A::RETRY_CNT)
        .or(A::RNR_RETRY)
        .or(A::MAX_QP_RD_ATOMIC)
        .or(A::MAX_DEST_RD_ATOMIC)
        .or(A::PKEY_INDEX);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, RTR_NEEDS, A::ACCESS_FLAGS.or(A::PKEY_INDEX)),
        row(Rtr, Rts, RTS_NEEDS, LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, DRAINED),
    ]
};

/// Why a transition is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// There is no way between the states.
    #[error("a QP in {from:?} cannot be moved to {to:?}")]
    Illegal {
        /// From.
        from: QpState,
        /// To.
        to: QpState,
    },
    /// Attributes that the transition needs are missing.
    #[error("attributes missing: {0}")]
    Missing(QpAttrMask),
    /// Attributes that the transition does not take were given.
    #[error("attributes not allowed here: {0}")]
    NotAllowed(QpAttrMask),
}

/// Checks that a QP of `service` may go from `from` to `to` with the attributes `given`.
///
/// # Errors
/// The rule that is broken.
pub fn check(
    service: Service,
    from: QpState,
    to: QpState,
    given: QpAttrMask,
) -> Result<(), TransitionError> {
    let transitions = match service {
        Service::Rc => TRANSITIONS,
        Service::Uc => UC_TRANSITIONS,
        Service::XrcIni => XRC_INI_TRANSITIONS,
        Service::XrcTgt => XRC_TGT_TRANSITIONS,
        Service::Ud => UD_TRANSITIONS,
    };
    let given = given.without(QpAttrMask::STATE);
    let (required, optional) = match to {
        QpState::Reset | QpState::Err => (QpAttrMask::NONE, QpAttrMask::NONE),
        _ => transitions
            .iter()
            .find(|row| row.from == from && row.to == to)
            .map(|row| (row.required, row.optional))
            .ok_or(TransitionError::Illegal { from, to })?,
    };
    let missing = required.without(given);
    if missing != QpAttrMask::NONE {
        return Err(TransitionError::Missing(missing));
    }
    let extra = given.without(required | optional);
    if extra != QpAttrMask::NONE {
        return Err(TransitionError::NotAllowed(extra));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_states_is_as_the_specification_draws_it() {
        // Rows: from; columns: to, in the order of `QpState::ALL`. `x` = possible.
        let drawn = [
            "x x . . . . x", // RESET
            "x x x . . . x", // INIT
            "x . . x . . x", // RTR
            "x . . x x . x", // RTS
            "x . . x x . x", // SQD
            "x . . . . . x", // SQE
            "x . . . . . x", // ERR
        ];
        for (from, row) in QpState::ALL.into_iter().zip(drawn) {
            for (to, cell) in QpState::ALL.into_iter().zip(row.split(' ')) {
                let refused = check(Service::Rc, from, to, QpAttrMask::NONE);
                let possible = !matches!(refused, Err(TransitionError::Illegal { .. }));
                assert_eq!(possible, cell == "x", "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn attributes_are_required_and_limited() {
        use QpAttrMask as A;
        use QpState::{Err as Error, Init, Reset, Rtr, Rts};
        let init = A::STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
        assert_eq!(check(Service::Rc, Reset, Init, init), Ok(()));
        assert_eq!(
            check(Service::Rc, Reset, Init, A::STATE | A::PORT),
            Result::Err(TransitionError::Missing(A::PKEY_INDEX | A::ACCESS_FLAGS))
        );
        assert_eq!(
            check(Service::Rc, Reset, Init, init | A::RQ_PSN),
            Result::Err(TransitionError::NotAllowed(A::RQ_PSN))
        );
        assert_eq!(
            check(Service::Rc, Rts, Error, A::STATE | A::SQ_PSN),
            Result::Err(TransitionError::NotAllowed(A::SQ_PSN))
        );
        let rts = A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::SQ_PSN | A::MAX_QP_RD_ATOMIC;
        assert_eq!(check(Service::Rc, Rtr, Rts, rts | A::MIN_RNR_TIMER), Ok(()));
    }
}
