//! Memory windows with the RC service: binds in send queue order, the access that their keys give,
//! local and remote invalidation, and regions that cannot be deregistered while windows are bound
//! to them.

use feroce_engine::device::{Buffer, ConnectOptions, PostError};
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{
    CompletionOpcode, Data, Extra, LocalOp, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_tests::drain;
use feroce_tests::pair::Pair;
use feroce_wire::Key;

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const OK: Status = Status::Success;
const RW: Access = Access::REMOTE;

/// Returns a bind of `length` bytes from `offset` of `buffer` to the key `rkey`.
fn bind(rkey: Key, buffer: &Buffer, offset: u64, length: u64, access: Access) -> WindowBind {
    let region = buffer.region();
    WindowBind { rkey, lkey: region.lkey(), addr: region.addr() + offset, length, access }
}

fn write_access() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Posts a local request at end 1, which owns the memory.
fn post_local(pair: &mut Pair, wr_id: u64, op: LocalOp, flags: SendFlags) {
    let data = Data::Sges(&[]);
    let request = SendRequest { wr_id, op: SendOp::Local(op), data, flags };
    pair.qps[1].post_send(&request).expect("room");
}

fn at(addr: u64, rkey: Key) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

/// Writes `len` bytes from end 0 with `rkey`; returns the completion status.
fn write(pair: &mut Pair, addr: u64, rkey: Key, len: u32) -> Status {
    pair.post(99, SendOp::Write(at(addr, rkey)), len);
    pair.run(20);
    pair.done(0)[0].1
}

#[test]
fn a_type_1_window_gives_access_to_part_of_a_region_and_can_be_rebound() {
    let mut pair = Pair::default();
    let mut window = pair.pds[1].alloc_mw(WindowType::One).unwrap();
    let closed = window.rkey();
    let request = bind(closed, &pair.buffers[1], 64, 32, write_access());
    let rkey = pair.qps[1].bind_mw(1, &mut window, &request, SIGNALED).unwrap();
    assert!(rkey == window.rkey() && rkey != closed && rkey.index() == closed.index());
    pair.run(10);
    let done = drain(&pair.cqs[1]);
    assert_eq!((done[0].wr_id, done[0].opcode), (1, CompletionOpcode::BindWindow));
    assert_eq!((done[0].status, done.len()), (OK, 1));
    assert_eq!(pair.packets(), Vec::<String>::new(), "nothing is sent");
    let base = pair.buffers[1].region().addr();
    assert_eq!(write(&mut pair, base + 64, rkey, 32), OK);
    // The window is bound elsewhere; the old key and range are invalid.
    let request = bind(rkey, &pair.buffers[1], 128, 8, write_access());
    let moved = pair.qps[1].bind_mw(2, &mut window, &request, SIGNALED).unwrap();
    pair.run(10);
    assert_eq!(write(&mut pair, base + 128, moved, 8), OK);
    assert_eq!(write(&mut pair, base + 64, rkey, 8), Status::RemoteAccess);
}

/// Accesses at the edges of a window, and with a right that the window does not give.
#[test]
fn access_outside_the_window_or_its_rights_is_refused() {
    let cases: [(u64, u32, Access, Status); 6] = [
        (64, 32, RW, OK),
        (63, 4, RW, Status::RemoteAccess),
        (64, 33, RW, Status::RemoteAccess),
        (95, 2, RW, Status::RemoteAccess),
        (96, 4, RW, Status::RemoteAccess),
        (64, 4, Access::REMOTE_READ, Status::RemoteAccess),
    ];
    for window_type in [WindowType::One, WindowType::Two] {
        for (offset, len, access, expected) in cases {
            let mut pair = Pair::default();
            let mut window = pair.pds[1].alloc_mw(window_type).unwrap();
            let access = access.without(Access::FLUSH_PERSISTENT);
            let request = bind(window.rkey_with(7), &pair.buffers[1], 64, 32, access);
            let rkey = match window_type {
                WindowType::One => pair.qps[1].bind_mw(1, &mut window, &request, SIGNALED).unwrap(),
                WindowType::Two => {
                    post_local(&mut pair, 1, LocalOp::Bind(request), SIGNALED);
                    request.rkey
                }
            };
            pair.run(5);
            assert_eq!(pair.done(1), [(1, OK)]);
            let addr = pair.buffers[1].region().addr() + offset;
            let ended = write(&mut pair, addr, rkey, len);
            assert_eq!(ended, expected, "{window_type:?} {offset}+{len} {access:?}");
        }
    }
}

#[test]
fn a_type_2_window_may_be_zero_based() {
    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let access = write_access() | Access::ZERO_BASED;
    let request = bind(window.rkey_with(0xab), &pair.buffers[1], 64, 32, access);
    post_local(&mut pair, 1, LocalOp::Bind(request), SIGNALED);
    pair.run(5);
    pair.buffers[0].write(0, &[9; 32]);
    assert_eq!(write(&mut pair, 0, request.rkey, 32), OK);
    let mut bytes = [0; 34];
    pair.buffers[1].read(63, &mut bytes);
    assert_eq!((bytes[0], bytes[1], bytes[32], bytes[33]), (0, 9, 9, 0));
    assert_eq!(write(&mut pair, 31, request.rkey, 2), Status::RemoteAccess);
}

/// A type 2 window is valid only for the QP that it was bound on, a type 1 window for all QPs of
/// the protection domain. Neither key is an L_Key.
#[test]
fn type_1_windows_belong_to_the_domain_and_type_2_windows_to_the_qp() {
    for (window_type, expected) in [(WindowType::One, OK), (WindowType::Two, Status::RemoteAccess)]
    {
        let mut pair = Pair::default();
        let psns = [feroce_wire::Psn::new(1), feroce_wire::Psn::new(2)];
        let inits = [0, 1].map(|end| feroce_engine::device::QpInit::new(&pair.cqs[end]));
        let [pd_0, pd_1] = &pair.pds;
        let [init_0, init_1] = &inits;
        let options = ConnectOptions::default();
        let mut other = pair.rig.connect([pd_0, pd_1], [init_0, init_1], psns, &options);
        let mut window = pair.pds[1].alloc_mw(window_type).unwrap();
        let request = bind(window.rkey_with(7), &pair.buffers[1], 0, 64, write_access());
        let rkey = match window_type {
            WindowType::One => other[1].bind_mw(1, &mut window, &request, SIGNALED).unwrap(),
            WindowType::Two => {
                let op = SendOp::Local(LocalOp::Bind(request));
                let data = Data::Sges(&[]);
                other[1].post_send(&SendRequest { wr_id: 1, op, data, flags: SIGNALED }).unwrap();
                request.rkey
            }
        };
        pair.run(5);
        assert_eq!(pair.done(1), [(1, OK)]);
        let addr = pair.buffers[1].region().addr();
        assert_eq!(write(&mut pair, addr, rkey, 4), expected);
        let sge = feroce_engine::verbs::Sge { addr, length: 4, lkey: rkey };
        let (op, data) = (SendOp::Send, Data::Sges(std::slice::from_ref(&sge)));
        other[1].post_send(&SendRequest { wr_id: 2, op, data, flags: SIGNALED }).unwrap();
        pair.run(5);
        assert_eq!(pair.done(1).last(), Some(&(2, Status::LocalProtection)));
    }
}

/// Invalid binds complete with a memory management operation error, whatever is wrong with them.
/// C10-72, C10-73, C10-74, C10-75, o10-36.2.2, o10-37.2.40.
#[test]
fn invalid_binds_are_refused() {
    let mut count = 0;
    for number in 0.. {
        let mut pair = Pair::default();
        let region = |access| pair.pds[1].alloc_buffer(64, access).unwrap();
        let no_bind = region(Access::LOCAL_WRITE);
        let read_only = region(Access::MW_BIND);
        let other_pd = pair.rig.devices[1].alloc_pd();
        let foreign = other_pd.alloc_buffer(64, Access::ALL).unwrap();
        let windows = [WindowType::One, WindowType::Two].map(|t| pair.pds[1].alloc_mw(t).unwrap());
        let other_window = other_pd.alloc_mw(WindowType::Two).unwrap();
        let [one, two] = windows.each_ref().map(|window| window.rkey_with(1));
        let good = &pair.buffers[1];
        let zero = Access::ZERO_BASED | Access::REMOTE_READ;
        let read = Access::REMOTE_READ;
        let early = good.region().addr() - 1;
        let cases = [
            ("no right to bind", bind(two, &no_bind, 0, 8, read)),
            ("read-only", bind(two, &read_only, 0, 8, Access::REMOTE_WRITE)),
            ("atomics", bind(two, &read_only, 0, 8, Access::REMOTE_ATOMIC)),
            ("flush", bind(two, &read_only, 0, 8, Access::FLUSH_GLOBAL)),
            ("zero-based type 1", bind(one, good, 0, 8, zero)),
            ("no bytes of type 2", bind(two, good, 0, 0, read)),
            ("local rights", bind(two, good, 0, 8, Access::LOCAL_WRITE)),
            ("not a window", bind(good.region().rkey(), good, 0, 8, read)),
            ("window of another domain", bind(other_window.rkey(), good, 0, 8, read)),
            ("region of another domain", bind(two, &foreign, 0, 8, read)),
            ("too long", bind(two, good, 65_530, 7, read)),
            ("too early", WindowBind { addr: early, ..bind(two, good, 0, 8, read) }),
            ("wraps", bind(two, good, 8, u64::MAX, read)),
            ("unknown region", WindowBind { lkey: Key(9), ..bind(two, good, 0, 8, read) }),
        ];
        let Some((what, request)) = cases.get(number) else { break };
        let request = *request;
        // A valid request first: errors complete in order.
        pair.qps[1]
            .post_send(&SendRequest {
                wr_id: 1,
                op: SendOp::Write(at(0, Key(0))),
                data: Data::Sges(&[]),
                flags: SIGNALED,
            })
            .unwrap();
        post_local(&mut pair, 2, LocalOp::Bind(request), SendFlags::NONE);
        pair.run(20);
        assert_eq!(pair.done(1), [(1, OK), (2, Status::WindowBind)], "{what}");
        assert_eq!(pair.state(1), QpState::Err);
        count += 1;
    }
    assert_eq!(count, 14);
}

/// A type 2 window must be invalidated, locally or by the peer, before the next bind.
/// o10-37.2.30.
#[test]
fn a_type_2_window_is_invalidated_before_it_is_bound_again() {
    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let base = pair.buffers[1].region().addr();
    for (round, by_peer) in [(1u8, false), (2, true), (3, false)] {
        let request = bind(window.rkey_with(round), &pair.buffers[1], 0, 64, write_access());
        post_local(&mut pair, 1, LocalOp::Bind(request), SIGNALED);
        pair.run(5);
        assert_eq!(pair.done(1), [(1, OK)]);
        assert_eq!(write(&mut pair, base, request.rkey, 4), OK);
        if by_peer {
            pair.post_recv(7, 16);
            pair.post(1, SendOp::SendInvalidate(request.rkey), 4);
            pair.run(10);
            let received = drain(&pair.cqs[1]);
            assert_eq!(received[0].extra, Extra::Invalidated(request.rkey));
            assert_eq!(pair.done(0), [(1, OK)]);
        } else {
            post_local(&mut pair, 2, LocalOp::Invalidate(request.rkey), SIGNALED);
            pair.run(5);
            let done = drain(&pair.cqs[1]);
            assert_eq!((done[0].opcode, done[0].status), (CompletionOpcode::LocalInvalidate, OK));
        }
    }
    let rkey = window.rkey_with(3);
    assert_eq!(write(&mut pair, base, rkey, 4), Status::RemoteAccess);
}

/// o10-37.2.30.
#[test]
fn binding_a_bound_type_2_window_fails() {
    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    for variant in [1, 2] {
        let request = bind(window.rkey_with(variant), &pair.buffers[1], 0, 64, write_access());
        post_local(&mut pair, u64::from(variant), LocalOp::Bind(request), SIGNALED);
    }
    pair.run(5);
    assert_eq!(pair.done(1), [(1, OK), (2, Status::WindowBind)]);
}

/// Invalidation of a type 1 window, of an unbound window, and of a region without the right.
#[test]
fn invalid_keys_cannot_be_invalidated() {
    for number in 0..3 {
        let mut pair = Pair::default();
        let mut one = pair.pds[1].alloc_mw(WindowType::One).unwrap();
        let two = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
        let request = bind(one.rkey(), &pair.buffers[1], 0, 64, write_access());
        let bound = pair.qps[1].bind_mw(1, &mut one, &request, SIGNALED).unwrap();
        let plain = pair.pds[1].alloc_buffer(64, Access::LOCAL_WRITE).unwrap();
        let key = [bound, two.rkey(), plain.region().rkey()][number];
        post_local(&mut pair, 2, LocalOp::Invalidate(key), SIGNALED);
        pair.run(5);
        assert_eq!(pair.done(1), [(1, OK), (2, Status::WindowBind)], "case {number}");
    }
    let mut pair = Pair::default();
    let mut one = pair.pds[1].alloc_mw(WindowType::One).unwrap();
    let request = bind(one.rkey(), &pair.buffers[1], 0, 64, write_access());
    let bound = pair.qps[1].bind_mw(1, &mut one, &request, SIGNALED).unwrap();
    pair.post_recv(7, 16);
    pair.run(5);
    pair.post(1, SendOp::SendInvalidate(bound), 4);
    pair.run(10);
    let refused = [(1, OK), (7, Status::RemoteInvalidRequest)];
    assert_eq!(pair.done(1), refused, "a peer cannot invalidate type 1");
}

/// Local requests are executed and complete in queue order, and are not executed again when packets
/// around them are lost and retransmitted.
#[test]
fn local_requests_are_executed_once_and_in_order() {
    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let request = bind(window.rkey_with(5), &pair.buffers[1], 0, 64, write_access());
    let target = RemoteAddr {
        addr: pair.buffers[0].region().addr() + 4096,
        rkey: pair.buffers[0].region().rkey(),
    };
    // End 1 sends the PSNs 5000 (lost once) and 5001. A bind is between them; an invalidate and
    // another bind follow.
    pair.lose(1, 5000, 1);
    let again = WindowBind { rkey: window.rkey_with(6), ..request };
    let ops = [
        SendOp::Write(target),
        SendOp::Local(LocalOp::Bind(request)),
        SendOp::Write(target),
        SendOp::Local(LocalOp::Invalidate(request.rkey)),
        SendOp::Local(LocalOp::Bind(again)),
    ];
    for (wr_id, op) in (1..).zip(ops) {
        let sges = [pair.buffers[1].region().sge(0, 4)];
        let data = Data::Sges(if matches!(op, SendOp::Local(_)) { &[] } else { &sges });
        pair.qps[1].post_send(&SendRequest { wr_id, op, data, flags: SIGNALED }).unwrap();
    }
    pair.run(1);
    assert_eq!(pair.done(1), [], "waits for an earlier request that is not acknowledged");
    pair.run(20_000);
    let all: Vec<_> = (1..=5).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(pair.done(1), all);
    let addr = pair.buffers[1].region().addr();
    assert_eq!(write(&mut pair, addr, again.rkey, 4), OK);
}

/// A fenced invalidate waits for READs; one without a fence does not.
#[test]
fn a_fence_delays_local_requests() {
    for (flags, fenced) in [(SIGNALED, false), (SIGNALED | SendFlags::FENCE, true)] {
        let mut pair = Pair::default();
        let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
        let request = bind(window.rkey_with(5), &pair.buffers[1], 0, 64, write_access());
        post_local(&mut pair, 1, LocalOp::Bind(request), SendFlags::NONE);
        pair.run(1);
        let region = pair.buffers[0].region();
        let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        let sges = [pair.buffers[1].region().sge(1024, 8)];
        let (op, data) = (SendOp::Read(remote), Data::Sges(&sges));
        pair.qps[1].post_send(&SendRequest { wr_id: 2, op, data, flags: SIGNALED }).unwrap();
        post_local(&mut pair, 3, LocalOp::Invalidate(request.rkey), flags);
        pair.rig.settle(); // The READ was sent, its response has not arrived.
        let addr = pair.buffers[1].region().addr();
        pair.post(99, SendOp::Write(at(addr, request.rkey)), 4);
        pair.run(20);
        // The WRITE arrives 1 us after the READ, together with the READ's response: before the
        // fence is passed.
        let expected = if fenced { OK } else { Status::RemoteAccess };
        assert_eq!(pair.done(0), [(99, expected)], "fenced: {fenced}");
    }
}

#[test]
fn a_region_cannot_be_deregistered_before_its_windows() {
    let mut pair = Pair::default();
    let len = 4096;
    let dm = pair.rig.devices[1].alloc_dm(len, 8).unwrap();
    let access = Access::MW_BIND | Access::LOCAL_WRITE;
    let region = pair.pds[1].reg_dm_mr(&dm, 0, len, access).unwrap();
    let mut window = pair.pds[1].alloc_mw(WindowType::One).unwrap();
    let (lkey, rkey) = (region.lkey(), window.rkey());
    let request = WindowBind { rkey, lkey, addr: 8, length: 64, access: write_access() };
    let rkey = pair.qps[1].bind_mw(1, &mut window, &request, SIGNALED).unwrap();
    pair.run(5);
    let region = region.deregister().unwrap_err();
    assert_eq!(write(&mut pair, 8, rkey, 64), OK, "a window into device memory");
    // A bind without bytes unbinds the window.
    let none = WindowBind { length: 0, ..request };
    pair.qps[1].bind_mw(2, &mut window, &none, SIGNALED).unwrap();
    pair.run(5);
    assert_eq!(pair.done(1), [(1, OK), (2, OK)]);
    assert!(region.deregister().is_ok());
}

/// A region that is dropped invalidates its windows; a destroyed QP invalidates the type 2 windows
/// bound on it.
#[test]
fn windows_are_invalidated_with_their_region_or_qp() {
    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let buffer = pair.pds[1].alloc_buffer(64, Access::ALL).unwrap();
    let addr = buffer.region().addr();
    let request = bind(window.rkey_with(5), &buffer, 0, 64, write_access());
    post_local(&mut pair, 1, LocalOp::Bind(request), SIGNALED);
    pair.run(5);
    assert_eq!(write(&mut pair, addr, request.rkey, 4), OK);
    drop(buffer);
    assert_eq!(write(&mut pair, addr, request.rkey, 4), Status::RemoteAccess);

    let mut pair = Pair::default();
    let window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let dm = pair.rig.devices[1].alloc_dm(64, 8).unwrap();
    let region = pair.pds[1].reg_dm_mr(&dm, 0, 64, Access::ALL).unwrap();
    let (rkey, lkey, access) = (window.rkey_with(5), region.lkey(), write_access());
    let request = WindowBind { rkey, lkey, addr: 0, length: 64, access };
    post_local(&mut pair, 1, LocalOp::Bind(request), SIGNALED);
    pair.run(5);
    assert_eq!(pair.done(1), [(1, OK)]);
    let region = region.deregister().unwrap_err();
    let spare = pair.pds[1].create_qp(&feroce_engine::device::QpInit::new(&pair.cqs[1])).unwrap();
    drop(std::mem::replace(&mut pair.qps[1], spare));
    assert!(region.deregister().is_ok());
}

#[test]
fn bind_mw_refuses_a_type_2_window() {
    let mut pair = Pair::default();
    let mut window = pair.pds[1].alloc_mw(WindowType::Two).unwrap();
    let request = bind(window.rkey(), &pair.buffers[1], 0, 64, write_access());
    let refused = pair.qps[1].bind_mw(1, &mut window, &request, SIGNALED);
    assert_eq!(refused, Err(PostError::WindowType));
}
