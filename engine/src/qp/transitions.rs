//! The legal state transitions of each service, as tables, and the check of a transition.

use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};

use super::state::{QpAttrMask as A, QpState};
use crate::verbs::Service;

/// A row of a table: a legal transition.
#[derive(Debug, Clone, Copy)]
pub struct Transition {
    /// Old state.
    pub from: QpState,
    /// New state.
    pub to: QpState,
    /// Attributes that must be given.
    pub required: A,
    /// Attributes that may be given.
    pub optional: A,
}

const fn row(from: QpState, to: QpState, required: A, optional: A) -> Transition {
    Transition { from, to, required, optional }
}

/// The legal transitions of an RC QP (IBA volume 1, section 11.2.5.2, and `ib_modify_qp_is_ok` of
/// Linux). The tables leave out the transitions to RESET and ERR, which are legal in every state
/// and take no attributes.
pub const TRANSITIONS: &[Transition] = {
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
    const DRAINED: A = A::ACCESS_FLAGS
        .or(A::MIN_RNR_TIMER)
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

/// The legal transitions of a UC QP. A connection without acknowledgements has no timers, retries
/// or READs.
pub const UC_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const RTR_NEEDS: A = A::AV.or(A::PATH_MTU).or(A::DEST_QPN).or(A::RQ_PSN);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, RTR_NEEDS, A::ACCESS_FLAGS.or(A::PKEY_INDEX)),
        row(Rtr, Rts, A::SQ_PSN, LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, A::AV.or(A::ACCESS_FLAGS).or(A::PKEY_INDEX)),
        row(Sqe, Rts, A::NONE, LIVE),
    ]
};

/// The legal transitions of a UD QP, which has no peer and grants no rights to memory.
pub const UD_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::QKEY);
    const LIVE: A = A::CUR_STATE.or(A::QKEY);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, A::NONE, A::PKEY_INDEX.or(A::QKEY)),
        row(Rtr, Rts, A::SQ_PSN, LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, A::PKEY_INDEX.or(A::QKEY)),
        row(Sqe, Rts, A::NONE, LIVE),
    ]
};

/// The legal transitions of the sending end of XRC: an RC QP without the attributes of a responder.
pub const XRC_INI_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const RTR_NEEDS: A = A::AV.or(A::PATH_MTU).or(A::DEST_QPN).or(A::RQ_PSN);
    const RETRIES: A = A::TIMEOUT.or(A::RETRY_CNT).or(A::RNR_RETRY).or(A::MAX_QP_RD_ATOMIC);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS);
    const DRAINED: A = RETRIES.or(A::ACCESS_FLAGS).or(A::PORT).or(A::AV).or(A::PKEY_INDEX);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, RTR_NEEDS, A::ACCESS_FLAGS.or(A::PKEY_INDEX)),
        row(Rtr, Rts, RETRIES.or(A::SQ_PSN), LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, DRAINED),
    ]
};

/// The legal transitions of the receiving end of XRC.
pub const XRC_TGT_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const RESPONDER: A = A::MAX_DEST_RD_ATOMIC.or(A::MIN_RNR_TIMER);
    const RTR_NEEDS: A = A::AV.or(A::PATH_MTU).or(A::DEST_QPN).or(A::RQ_PSN).or(RESPONDER);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS).or(A::MIN_RNR_TIMER);
    const DRAINED: A =
        RESPONDER.or(A::ACCESS_FLAGS).or(A::PORT).or(A::AV).or(A::TIMEOUT).or(A::PKEY_INDEX);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, RTR_NEEDS, A::ACCESS_FLAGS.or(A::PKEY_INDEX)),
        row(Rtr, Rts, A::TIMEOUT.or(A::SQ_PSN), LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, DRAINED),
    ]
};

/// Why a transition is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The QP cannot go from one state to the other.
    #[error("a QP in {from:?} cannot be moved to {to:?}")]
    Illegal {
        /// Old state.
        from: QpState,
        /// New state.
        to: QpState,
    },
    /// Required attributes are missing.
    #[error("attributes missing: {0}")]
    Missing(A),
    /// Attributes were given that the transition does not accept.
    #[error("attributes not allowed here: {0}")]
    NotAllowed(A),
}

