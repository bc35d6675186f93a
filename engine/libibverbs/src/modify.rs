//! `ibv_modify_qp` and `ibv_query_qp`: conversion between C attributes and the engine's.

use std::ffi::{c_int, c_uint};

use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpAttrMask, QpState, Service, check_transition};
use feroce_wire::{PathMtu, Pkey, Psn, Qkey, Qpn, RnrTimer};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE,
    IBV_ACCESS_ZERO_BASED, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN,
    IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};
use crate::convert::path_of;
use crate::ece::SELECTIVE_REPEAT;
use crate::engine::Engine;
use crate::qp_state::State;
use crate::{errno, object, qp};

/// Attributes that this kind of QP supports.
const KNOWN: c_uint = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN;

/// Removes attributes that belong to the other side of XRC: programs set up both sides alike, and
/// the kernel ignores these attributes, too.
fn applicable_attributes(service: Service, mask: c_uint) -> c_uint {
    mask & !match service {
        Service::XrcIni => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        Service::XrcTgt => IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY,
        Service::Rc | Service::Uc | Service::Ud => 0,
    }
}

/// MR access flags that have no meaning for a QP; like hardware drivers, ignore them.
const MR_ONLY_FLAGS: c_uint = IBV_ACCESS_OPTIONAL_RANGE
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_MW_BIND;

/// Index of the only partition key.
const PKEY_INDEX: u16 = 0;

fn state(number: c_uint) -> Result<QpState, c_int> {
    QpState::ALL.into_iter().find(|state| *state as c_uint == number).ok_or(libc::EINVAL)
}

