//! Enhanced connection establishment on a device with selective repeat. Without root, the test
//! prints a message and passes.
// Every block is a call as a C program makes it; pointers are live, or wrong on purpose.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use std::ffi::{c_int, c_uint};

use feroce_verbs_abi as abi;
use feroce_verbs_abi::{ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use interface::{Fixture, errno, fixture, verbs, zeroed};

/// The vendor of Feroce's options, and its option selective repeat.
const OFFER: (u32, u32) = (0x02_f30c, 1);

fn create(fixture: &Fixture, qp_type: c_uint) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr = zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (fixture.cq, fixture.cq, qp_type);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    let qp = unsafe { verbs::ibv_create_qp(fixture.pd, &raw mut init) };
    assert!(!qp.is_null(), "errno {}", errno());
    qp
}

fn query(qp: *mut ibv_qp) -> Result<(u32, u32), c_int> {
    let mut ece: ibv_ece = zeroed();
    match unsafe { verbs::ibv_query_ece(qp, &raw mut ece) } {
        0 => Ok((ece.vendor_id, ece.options)),
        code => Err(code),
    }
}

fn set(qp: *mut ibv_qp, (vendor_id, options): (u32, u32)) -> c_int {
    let mut ece = ibv_ece { vendor_id, options, comp_mask: 0 };
    unsafe { verbs::ibv_set_ece(qp, &raw mut ece) }
}

/// Moves the QP to RTR, connected to itself.
fn connect(fixture: &Fixture, qp: *mut ibv_qp) {
    let mut attr: ibv_qp_attr = zeroed();
    (attr.qp_state, attr.port_num) = (1, 1);
    let mask =
        abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
    assert_eq!(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) }, 0);
    (attr.qp_state, attr.path_mtu, attr.max_dest_rd_atomic) = (2, 1, 1);
    attr.dest_qp_num = unsafe { (*qp).qp_num };
    attr.ah_attr = fixture.ah_attr();
    let mask = abi::IBV_QP_STATE
        | abi::IBV_QP_AV
        | abi::IBV_QP_PATH_MTU
        | abi::IBV_QP_DEST_QPN
        | abi::IBV_QP_RQ_PSN
        | abi::IBV_QP_MAX_DEST_RD_ATOMIC
        | abi::IBV_QP_MIN_RNR_TIMER;
    assert_eq!(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()) }, 0);
}

#[test]
fn a_device_with_selective_repeat_offers_it() {
    // The only test of this process, which has no other thread that reads the environment.
    unsafe { std::env::set_var("FEROCE_SELECTIVE_REPEAT", "true") };
    let Some(fixture) = fixture() else { return };
    let qp = create(fixture, abi::IBV_QPT_RC);
    assert_eq!(query(qp), Ok(OFFER));
    for refused in [(0x15b3, 1), (0, 0), (OFFER.0, 2)] {
        assert_eq!(set(qp, refused), libc::EINVAL, "{refused:?}");
    }
    assert_eq!(query(qp), Ok(OFFER), "unchanged");
    for agreed in [(OFFER.0, 0), OFFER] {
        assert_eq!((set(qp, agreed), query(qp)), (0, Ok(agreed)));
    }
    connect(fixture, qp);
    assert_eq!(set(qp, OFFER), libc::EINVAL, "after RTR");

    let ud = create(fixture, abi::IBV_QPT_UD);
    assert_eq!((query(ud), set(ud, OFFER)), (Err(libc::EOPNOTSUPP), libc::EOPNOTSUPP));
    for qp in [qp, ud] {
        assert_eq!(unsafe { verbs::ibv_destroy_qp(qp) }, 0);
    }
}
