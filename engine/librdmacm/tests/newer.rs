//! Functions that librdmacm got after release 44: names resolved with an event, and events that
//! programs write. Without root, the test prints a message and passes.

#[path = "../../libibverbs/tests/interface/mod.rs"]
mod interface;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use feroce_librdmacm as _; // links the functions declared below
use feroce_verbs_abi::{
    RAI_SA, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_USER,
    RDMA_PS_TCP, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use interface::{errno, fixture, zeroed};

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
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event)
    -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    fn rdma_freeaddrinfo(list: *mut rdma_addrinfo);
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> c_int;
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: c_uint, status: c_int, arg: u64) -> c_int;
}

#[test]
fn names_are_resolved_with_an_event_and_programs_write_events() {
    if fixture().is_none() {
        return;
    }
    // SAFETY: the arguments are valid; events are read before they are acknowledged.
    unsafe {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        let next = || {
            let mut event = null_mut();
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            let read = *event;
            assert_eq!(rdma_ack_cm_event(event), 0);
            assert_eq!(read.id, id);
            read
        };
        assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 7, u64::MAX - 1), 0);
        let event = next();
        assert_eq!((event.event, event.status), (RDMA_CM_EVENT_USER, 7));
        assert_eq!(event.param.arg, u64::MAX - 1);
        assert_eq!(rdma_write_cm_event(id, RDMA_CM_EVENT_ADDR_ERROR, 0, 0), -1);
        assert_eq!(errno(), libc::EINVAL);

        let mut list = null_mut();
        assert_eq!((rdma_query_addrinfo(id, &raw mut list), errno()), (-1, libc::ENOENT));
        let (node, service) = (c"10.91.0.1".as_ptr(), c"7174".as_ptr());
        assert_eq!(rdma_resolve_addrinfo(id, node, service, null()), 0);
        assert_eq!((rdma_resolve_addrinfo(id, node, service, null()), errno()), (-1, libc::EBUSY));
        assert_eq!(next().event, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        assert_eq!(rdma_query_addrinfo(id, &raw mut list), 0);
        assert_eq!((*list).ai_family, libc::AF_INET);
        rdma_freeaddrinfo(list);
        assert_eq!((rdma_query_addrinfo(id, &raw mut list), errno()), (-1, libc::ENOENT));

        let no_name = c"no name".as_ptr();
        assert_eq!(
            (rdma_resolve_addrinfo(id, no_name, null(), null()), errno()),
            (-1, libc::ENOENT)
        );
        let mut hints: rdma_addrinfo = zeroed();
        hints.ai_flags = RAI_SA;
        let hints = &raw const hints;
        assert_eq!(
            (rdma_resolve_addrinfo(id, null(), service, hints), errno()),
            (-1, libc::ENOTSUP)
        );
        assert_eq!(rdma_resolve_addrinfo(id, node, service, null()), 0);
        assert_eq!(rdma_destroy_id(id), 0); // frees the list
        rdma_destroy_event_channel(channel);
    }
}

/// If several threads resolve a name for one identifier, only one of them succeeds.
#[test]
fn a_second_name_is_refused_while_the_first_is_being_resolved() {
    const THREADS: usize = 4;
    if fixture().is_none() {
        return;
    }
    // SAFETY: the arguments are valid; the identifier outlives the threads.
    unsafe {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP), 0);
        let address = id.expose_provenance();
        for _ in 0..50 {
            let start = std::sync::Barrier::new(THREADS);
            let resolve = || {
                fixture().expect("root");
                let id = std::ptr::with_exposed_provenance_mut(address);
                start.wait();
                let name = c"10.91.0.1".as_ptr();
                if rdma_resolve_addrinfo(id, name, null(), null()) == 0 { 0 } else { errno() }
            };
            let mut codes: Vec<c_int> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(resolve)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            codes.sort_unstable();
            assert_eq!(codes, [0, libc::EBUSY, libc::EBUSY, libc::EBUSY]);
            let (mut event, mut list) = (null_mut(), null_mut());
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            assert_eq!(rdma_ack_cm_event(event), 0);
            assert_eq!(rdma_query_addrinfo(id, &raw mut list), 0);
            rdma_freeaddrinfo(list);
        }
        assert_eq!(rdma_destroy_id(id), 0);
        rdma_destroy_event_channel(channel);
    }
}
