//! Wrong handles: for each kind of object, calls with an overwritten `handle` or `context`, with a
//! destroyed object, with one of another kind and with null. Each is refused with the error number
//! of rdma-core and the kernel, and does no harm. Without root, each test prints a message and
//! passes.
// Every block is a call as a C program makes it, with a pointer that is live or wrong on purpose.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use feroce_verbs_abi as abi;
use feroce_verbs_abi::{ibv_qp_init_attr, ibv_srq_init_attr};
use interface::{Fixture, errno, fixture, ops, verbs, zeroed};

/// Pointer to an object of any kind.
type Any = *mut c_void;

/// A call with an object: its name, and the call, which returns an error number.
type Use = (&'static str, fn(&Fixture, Any) -> c_int);

/// A kind of object.
struct Kind {
    name: &'static str,
    /// Offset of the number that the kernel knows the object by, if the C structure has it.
    handle: Option<usize>,
    make: fn(&Fixture) -> Any,
    destroy: fn(&Fixture, Any) -> c_int,
    uses: &'static [Use],
}

macro_rules! offset {
    ($type:ident) => {
        Some(std::mem::offset_of!(abi::$type, handle))
    };
}

/// Returns `errno` after a call that returned null, else 0.
fn unless_made<T>(made: *mut T) -> c_int {
    if made.is_null() { errno() } else { 0 }
}

fn create_qp(fixture: &Fixture, change: impl FnOnce(&mut ibv_qp_init_attr), pd: Any) -> Any {
    let mut init: ibv_qp_init_attr = zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (fixture.cq, fixture.cq, abi::IBV_QPT_RC);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    change(&mut init);
    unsafe { verbs::ibv_create_qp(pd.cast(), &mut init).cast() }
}

fn create_srq(pd: Any) -> Any {
    let mut init: ibv_srq_init_attr = zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    unsafe { verbs::ibv_create_srq(pd.cast(), &mut init).cast() }
}

fn create_cq_ex(fixture: &Fixture) -> Any {
    let mut init: abi::ibv_cq_init_attr_ex = zeroed();
    init.cqe = 1;
    unsafe { ops(fixture.context).create_cq_ex.unwrap()(fixture.context, &mut init).cast() }
}

fn create_dm(fixture: &Fixture) -> Any {
    let mut init: abi::ibv_alloc_dm_attr = zeroed();
    init.length = 4096;
    unsafe { ops(fixture.context).alloc_dm.unwrap()(fixture.context, &mut init).cast() }
}

fn create_td(fixture: &Fixture) -> Any {
    let mut init: abi::ibv_td_init_attr = zeroed();
    unsafe { ops(fixture.context).alloc_td.unwrap()(fixture.context, &mut init).cast() }
}

fn open_xrcd(fixture: &Fixture) -> Any {
    let mut init: abi::ibv_xrcd_init_attr = zeroed();
    (init.comp_mask, init.fd, init.oflags) = (3, -1, libc::O_CREAT);
    unsafe { ops(fixture.context).open_xrcd.unwrap()(fixture.context, &mut init).cast() }
}

fn parent_domain(fixture: &Fixture, pd: Any, td: Any) -> Any {
    let mut init: abi::ibv_parent_domain_init_attr = zeroed();
    (init.pd, init.td) = (pd.cast(), td.cast());
    unsafe { ops(fixture.context).alloc_parent_domain.unwrap()(fixture.context, &mut init).cast() }
}

fn reg_mr(fixture: &Fixture, pd: Any) -> Any {
    unsafe { verbs::ibv_reg_mr(pd.cast(), fixture.memory, 4096, 1).cast() }
}

fn query_qp(qp: Any) -> c_int {
    let (mut attr, mut init) = (zeroed(), zeroed());
    unsafe { verbs::ibv_query_qp(qp.cast(), &mut attr, 1, &mut init) }
}

fn modify_qp(qp: Any) -> c_int {
    let mut attr: abi::ibv_qp_attr = zeroed();
    (attr.qp_state, attr.port_num) = (1, 1);
    let mask =
        abi::IBV_QP_STATE | abi::IBV_QP_PORT | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_ACCESS_FLAGS;
    unsafe { verbs::ibv_modify_qp(qp.cast(), &mut attr, mask.cast_signed()) }
}

/// Moves memory between the program and device memory by the functions in `ibv_dm`.
fn copy_to_dm(dm: Any) -> c_int {
    let bytes = [0u64; 1];
    // The function is taken from another object: this one may be destroyed.
    unsafe { interface::memcpy_to_dm()(dm.cast(), 0, bytes.as_ptr().cast(), 8) }
}

fn xrc_srq(fixture: &Fixture, xrcd: Any, cq: Any) -> Any {
    let mut init: abi::ibv_srq_init_attr_ex = zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    init.comp_mask = abi::IBV_SRQ_INIT_ATTR_TYPE
        | abi::IBV_SRQ_INIT_ATTR_PD
        | abi::IBV_SRQ_INIT_ATTR_XRCD
        | abi::IBV_SRQ_INIT_ATTR_CQ;
    (init.srq_type, init.pd, init.xrcd, init.cq) =
        (abi::IBV_SRQT_XRC, fixture.pd, xrcd.cast(), cq.cast());
    unsafe { ops(fixture.context).create_srq_ex.unwrap()(fixture.context, &mut init).cast() }
}

const KINDS: &[Kind] = &[
    Kind {
        name: "pd",
        handle: offset!(ibv_pd),
        make: |fixture| unsafe { verbs::ibv_alloc_pd(fixture.context).cast() },
        destroy: |_, pd| unsafe { verbs::ibv_dealloc_pd(pd.cast()) },
        uses: &[
            ("ibv_create_qp", |fixture, pd| unless_made(create_qp(fixture, |_| (), pd))),
            ("ibv_reg_mr", |fixture, pd| unless_made(reg_mr(fixture, pd))),
            ("ibv_alloc_mw", |fixture, pd| unsafe {
                unless_made((*fixture.context).ops.alloc_mw.unwrap()(pd.cast(), 1))
            }),
            ("ibv_create_srq", |_, pd| unless_made(create_srq(pd))),
            ("ibv_create_ah", |fixture, pd| unless_made(fixture.create_ah(pd.cast()))),
            ("ibv_alloc_parent_domain", |fixture, pd| {
                unless_made(parent_domain(fixture, pd, null_mut()))
            }),
            ("ibv_alloc_null_mr", |fixture, pd| unsafe {
                unless_made(ops(fixture.context).alloc_null_mr.unwrap()(pd.cast()))
            }),
        ],
    },
    Kind {
        name: "parent domain",
        handle: offset!(ibv_pd),
        make: |fixture| parent_domain(fixture, fixture.pd.cast(), null_mut()),
        destroy: |_, pd| unsafe { verbs::ibv_dealloc_pd(pd.cast()) },
        uses: &[("ibv_create_srq", |_, pd| unless_made(create_srq(pd)))],
    },
    Kind {
        name: "mr",
        handle: offset!(ibv_mr),
        make: |fixture| reg_mr(fixture, fixture.pd.cast()),
        destroy: |_, mr| unsafe { verbs::ibv_dereg_mr(mr.cast()) },
        // Its result says which step failed: -1, the arguments.
        uses: &[("ibv_rereg_mr", |fixture, mr| unsafe {
            match verbs::ibv_rereg_mr(mr.cast(), 4, null_mut(), fixture.memory, 0, 1) {
                -1 => errno(),
                other => other,
            }
        })],
    },
    Kind {
        name: "mw",
        handle: offset!(ibv_mw),
        make: |fixture| unsafe { (*fixture.context).ops.alloc_mw.unwrap()(fixture.pd, 1).cast() },
        destroy: |fixture, mw| unsafe { (*fixture.context).ops.dealloc_mw.unwrap()(mw.cast()) },
        uses: &[],
    },
    Kind {
        name: "cq",
        handle: offset!(ibv_cq),
        make: |fixture| unsafe {
            verbs::ibv_create_cq(fixture.context, 1, null_mut(), null_mut(), 0).cast()
        },
        destroy: |_, cq| unsafe { verbs::ibv_destroy_cq(cq.cast()) },
        uses: &[
            ("ibv_resize_cq", |_, cq| unsafe { verbs::ibv_resize_cq(cq.cast(), 8) }),
            ("ibv_create_qp, to send", |fixture, cq| {
                unless_made(create_qp(fixture, |init| init.send_cq = cq.cast(), fixture.pd.cast()))
            }),
            ("ibv_create_qp, to receive", |fixture, cq| {
                unless_made(create_qp(fixture, |init| init.recv_cq = cq.cast(), fixture.pd.cast()))
            }),
            ("ibv_modify_cq", |fixture, cq| unsafe {
                ops(fixture.context).modify_cq.unwrap()(cq.cast(), &mut zeroed())
            }),
            ("ibv_create_srq_ex", |fixture, cq| {
                let xrcd = open_xrcd(fixture);
                let code = unless_made(xrc_srq(fixture, xrcd, cq));
                unsafe { ops(fixture.context).close_xrcd.unwrap()(xrcd.cast()) };
                code
            }),
        ],
    },
    Kind {
        name: "cq_ex",
        handle: offset!(ibv_cq_ex),
        make: create_cq_ex,
        destroy: |_, cq| unsafe { verbs::ibv_destroy_cq(cq.cast()) },
        uses: &[("ibv_resize_cq", |_, cq| unsafe { verbs::ibv_resize_cq(cq.cast(), 8) })],
    },
    Kind {
        name: "srq",
        handle: offset!(ibv_srq),
        make: |fixture| create_srq(fixture.pd.cast()),
        destroy: |_, srq| unsafe { verbs::ibv_destroy_srq(srq.cast()) },
        uses: &[
            ("ibv_create_qp", |fixture, srq| {
                unless_made(create_qp(fixture, |init| init.srq = srq.cast(), fixture.pd.cast()))
            }),
            ("ibv_query_srq", |_, srq| unsafe { verbs::ibv_query_srq(srq.cast(), &mut zeroed()) }),
            ("ibv_modify_srq", |_, srq| unsafe {
                verbs::ibv_modify_srq(srq.cast(), &mut zeroed(), 2)
            }),
        ],
    },
    Kind {
        name: "qp",
        handle: offset!(ibv_qp),
        make: |fixture| create_qp(fixture, |_| (), fixture.pd.cast()),
        destroy: |_, qp| unsafe { verbs::ibv_destroy_qp(qp.cast()) },
        uses: &[
            ("ibv_modify_qp", |_, qp| modify_qp(qp)),
            ("ibv_query_qp", |_, qp| query_qp(qp)),
            ("ibv_attach_mcast", |_, qp| unsafe {
                verbs::ibv_attach_mcast(qp.cast(), &[255; 16], 0)
            }),
            ("ibv_detach_mcast", |_, qp| unsafe {
                verbs::ibv_detach_mcast(qp.cast(), &[255; 16], 0)
            }),
            ("ibv_query_ece", |_, qp| unsafe { verbs::ibv_query_ece(qp.cast(), &mut zeroed()) }),
            ("ibv_set_ece", |_, qp| unsafe { verbs::ibv_set_ece(qp.cast(), &mut zeroed()) }),
        ],
    },
    Kind {
        name: "ah",
        handle: offset!(ibv_ah),
        make: |fixture| fixture.create_ah(fixture.pd).cast(),
        destroy: |_, ah| unsafe { verbs::ibv_destroy_ah(ah.cast()) },
        uses: &[],
    },
    Kind {
        name: "comp channel",
        handle: None,
        make: |fixture| unsafe { verbs::ibv_create_comp_channel(fixture.context).cast() },
        destroy: |_, channel| unsafe { verbs::ibv_destroy_comp_channel(channel.cast()) },
        uses: &[
            ("ibv_create_cq", |fixture, channel| unsafe {
                let made = verbs::ibv_create_cq(fixture.context, 1, null_mut(), channel.cast(), 0);
                unless_made(made)
            }),
            ("ibv_get_cq_event", |_, channel| unsafe {
                let (mut cq, mut context) = (null_mut(), null_mut());
                match verbs::ibv_get_cq_event(channel.cast(), &mut cq, &mut context) {
                    -1 => errno(),
                    other => other,
                }
            }),
        ],
    },
    Kind {
        name: "xrcd",
        handle: None,
        make: open_xrcd,
        destroy: |fixture, xrcd| unsafe { ops(fixture.context).close_xrcd.unwrap()(xrcd.cast()) },
        uses: &[("ibv_create_srq_ex", |fixture, xrcd| {
            unless_made(xrc_srq(fixture, xrcd, fixture.cq.cast()))
        })],
    },
    Kind {
        name: "dm",
        handle: offset!(ibv_dm),
        make: create_dm,
        destroy: |fixture, dm| unsafe { ops(fixture.context).free_dm.unwrap()(dm.cast()) },
        uses: &[
            ("ibv_reg_dm_mr", |fixture, dm| unsafe {
                let register = ops(fixture.context).reg_dm_mr.unwrap();
                unless_made(register(fixture.pd, dm.cast(), 0, 64, abi::IBV_ACCESS_ZERO_BASED))
            }),
            ("ibv_memcpy_to_dm", |_, dm| copy_to_dm(dm)),
        ],
    },
    Kind {
        name: "td",
        handle: None,
        make: create_td,
        destroy: |fixture, td| unsafe { ops(fixture.context).dealloc_td.unwrap()(td.cast()) },
        uses: &[("ibv_alloc_parent_domain", |fixture, td| {
            unless_made(parent_domain(fixture, fixture.pd.cast(), td))
        })],
    },
];

/// Checks that the call returns `code` and sets `errno` to it.
fn refused(what: &str, code: c_int, call: impl FnOnce() -> c_int) {
    interface::set_errno(0);
    let result = call();
    assert_eq!((result, errno()), (code, code), "{what}: result and errno");
}

fn uses_are_refused(kind: &Kind, fixture: &Fixture, object: Any, why: &str) {
    for (call, act) in kind.uses {
        // An event call would wait: it is tried only where it must fail before that.
        refused(&format!("{call} with a {} that is {why}", kind.name), libc::EINVAL, || {
            act(fixture, object)
        });
    }
}

fn make(kind: &Kind, fixture: &Fixture) -> Any {
    let made = (kind.make)(fixture);
    assert!(!made.is_null(), "{}: errno {}", kind.name, errno());
    made
}

fn destroyed(kind: &Kind, fixture: &Fixture, object: Any) {
    assert_eq!((kind.destroy)(fixture, object), 0, "{}: destroyed as it was", kind.name);
}

#[test]
fn an_overwritten_handle_is_refused_until_it_is_restored() {
    let Some(fixture) = fixture() else { return };
    let mut count = 0;
    for kind in KINDS {
        let Some(offset) = kind.handle else { continue };
        let object = make(kind, fixture);
        let handle = object.wrapping_byte_add(offset).cast::<u32>();
        for garble in [1, 0xdead_beef] {
            unsafe { *handle ^= garble };
            let what = format!("destroying a {} with another handle", kind.name);
            refused(&what, libc::ENOENT, || (kind.destroy)(fixture, object));
            uses_are_refused(kind, fixture, object, "shown with another handle");
            unsafe { *handle ^= garble };
        }
        destroyed(kind, fixture, object);
        count += 1;
    }
    assert_eq!(count, 10);
}

#[test]
fn an_overwritten_context_is_refused_until_it_is_restored() {
    let Some(fixture) = fixture() else { return };
    for kind in KINDS {
        let object = make(kind, fixture);
        let context = object.cast::<*mut abi::ibv_context>();
        for other in [fixture.other, null_mut()] {
            unsafe { *context = other };
            let what = format!("destroying a {} with another context", kind.name);
            refused(&what, libc::ENOENT, || (kind.destroy)(fixture, object));
            uses_are_refused(kind, fixture, object, "shown with another context");
            unsafe { *context = fixture.context };
        }
        destroyed(kind, fixture, object);
    }
}

#[test]
fn a_destroyed_object_is_refused() {
    let Some(fixture) = fixture() else { return };
    for kind in KINDS {
        let object = make(kind, fixture);
        destroyed(kind, fixture, object);
        let what = format!("destroying a {} twice", kind.name);
        refused(&what, libc::ENOENT, || (kind.destroy)(fixture, object));
        uses_are_refused(kind, fixture, object, "destroyed");
        refused(&what, libc::ENOENT, || (kind.destroy)(fixture, object));
    }
}

#[test]
fn null_and_objects_of_another_kind_are_refused() {
    let Some(fixture) = fixture() else { return };
    for kind in KINDS {
        let what = format!("destroying null as a {}", kind.name);
        refused(&what, libc::ENOENT, || (kind.destroy)(fixture, null_mut()));
        for other in KINDS {
            let same = |a: &str, b: &str| kind.name.starts_with(a) && other.name.starts_with(b);
            let are_alike = same("cq", "cq") || same("p", "p") || kind.name == other.name;
            if are_alike {
                continue;
            }
            let object = make(other, fixture);
            let what = format!("destroying a {} as a {}", other.name, kind.name);
            refused(&what, libc::EINVAL, || (kind.destroy)(fixture, object));
            uses_are_refused(kind, fixture, object, &format!("a {}", other.name));
            destroyed(other, fixture, object);
        }
    }
}

/// The kernel looks for objects among those of the context that a call is made with.
#[test]
fn objects_of_another_context_are_refused() {
    let Some(fixture) = fixture() else { return };
    let foreign =
        Fixture { context: fixture.other, pd: fixture.other_pd, cq: fixture.other_cq, ..*fixture };
    for (kind, uses) in KINDS.iter().filter(|kind| !kind.uses.is_empty()).map(|kind| {
        let needs_others = |(name, _): &&Use| {
            matches!(
                *name,
                "ibv_create_qp, to send"
                    | "ibv_create_qp, to receive"
                    | "ibv_create_srq_ex"
                    | "ibv_alloc_parent_domain"
                    | "ibv_reg_dm_mr"
            ) || kind.name == "srq" && *name == "ibv_create_qp"
                || kind.name == "pd" && *name == "ibv_create_qp"
                || kind.name == "comp channel" && *name == "ibv_create_cq"
        };
        (kind, kind.uses.iter().filter(needs_others).collect::<Vec<_>>())
    }) {
        let object = make(kind, &foreign);
        for (call, act) in uses {
            let what = format!("{call} with a {} of another context", kind.name);
            refused(&what, libc::EINVAL, || act(fixture, object));
        }
        destroyed(kind, &foreign, object);
    }
}

#[test]
fn a_closed_context_is_refused() {
    let Some(fixture) = fixture() else { return };
    let closed = fixture.open();
    assert_eq!(unsafe { verbs::ibv_close_device(closed) }, 0);
    refused("closing twice", libc::ENOENT, || unsafe { verbs::ibv_close_device(closed) });
    refused("ibv_alloc_pd", libc::EINVAL, || unless_made(unsafe { verbs::ibv_alloc_pd(closed) }));
    refused("ibv_query_device", libc::EINVAL, || unsafe {
        verbs::ibv_query_device(closed, &mut zeroed())
    });
    let device = std::ptr::without_provenance_mut(64);
    refused("no device", libc::EINVAL, || unless_made(unsafe { verbs::ibv_open_device(device) }));
}

/// Notifications are requested once per event, so that this call does not look the object up, but
/// compares its number.
#[test]
fn a_notification_for_an_overwritten_handle_is_refused() {
    let Some(fixture) = fixture() else { return };
    let request = unsafe { (*fixture.context).ops.req_notify_cq.unwrap() };
    let cq = fixture.create_cq();
    unsafe { (*cq).handle ^= 1 };
    refused("ibv_req_notify_cq", libc::EINVAL, || unsafe { request(cq, 0) });
    unsafe { (*cq).handle ^= 1 };
    assert_eq!(unsafe { request(cq, 0) }, 0);
    assert_eq!(unsafe { verbs::ibv_destroy_cq(cq) }, 0);
}

/// A queue is deeper than requested, unless the program requests none.
#[test]
fn the_depth_of_a_queue_is_reported_and_0_stays_0() {
    let Some(fixture) = fixture() else { return };
    for (requested, depth) in [(0, 0), (1, 2), (256, 512)] {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (fixture.cq, fixture.cq, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (requested, 3);
        let qp = unsafe { verbs::ibv_create_qp(fixture.pd, &mut init) };
        assert!(!qp.is_null(), "{requested} requests: errno {}", errno());
        assert_eq!((init.cap.max_send_wr, init.cap.max_recv_wr), (depth, 4));
        assert_eq!(unsafe { verbs::ibv_destroy_qp(qp) }, 0);
    }
}

#[test]
fn an_object_in_use_is_busy() {
    let Some(fixture) = fixture() else { return };
    let (pd, cq) = (unsafe { verbs::ibv_alloc_pd(fixture.context) }, fixture.create_cq());
    let with_cq = |init: &mut ibv_qp_init_attr| (init.send_cq, init.recv_cq) = (cq, cq);
    let qp = create_qp(fixture, with_cq, pd.cast());
    refused("the PD", libc::EBUSY, || unsafe { verbs::ibv_dealloc_pd(pd) });
    refused("the CQ", libc::EBUSY, || unsafe { verbs::ibv_destroy_cq(cq) });
    assert_eq!(query_qp(qp), 0);
    assert_eq!(unsafe { verbs::ibv_destroy_qp(qp.cast()) }, 0);
    assert_eq!(unsafe { (verbs::ibv_destroy_cq(cq), verbs::ibv_dealloc_pd(pd)) }, (0, 0));
}
