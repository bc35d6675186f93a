//! Wrong handles of the RDMA CM: identifiers, event channels and events that are destroyed, null,
//! or of another kind are refused and do no harm. Without root, the test prints a message and
//! passes.

#[path = "../../libibverbs/tests/interface/mod.rs"]
mod interface;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use feroce_librdmacm as _; // links the functions declared below
use feroce_verbs_abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_USER, RDMA_PS_TCP, ibv_pd, ibv_qp_init_attr, rdma_addrinfo,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use interface::{errno, fixture, set_errno, verbs, zeroed};

unsafe extern "C" {
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        space: c_uint,
    ) -> c_int;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int;
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event)
    -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: c_uint, status: c_int, arg: u64) -> c_int;
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
}

/// Checks that the call returns -1 and sets `errno` to `code`.
fn refused(what: &str, code: c_int, call: impl FnOnce() -> c_int) {
    set_errno(0);
    let result = call();
    assert_eq!((result, errno()), (-1, code), "{what}: result and errno");
}

/// Calls with the identifier `id`, each of which must be refused.
fn uses_are_refused(id: *mut rdma_cm_id, why: &str) {
    type Call = unsafe fn(*mut rdma_cm_id) -> c_int;
    // SAFETY: a function that refuses the identifier reads none of the other arguments.
    let calls: [(&str, Call); 8] = unsafe {
        [
            ("rdma_listen", |id| rdma_listen(id, 1)),
            ("rdma_bind_addr", |id| {
                let mut address: libc::sockaddr = std::mem::zeroed();
                address.sa_family = 2; // AF_INET
                rdma_bind_addr(id, &raw mut address)
            }),
            ("rdma_connect", |id| rdma_connect(id, null_mut())),
            ("rdma_accept", |id| rdma_accept(id, null_mut())),
            ("rdma_reject", |id| rdma_reject(id, null_mut(), 0)),
            ("rdma_disconnect", |id| rdma_disconnect(id)),
            ("rdma_resolve_route", |id| rdma_resolve_route(id, 1)),
            ("rdma_migrate_id", |id| rdma_migrate_id(id, null_mut())),
        ]
    };
    for (name, call) in calls {
        // SAFETY: as above.
        refused(&format!("{name} with {why}"), libc::EINVAL, || unsafe { call(id) });
    }
    // SAFETY: as above.
    assert_eq!(unsafe { rdma_get_src_port(id) }, 0);
}

#[test]
fn wrong_identifiers_channels_and_events_are_refused() {
    if fixture().is_none() {
        return;
    }
    // SAFETY: the arguments are valid, or wrong in the way that the test is about.
    unsafe {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        refused("an identifier as a channel", libc::EINVAL, || {
            let mut event = null_mut();
            rdma_get_cm_event(id.cast(), &raw mut event)
        });
        refused("a channel as an event", libc::EINVAL, || rdma_ack_cm_event(channel.cast()));
        uses_are_refused(channel.cast(), "a channel");
        uses_are_refused(null_mut(), "null");
        assert_eq!(rdma_destroy_id(id), 0);
        refused("destroyed twice", libc::ENOENT, || rdma_destroy_id(id));
        uses_are_refused(id, "a destroyed identifier");
        rdma_destroy_event_channel(channel);
        rdma_destroy_event_channel(channel);
        refused("a destroyed channel", libc::EINVAL, || {
            let mut event = null_mut();
            rdma_get_cm_event(channel, &raw mut event)
        });
        refused("a destroyed channel", libc::EINVAL, || {
            rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP)
        });
    }
}

/// A program that destroys the QP of an identifier as a verbs object, and then disconnects: the
/// identifier still names the QP.
#[test]
fn an_identifier_whose_qp_was_destroyed_as_a_verbs_object_is_refused() {
    if fixture().is_none() {
        return;
    }
    // SAFETY: the arguments are valid, or wrong in the way that the test is about.
    unsafe {
        let channel = rdma_create_event_channel();
        let id = bound_with_qp(channel);
        let qp = (*id).qp;
        assert_eq!(verbs::ibv_destroy_qp(qp), 0);
        refused("its QP is gone", libc::EINVAL, || rdma_disconnect(id));
        rdma_destroy_qp(id);
        assert_eq!(rdma_destroy_id(id), 0);
        rdma_destroy_event_channel(channel);
    }
}

/// An identifier that is bound to the device of the fixture and has a QP.
///
/// # Safety
/// `channel` is live.
unsafe fn bound_with_qp(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    // SAFETY: the arguments are valid.
    unsafe {
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        let mut address: libc::sockaddr_in = zeroed();
        address.sin_family = 2; // AF_INET
        address.sin_addr.s_addr = u32::from_ne_bytes([10, 91, 0, 1]);
        assert_eq!(rdma_bind_addr(id, (&raw mut address).cast()), 0, "errno {}", errno());
        let mut init: ibv_qp_init_attr = zeroed();
        (init.qp_type, init.cap.max_send_wr, init.cap.max_recv_wr) = (IBV_QPT_RC, 1, 1);
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut init), 0, "errno {}", errno());
        id
    }
}

/// `rdma_destroy_id` waits for the acknowledgement of events. The thread that handles the event
/// destroys the QP before it acknowledges.
#[test]
fn a_qp_is_destroyed_while_another_thread_destroys_the_identifier() {
    if fixture().is_none() {
        return;
    }
    // SAFETY: the arguments are valid; the identifier exists until its event is acknowledged.
    unsafe {
        let channel = rdma_create_event_channel();
        let mut event = null_mut();
        let id = bound_with_qp(channel);
        let (qp, cq) = ((*id).qp, (*id).send_cq);
        assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 1), 0);
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
        let address = id.expose_provenance();
        let destroying = std::thread::spawn(move || {
            rdma_destroy_id(std::ptr::with_exposed_provenance_mut(address))
        });
        // ENOENT (nothing was resolved) until the other thread has begun
        let mut list = null_mut();
        while rdma_query_addrinfo(id, &raw mut list) == -1 && errno() == libc::ENOENT {
            std::thread::yield_now();
        }
        rdma_destroy_qp(id);
        let (mut attr, mut init) = (zeroed(), zeroed());
        assert_eq!(verbs::ibv_query_qp(qp, &raw mut attr, 1, &raw mut init), libc::EINVAL);
        assert_eq!(verbs::ibv_destroy_cq(cq), libc::ENOENT, "destroyed with the QP");
        assert!(!destroying.is_finished());
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!(destroying.join().expect("no panic"), 0);
        rdma_destroy_event_channel(channel);
    }
}
