//! The legal state transitions of the unreliable services, as rows of the table in [`super::state`].

use super::state::{QpAttrMask as A, QpState, Transition};
use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};

const fn row(from: QpState, to: QpState, required: A, optional: A) -> Transition {
    Transition { from, to, required, optional }
}

/// Those of a UC QP: a connection without acknowledgements has no timers, retries or READs.
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

/// Those of a UD QP, which has no peer and no memory to share.
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

/// Those of the sending end of XRC: an RC QP without what belongs to receiving.
pub const XRC_INI_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const RTR_NEEDS: A = A::AV.or(A::PATH_MTU).or(A::DEST_QPN).or(A::RQ_PSN);
    const RETRIES: A = A::TIMEOUT.or(A::RETRY_CNT).or(A::RNR_RETRY).or(A::MAX_QP_RD_ATOMIC);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS);
    &[
        row(Reset, Init, ADDRESSING, A::NONE),
        row(Init, Init, A::NONE, ADDRESSING),
        row(Init, Rtr, RTR_NEEDS, A::ACCESS_FLAGS.or(A::PKEY_INDEX)),
        row(Rtr, Rts, RETRIES.or(A::SQ_PSN), LIVE),
        row(Rts, Rts, A::NONE, LIVE),
        row(Rts, Sqd, A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        row(Sqd, Rts, A::NONE, LIVE),
        row(Sqd, Sqd, A::NONE, RETRIES.or(LIVE).or(A::PORT).or(A::AV).or(A::PKEY_INDEX)),
    ]
};

/// Those of the receiving end of XRC.
pub const XRC_TGT_TRANSITIONS: &[Transition] = {
    const ADDRESSING: A = A::PKEY_INDEX.or(A::PORT).or(A::ACCESS_FLAGS);
    const ANSWERS: A = A::MAX_DEST_RD_ATOMIC.or(A::MIN_RNR_TIMER);
    const RTR_NEEDS: A = A::AV.or(A::PATH_MTU).or(A::DEST_QPN).or(A::RQ_PSN).or(ANSWERS);
    const LIVE: A = A::CUR_STATE.or(A::ACCESS_FLAGS).or(A::MIN_RNR_TIMER);
    const DRAINED: A = ANSWERS.or(LIVE).or(A::PORT).or(A::AV).or(A::TIMEOUT).or(A::PKEY_INDEX);
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

#[cfg(test)]
mod tests {
    use super::super::Service;
    use super::super::state::{TransitionError, check};
    use super::*;

    #[test]
    fn both_services_leave_sqe_and_otherwise_go_as_rc_does() {
        // Rows: from; columns: to, in the order of `QpState::ALL`. `x` = possible.
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
                    let refused = check(service, from, to, A::NONE);
                    let possible = !matches!(refused, Err(TransitionError::Illegal { .. }));
                    assert_eq!(possible, cell == "x", "{service:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn each_service_has_attributes_of_its_own() {
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
