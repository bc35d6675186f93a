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
use interface::{World, errno, ops, verbs, world, zeroed};

/// Pointer to an object of any kind.
type Any = *mut c_void;

/// A call with an object: its name, and the call, which returns an error number.
type Use = (&'static str, fn(&World, Any) -> c_int);

/// A kind of object.
struct Kind {
    name: &'static str,
    /// Offset of the number that the kernel knows the object by, if the C structure has it.
    handle: Option<usize>,
    make: fn(&World) -> Any,
    destroy: fn(&World, Any) -> c_int,
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

fn create_qp(world: &World, change: impl FnOnce(&mut ibv_qp_init_attr), pd: Any) -> Any {
    let mut init: ibv_qp_init_attr = zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (world.cq, world.cq, abi::IBV_QPT_RC);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    change(&mut init);
    unsafe { verbs::ibv_create_qp(pd.cast(), &mut init).cast() }
}

fn create_srq(pd: Any) -> Any {
    let mut init: ibv_srq_init_attr = zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    unsafe { verbs::ibv_create_srq(pd.cast(), &mut init).cast() }
}

fn create_cq_ex(world: &World) -> Any {
    let mut init: abi::ibv_cq_init_attr_ex = zeroed();
    init.cqe = 1;
    unsafe { ops(world.context).create_cq_ex.unwrap()(world.context, &mut init).cast() }
}

fn create_dm(world: &World) -> Any {
    let mut init: abi::ibv_alloc_dm_attr = zeroed();
    init.length = 4096;
    unsafe { ops(world.context).alloc_dm.unwrap()(world.context, &mut init).cast() }
}

fn create_td(world: &World) -> Any {
    let mut init: abi::ibv_td_init_attr = zeroed();
    unsafe { ops(world.context).alloc_td.unwrap()(world.context, &mut init).cast() }
}

fn open_xrcd(world: &World) -> Any {
    let mut init: abi::ibv_xrcd_init_attr = zeroed();
    (init.comp_mask, init.fd, init.oflags) = (3, -1, libc::O_CREAT);
    unsafe { ops(world.context).open_xrcd.unwrap()(world.context, &mut init).cast() }
}

fn parent_domain(world: &World, pd: Any, td: Any) -> Any {
    let mut init: abi::ibv_parent_domain_init_attr = zeroed();
    (init.pd, init.td) = (pd.cast(), td.cast());
    unsafe { ops(world.context).alloc_parent_domain.unwrap()(world.context, &mut init).cast() }
}

fn reg_mr(world: &World, pd: Any) -> Any {
    unsafe { verbs::ibv_reg_mr(pd.cast(), world.memory, 4096, 1).cast() }
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

fn xrc_srq(world: &World, xrcd: Any, cq: Any) -> Any {
    let mut init: abi::ibv_srq_init_attr_ex = zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    init.comp_mask = abi::IBV_SRQ_INIT_ATTR_TYPE
        | abi::IBV_SRQ_INIT_ATTR_PD
        | abi::IBV_SRQ_INIT_ATTR_XRCD
        | abi::IBV_SRQ_INIT_ATTR_CQ;
    (init.srq_type, init.pd, init.xrcd, init.cq) =
        (abi::IBV_SRQT_XRC, world.pd, xrcd.cast(), cq.cast());
    unsafe { ops(world.context).create_srq_ex.unwrap()(world.context, &mut init).cast() }
}

const KINDS: &[Kind] = &[
    Kind {
        name: "pd",
        handle: offset!(ibv_pd),
        make: |world| unsafe { verbs::ibv_alloc_pd(world.context).cast() },
        destroy: |_, pd| unsafe { verbs::ibv_dealloc_pd(pd.cast()) },
        uses: &[
            ("ibv_create_qp", |world, pd| unless_made(create_qp(world, |_| (), pd))),
            ("ibv_reg_mr", |world, pd| unless_made(reg_mr(world, pd))),
            ("ibv_alloc_mw", |world, pd| unsafe {
                unless_made((*world.context).ops.alloc_mw.unwrap()(pd.cast(), 1))
            }),
            ("ibv_create_srq", |_, pd| unless_made(create_srq(pd))),
            ("ibv_create_ah", |world, pd| unless_made(world.create_ah(pd.cast()))),
            ("ibv_alloc_parent_domain", |world, pd| {
                unless_made(parent_domain(world, pd, null_mut()))
            }),
            ("ibv_alloc_null_mr", |world, pd| unsafe {
                unless_made(ops(world.context).alloc_null_mr.unwrap()(pd.cast()))
            }),
        ],
    },
    Kind {
        name: "parent domain",
        handle: offset!(ibv_pd),
        make: |world| parent_domain(world, world.pd.cast(), null_mut()),
        destroy: |_, pd| unsafe { verbs::ibv_dealloc_pd(pd.cast()) },
        uses: &[("ibv_create_srq", |_, pd| unless_made(create_srq(pd)))],
    },
    Kind {
        name: "mr",
        handle: offset!(ibv_mr),
        make: |world| reg_mr(world, world.pd.cast()),
        destroy: |_, mr| unsafe { verbs::ibv_dereg_mr(mr.cast()) },
        // Its result says which step failed: -1, the arguments.
        uses: &[("ibv_rereg_mr", |world, mr| unsafe {
            match verbs::ibv_rereg_mr(mr.cast(), 4, null_mut(), world.memory, 0, 1) {
                -1 => errno(),
                other => other,
            }
        })],
    },
    Kind {
        name: "mw",
        handle: offset!(ibv_mw),
        make: |world| unsafe { (*world.context).ops.alloc_mw.unwrap()(world.pd, 1).cast() },
        destroy: |world, mw| unsafe { (*world.context).ops.dealloc_mw.unwrap()(mw.cast()) },
        uses: &[],
    },
    Kind {
        name: "cq",
        handle: offset!(ibv_cq),
        make: |world| unsafe {
            verbs::ibv_create_cq(world.context, 1, null_mut(), null_mut(), 0).cast()
        },
        destroy: |_, cq| unsafe { verbs::ibv_destroy_cq(cq.cast()) },
        uses: &[
            ("ibv_resize_cq", |_, cq| unsafe { verbs::ibv_resize_cq(cq.cast(), 8) }),
            ("ibv_create_qp, to send", |world, cq| {
                unless_made(create_qp(world, |init| init.send_cq = cq.cast(), world.pd.cast()))
            }),
            ("ibv_create_qp, to receive", |world, cq| {
                unless_made(create_qp(world, |init| init.recv_cq = cq.cast(), world.pd.cast()))
            }),
            ("ibv_modify_cq", |world, cq| unsafe {
                ops(world.context).modify_cq.unwrap()(cq.cast(), &mut zeroed())
            }),
            ("ibv_create_srq_ex", |world, cq| {
                let xrcd = open_xrcd(world);
                let code = unless_made(xrc_srq(world, xrcd, cq));
                unsafe { ops(world.context).close_xrcd.unwrap()(xrcd.cast()) };
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
        make: |world| create_srq(world.pd.cast()),
        destroy: |_, srq| unsafe { verbs::ibv_destroy_srq(srq.cast()) },
        uses: &[
            ("ibv_create_qp", |world, srq| {
                unless_made(create_qp(world, |init| init.srq = srq.cast(), world.pd.cast()))
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
        make: |world| create_qp(world, |_| (), world.pd.cast()),
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
        make: |world| world.create_ah(world.pd).cast(),
        destroy: |_, ah| unsafe { verbs::ibv_destroy_ah(ah.cast()) },
        uses: &[],
    },
    Kind {
        name: "comp channel",
        handle: None,
        make: |world| unsafe { verbs::ibv_create_comp_channel(world.context).cast() },
        destroy: |_, channel| unsafe { verbs::ibv_destroy_comp_channel(channel.cast()) },
        uses: &[
            ("ibv_create_cq", |world, channel| unsafe {
                let made = verbs::ibv_create_cq(world.context, 1, null_mut(), channel.cast(), 0);
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
        destroy: |world, xrcd| unsafe { ops(world.context).close_xrcd.unwrap()(xrcd.cast()) },
        uses: &[("ibv_create_srq_ex", |world, xrcd| {
            unless_made(xrc_srq(world, xrcd, world.cq.cast()))
        })],
    },
    Kind {
        name: "dm",
        handle: offset!(ibv_dm),
        make: create_dm,
        destroy: |world, dm| unsafe { ops(world.context).free_dm.unwrap()(dm.cast()) },
        uses: &[
            ("ibv_reg_dm_mr", |world, dm| unsafe {
                let register = ops(world.context).reg_dm_mr.unwrap();
                unless_made(register(world.pd, dm.cast(), 0, 64, abi::IBV_ACCESS_ZERO_BASED))
            }),
            ("ibv_memcpy_to_dm", |_, dm| copy_to_dm(dm)),
        ],
    },
    Kind {
        name: "td",
        handle: None,
        make: create_td,
        destroy: |world, td| unsafe { ops(world.context).dealloc_td.unwrap()(td.cast()) },
        uses: &[("ibv_alloc_parent_domain", |world, td| {
            unless_made(parent_domain(world, world.pd.cast(), td))
        })],
    },
];

/// Checks that the call returns `code` and sets `errno` to it.
fn refused(what: &str, code: c_int, call: impl FnOnce() -> c_int) {
    interface::set_errno(0);
    let result = call();
    assert_eq!((result, errno()), (code, code), "{what}: result and errno");
}

fn uses_are_refused(kind: &Kind, world: &World, object: Any, why: &str) {
    for (call, act) in kind.uses {
        // An event call would wait: it is tried only where it must fail before that.
        refused(&format!("{call} with a {} that is {why}", kind.name), libc::EINVAL, || {
            act(world, object)
        });
    }
}

fn make(kind: &Kind, world: &World) -> Any {
    let made = (kind.make)(world);
    assert!(!made.is_null(), "{}: errno {}", kind.name, errno());
    made
}

fn destroyed(kind: &Kind, world: &World, object: Any) {
    assert_eq!((kind.destroy)(world, object), 0, "{}: destroyed as it was", kind.name);
}

#[test]
fn an_overwritten_handle_is_refused_until_it_is_restored() {
    let Some(world) = world() else { return };
    let mut count = 0;
    for kind in KINDS {
        let Some(offset) = kind.handle else { continue };
        let object = make(kind, world);
        let handle = object.wrapping_byte_add(offset).cast::<u32>();
        for garble in [1, 0xdead_beef] {
            unsafe { *handle ^= garble };
            let what = format!("destroying a {} with another handle", kind.name);
            refused(&what, libc::ENOENT, || (kind.destroy)(world, object));
            uses_are_refused(kind, world, object, "shown with another handle");
            unsafe { *handle ^= garble };
        }
        destroyed(kind, world, object);
        count += 1;
    }
    assert_eq!(count, 10);
}

#[test]
fn an_overwritten_context_is_refused_until_it_is_restored() {
    let Some(world) = world() else { return };
    for kind in KINDS {
        let object = make(kind, world);
        let context = object.cast::<*mut abi::ibv_context>();
        for other in [world.other, null_mut()] {
            unsafe { *context = other };
            let what = format!("destroying a {} with another context", kind.name);
            refused(&what, libc::ENOENT, || (kind.destroy)(world, object));
            uses_are_refused(kind, world, object, "shown with another context");
            unsafe { *context = world.context };
        }
        destroyed(kind, world, object);
    }
}

#[test]
fn a_destroyed_object_is_refused() {
    let Some(world) = world() else { return };
    for kind in KINDS {
        let object = make(kind, world);
        destroyed(kind, world, object);
        let what = format!("destroying a {} twice", kind.name);
        refused(&what, libc::ENOENT, || (kind.destroy)(world, object));
        uses_are_refused(kind, world, object, "destroyed");
        refused(&what, libc::ENOENT, || (kind.destroy)(world, object));
    }
}

#[test]
fn null_and_objects_of_another_kind_are_refused() {
    let Some(world) = world() else { return };
    for kind in KINDS {
        let what = format!("destroying null as a {}", kind.name);
        refused(&what, libc::ENOENT, || (kind.destroy)(world, null_mut()));
        for other in KINDS {
            let same = |a: &str, b: &str| kind.name.starts_with(a) && other.name.starts_with(b);
            let are_alike = same("cq", "cq") || same("p", "p") || kind.name == other.name;
            if are_alike {
                continue;
            }
            let object = make(other, world);
            let what = format!("destroying a {} as a {}", other.name, kind.name);
            refused(&what, libc::EINVAL, || (kind.destroy)(world, object));
            uses_are_refused(kind, world, object, &format!("a {}", other.name));
            destroyed(other, world, object);
        }
    }
}

/// The kernel looks for objects among those of the context that a call is made with.
#[test]
fn objects_of_another_context_are_refused() {
    let Some(world) = world() else { return };
    let foreign = World { context: world.other, pd: world.other_pd, cq: world.other_cq, ..*world };
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
            refused(&what, libc::EINVAL, || act(world, object));
        }
        destroyed(kind, &foreign, object);
    }
}

#[test]
fn a_closed_context_is_refused() {
    let Some(world) = world() else { return };
    let closed = world.open();
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
    let Some(world) = world() else { return };
    let request = unsafe { (*world.context).ops.req_notify_cq.unwrap() };
    let cq = world.create_cq();
    unsafe { (*cq).handle ^= 1 };
    refused("ibv_req_notify_cq", libc::EINVAL, || unsafe { request(cq, 0) });
    unsafe { (*cq).handle ^= 1 };
    assert_eq!(unsafe { request(cq, 0) }, 0);
    assert_eq!(unsafe { verbs::ibv_destroy_cq(cq) }, 0);
}

/// A queue is deeper than requested, unless the program requests none.
#[test]
fn the_depth_of_a_queue_is_reported_and_0_stays_0() {
    let Some(world) = world() else { return };
    for (requested, depth) in [(0, 0), (1, 2), (256, 512)] {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (world.cq, world.cq, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (requested, 3);
        let qp = unsafe { verbs::ibv_create_qp(world.pd, &mut init) };
        assert!(!qp.is_null(), "{requested} requests: errno {}", errno());
        assert_eq!((init.cap.max_send_wr, init.cap.max_recv_wr), (depth, 4));
        assert_eq!(unsafe { verbs::ibv_destroy_qp(qp) }, 0);
    }
}

#[test]
fn an_object_in_use_is_busy() {
    let Some(world) = world() else { return };
    let (pd, cq) = (unsafe { verbs::ibv_alloc_pd(world.context) }, world.create_cq());
    let with_cq = |init: &mut ibv_qp_init_attr| (init.send_cq, init.recv_cq) = (cq, cq);
    let qp = create_qp(world, with_cq, pd.cast());
    refused("the PD", libc::EBUSY, || unsafe { verbs::ibv_dealloc_pd(pd) });
    refused("the CQ", libc::EBUSY, || unsafe { verbs::ibv_destroy_cq(cq) });
    assert_eq!(query_qp(qp), 0);
    assert_eq!(unsafe { verbs::ibv_destroy_qp(qp.cast()) }, 0);
    assert_eq!(unsafe { (verbs::ibv_destroy_cq(cq), verbs::ibv_dealloc_pd(pd)) }, (0, 0));
}