/// Checks that a QP of `service` may go from `from` to `to` with the attributes `given`.
///
/// # Errors
/// The rule that is violated.
pub fn check(
    service: Service,
    from: QpState,
    to: QpState,
    given: A,
) -> Result<(), TransitionError> {
    let transitions = match service {
        Service::Rc => TRANSITIONS,
        Service::Uc => UC_TRANSITIONS,
        Service::XrcIni => XRC_INI_TRANSITIONS,
        Service::XrcTgt => XRC_TGT_TRANSITIONS,
        Service::Ud => UD_TRANSITIONS,
    };
    let given = given.without(A::STATE);
    let (required, optional) = match to {
        QpState::Reset | QpState::Err => (A::NONE, A::NONE),
        _ => transitions
            .iter()
            .find(|row| row.from == from && row.to == to)
            .map(|row| (row.required, row.optional))
            .ok_or(TransitionError::Illegal { from, to })?,
    };
    let missing = required.without(given);
    if missing != A::NONE {
        return Err(TransitionError::Missing(missing));
    }
    let extra = given.without(required | optional);
    if extra != A::NONE {
        return Err(TransitionError::NotAllowed(extra));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA volume 1, section 11.2.5.2.
    #[test]
    fn transitions_of_rc_are_those_that_the_specification_draws() {
        // Rows: from; columns: to, in the order of `QpState::ALL`. `x`: legal.
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
                let result = check(Service::Rc, from, to, A::NONE);
                let is_legal = !matches!(result, Err(TransitionError::Illegal { .. }));
                assert_eq!(is_legal, cell == "x", "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn attributes_are_required_and_limited() {
        use QpState::Err as Error;
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

    #[test]
    fn unreliable_services_leave_sqe_and_otherwise_follow_rc() {
        // Rows: from; columns: to, in the order of `QpState::ALL`. `x`: legal.
        let drawn = [
            "x x . . . . x", // RESET
            "x x x . . . x", // INIT
            "x . . x . . x", // RTR
            "x . . x x . x", // RTS
            "x . . x x . x", // SQD
            "x . . x . . x", // SQE
            "x . . . . . x", // ERR
        ];
        for service in [Service::Uc, Service::Ud] {
            for (from, row) in QpState::ALL.into_iter().zip(drawn) {
                for (to, cell) in QpState::ALL.into_iter().zip(row.split(' ')) {
                    let result = check(service, from, to, A::NONE);
                    let is_legal = !matches!(result, Err(TransitionError::Illegal { .. }));
                    assert_eq!(is_legal, cell == "x", "{service:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn each_service_has_its_own_attributes() {
        let uc_rtr = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
        assert_eq!(check(Service::Uc, Init, Rtr, uc_rtr), Ok(()));
        let missing = A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
        let rc = check(Service::Rc, Init, Rtr, uc_rtr);
        assert_eq!(rc, Err(TransitionError::Missing(missing)));
        let extra = check(Service::Uc, Init, Rtr, uc_rtr | A::MIN_RNR_TIMER);
        assert_eq!(extra, Err(TransitionError::NotAllowed(A::MIN_RNR_TIMER)));
        assert_eq!(check(Service::Ud, Init, Rtr, A::NONE), Ok(()));
        let extra = check(Service::Ud, Init, Rtr, A::AV);
        assert_eq!(extra, Err(TransitionError::NotAllowed(A::AV)));
        let init = A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
        assert_eq!(check(Service::Uc, Reset, Init, init), Ok(()));
        let refused = check(Service::Ud, Reset, Init, init);
        assert_eq!(refused, Err(TransitionError::Missing(A::QKEY)));
        let refused = check(Service::Rc, Init, Init, A::QKEY);
        assert_eq!(refused, Err(TransitionError::NotAllowed(A::QKEY)));
    }
}