/// Returns the engine's attributes, without the path.
fn attributes(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpAttributes, c_int> {
    if mask & !KNOWN != 0 {
        return Err(libc::EINVAL);
    }
    let has = |bit: c_uint| mask & bit != 0;
    if has(IBV_QP_PKEY_INDEX) && attr.pkey_index != PKEY_INDEX {
        return Err(libc::EINVAL);
    }
    let mtu = || u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code);
    let rights = attr.qp_access_flags & !MR_ONLY_FLAGS;
    let given = |bit, value: u8| has(bit).then_some(value);
    Ok(QpAttributes {
        state: has(IBV_QP_STATE).then(|| state(attr.qp_state)).transpose()?,
        current_state: has(IBV_QP_CUR_STATE).then(|| state(attr.cur_qp_state)).transpose()?,
        en_sqd_async_notify: has(IBV_QP_EN_SQD_ASYNC_NOTIFY)
            .then_some(attr.en_sqd_async_notify != 0),
        access: has(IBV_QP_ACCESS_FLAGS)
            .then(|| Access::from_bits(rights).ok_or(libc::EINVAL))
            .transpose()?,
        pkey: has(IBV_QP_PKEY_INDEX).then_some(Pkey::DEFAULT),
        port: given(IBV_QP_PORT, attr.port_num),
        qkey: has(IBV_QP_QKEY).then_some(Qkey(attr.qkey)),
        flow: None,
        path_mtu: has(IBV_QP_PATH_MTU).then(|| mtu().ok_or(libc::EINVAL)).transpose()?,
        timeout: given(IBV_QP_TIMEOUT, attr.timeout),
        retry_cnt: given(IBV_QP_RETRY_CNT, attr.retry_cnt),
        rnr_retry: given(IBV_QP_RNR_RETRY, attr.rnr_retry),
        rq_psn: has(IBV_QP_RQ_PSN).then(|| Psn::new(attr.rq_psn)),
        sq_psn: has(IBV_QP_SQ_PSN).then(|| Psn::new(attr.sq_psn)),
        max_rd_atomic: given(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        max_dest_rd_atomic: given(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER)
            .then(|| RnrTimer::new(attr.min_rnr_timer).ok_or(libc::EINVAL))
            .transpose()?,
        dest_qp: has(IBV_QP_DEST_QPN).then(|| Qpn::masked(attr.dest_qp_num)),
        flow_control: None,
        split: None,
        selective_repeat: None,
    })
}

fn modify(
    engine: &Engine,
    held: &mut State,
    attr: &ibv_qp_attr,
    mask: c_uint,
) -> Result<QpState, c_int> {
    let mask = applicable_attributes(held.qp.service(), mask);
    let mut wanted = attributes(attr, mask)?;
    if mask & IBV_QP_AV != 0 {
        let now = held.qp.query();
        // Check the transition first: an invalid one must not wait for address resolution.
        let from = now.state.unwrap_or(QpState::Reset);
        let given = QpAttrMask(wanted.mask().0 | QpAttrMask::AV.0);
        let to = wanted.state.unwrap_or(from);
        check_transition(held.qp.service(), from, to, given).map_err(|_| libc::EINVAL)?;
        let remote = wanted.dest_qp.or(now.dest_qp).ok_or(libc::EINVAL)?;
        let flow = held.qp.resolve(&path_of(&attr.ah_attr, &engine.settings)?, remote);
        wanted.flow = Some(flow.map_err(|error| {
            crate::log::print(&error.to_string());
            errno::of_device(&error)
        })?);
    }
    let to_rtr = wanted.state == Some(QpState::Rtr);
    wanted.selective_repeat = held.ece.filter(|_| to_rtr).map(|ece| ece & SELECTIVE_REPEAT != 0);
    held.qp.modify(&wanted).map_err(|error| errno::of_device(&error))?;
    if wanted.state == Some(QpState::Reset) {
        held.ece = None;
    }
    if mask & IBV_QP_AV != 0 {
        held.ah_attr = attr.ah_attr;
    }
    Ok(held.qp.query().state.unwrap_or(QpState::Err))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { &*attr };
    object::code(qp::live(qp).and_then(|live| {
        live.with(|held| {
            let state = modify(&live.shared.engine, held, attr, mask.cast_unsigned())?;
            live.show_state(state as c_uint);
            Ok(())
        })
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let live = match qp::live(qp) {
        Ok(live) => live,
        Err(code) => return object::code(Err(code)),
    };
    let (now, made) = live.with(|held| {
        // SAFETY: only the state changes after creation, and only with the lock held.
        let base = unsafe { (*live.abi.get()).qp_base };
        let made = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: held.cap,
            qp_type: base.qp_type,
            sq_sig_all: held.sq_sig_all,
        };
        let now = c_attributes(&held.qp.query(), held);
        live.show_state(now.qp_state);
        (now, made)
    });
    // SAFETY: the program passes two writable structures.
    unsafe {
        attr.write(now);
        init.write(made);
    }
    0
}

/// Returns the attributes as a C structure.
fn c_attributes(now: &QpAttributes, held: &State) -> ibv_qp_attr {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    let number = |state: Option<QpState>| state.map_or(0, |state| state as c_uint);
    attr.qp_state = number(now.state);
    attr.cur_qp_state = number(now.state);
    attr.path_mtu = now.path_mtu.map_or(0, |mtu| u32::from(mtu.code()));
    attr.qkey = now.qkey.map_or(0, |qkey| qkey.0);
    attr.rq_psn = now.rq_psn.map_or(0, Psn::value);
    attr.sq_psn = now.sq_psn.map_or(0, Psn::value);
    attr.dest_qp_num = now.dest_qp.map_or(0, Qpn::value);
    attr.qp_access_flags = now.access.map_or(0, Access::bits);
    attr.cap = held.cap;
    attr.ah_attr = held.ah_attr;
    attr.pkey_index = PKEY_INDEX;
    attr.en_sqd_async_notify = u8::from(now.en_sqd_async_notify == Some(true));
    attr.max_rd_atomic = now.max_rd_atomic.unwrap_or(0);
    attr.max_dest_rd_atomic = now.max_dest_rd_atomic.unwrap_or(0);
    attr.min_rnr_timer = now.min_rnr_timer.map_or(0, RnrTimer::code);
    attr.port_num = now.port.unwrap_or(0);
    attr.timeout = now.timeout.unwrap_or(0);
    attr.retry_cnt = now.retry_cnt.unwrap_or(0);
    attr.rnr_retry = now.rnr_retry.unwrap_or(0);
    attr
}
