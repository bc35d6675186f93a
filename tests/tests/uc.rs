//! The UC service: nothing is acknowledged, a message with a lost packet is dropped whole, and an
//! error at the sender stops its send queue only.

use feroce_engine::counters::Counter;
use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::{
    AsyncEvent, CompletionOpcode, Data, Extra, RecvRequest, RemoteAddr, SendFlags, SendOp,
    SendRequest, Sge, Status,
};
use feroce_tests::drain;
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_wire::{Key, Opcode};

const FLUSHED: Status = Status::WorkRequestFlushed;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn pair() -> Pair {
    Pair::new(&PairSetup { service: Service::Uc, ..PairSetup::default() })
}

fn to(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

#[test]
fn messages_arrive_and_nothing_is_acknowledged() {
    let mut pair = pair();
    let bytes: Vec<u8> = (0..600u32).map(|n| n.to_le_bytes()[0]).collect();
    pair.buffers[0].write(0, &bytes);
    (7..10).for_each(|wr_id| pair.post_recv(wr_id, 1000));
    pair.post(1, SendOp::Send, 600);
    pair.post(2, SendOp::SendImm(0xabcd), 4);
    pair.post_flagged(3, SendOp::Write(pair.remote(0)), 600, SendFlags::NONE);
    pair.post(4, SendOp::WriteImm(pair.remote(2000), 5), 300);
    pair.rig.devices[0].turn(pair.rig.now);
    let sent = [(1, Status::Success), (2, Status::Success), (4, Status::Success)];
    assert_eq!(pair.done(0), sent, "complete as soon as they were sent");
    pair.run(20);
    let packets = [
        "> UC Send First 100",
        "> UC Send Middle 101",
        "> UC Send Last 102",
        "> UC Send Only Immediate 103",
        "> UC RDMA Write First 104 at 0 len 600",
        "> UC RDMA Write Middle 105",
        "> UC RDMA Write Last 106",
        "> UC RDMA Write First 107 at 2000 len 300",
        "> UC RDMA Write Last Immediate 108",
    ];
    assert_eq!(pair.packets(), packets);
    let done = drain(&pair.cqs[1]);
    let shown = |at: usize| (done[at].wr_id, done[at].opcode, done[at].byte_len, done[at].extra);
    assert_eq!(shown(0), (7, CompletionOpcode::Receive, 600, Extra::None));
    assert_eq!(shown(1), (8, CompletionOpcode::Receive, 4, Extra::Immediate(0xabcd)));
    let with_immediate = CompletionOpcode::ReceiveRdmaWithImmediate;
    assert_eq!(shown(2), (9, with_immediate, 300, Extra::Immediate(5)));
    assert_eq!(done.len(), 3);
    for (at, len) in [(0, 600), (2000, 300)] {
        let mut written = vec![0; len];
        pair.buffers[1].read(at, &mut written);
        assert_eq!(written, bytes[..len], "at {at}");
    }
    assert_eq!(pair.counters(1), [(Counter::RxWriteRequests, 5)]);
    assert_eq!(pair.rig.next_event(), None, "no timer runs");
}

/// Whichever packet is lost, the message is dropped, its receive is used by the next message, and
/// neither program is notified.
#[test]
fn a_lost_packet_drops_its_message() {
    let rows: [(u32, &[(Counter, u64)]); 3] = [
        (100, &[(Counter::RxDiscards, 2), (Counter::OutOfSequence, 1)]),
        (101, &[(Counter::RxDiscards, 1), (Counter::OutOfSequence, 1)]),
        (102, &[(Counter::OutOfSequence, 1)]),
    ];
    for (psn, counters) in rows {
        let mut pair = pair();
        pair.lose(0, psn, 1);
        pair.post_recv(7, 1000);
        pair.post(1, SendOp::Send, 600);
        pair.post(2, SendOp::SendImm(2), 10);
        pair.run(20);
        assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)], "{psn}");
        let done = drain(&pair.cqs[1]);
        assert_eq!(done.len(), 1, "{psn}");
        assert_eq!((done[0].byte_len, done[0].extra), (10, Extra::Immediate(2)), "{psn}");
        assert_eq!(pair.counters(1), counters, "{psn}");
        assert!(pair.packets().iter().all(|line| line.starts_with('>')), "{psn}");
    }
}

/// A WRITE whose last packets are lost has written the first ones; a WRITE whose first packet is
/// lost writes nothing.
#[test]
fn a_write_stops_at_a_lost_packet() {
    for (psn, written) in [(100, 0), (101, 256), (102, 512)] {
        let mut pair = pair();
        pair.buffers[0].write(0, &[0xee; 600]);
        pair.lose(0, psn, 1);
        pair.post_recv(7, 0);
        pair.post(1, SendOp::WriteImm(pair.remote(0), 1), 600);
        pair.run(20);
        let mut memory = vec![0; 600];
        pair.buffers[1].read(0, &mut memory);
        let expected: Vec<u8> = (0..600).map(|at| if at < written { 0xee } else { 0 }).collect();
        assert!(memory == expected, "without {psn}");
        assert_eq!(pair.done(1), [], "without {psn}");
    }
}

#[test]
fn a_new_message_replaces_an_incomplete_one() {
    let mut pair = pair();
    pair.post_recv(7, 1000);
    pair.inject(&Crafted::new(Opcode::UC_SEND_FIRST, 100, &[1; 256]));
    pair.inject(&Crafted::new(Opcode::UC_SEND_ONLY, 101, &[2; 8]));
    pair.run(10);
    let done = drain(&pair.cqs[1]);
    assert_eq!((done.len(), done[0].byte_len), (1, 8));
    let mut bytes = [0; 9];
    pair.buffers[1].read(1 << 15, &mut bytes);
    assert_eq!(bytes, [2, 2, 2, 2, 2, 2, 2, 2, 1]);
}

#[test]
fn requests_that_rc_refuses_are_dropped() {
    let bad =
        |pair: &Pair| RemoteAddr { rkey: Key(pair.remote(0).rkey.value() ^ 1), ..pair.remote(0) };
    // What is sent, and the expected counters. Packets after the first are discarded.
    type Case = (&'static str, fn(&Pair, RemoteAddr) -> (SendOp, u32), &'static [(Counter, u64)]);
    let cases: [Case; 3] = [
        (
            "no receive",
            |_, _| (SendOp::Send, 600),
            &[(Counter::RxDiscards, 2), (Counter::OutOfBuffer, 1)],
        ),
        (
            "wrong key",
            |_, bad| (SendOp::Write(bad), 600),
            &[(Counter::RxDiscards, 2), (Counter::RespRemoteAccessErrors, 1)],
        ),
        (
            "immediate without receive",
            |pair, _| (SendOp::WriteImm(pair.remote(0), 1), 100),
            &[(Counter::OutOfBuffer, 1)],
        ),
    ];
    for (what, request, counters) in cases {
        let mut pair = pair();
        let (op, len) = request(&pair, bad(&pair));
        pair.post(1, op, len);
        pair.run(20);
        assert_eq!(pair.done(0), [(1, Status::Success)], "{what}");
        assert_eq!(pair.counters(1), counters, "{what}");
        assert_eq!((pair.state(0), pair.state(1)), (QpState::Rts, QpState::Rts), "{what}");
        pair.post_recv(7, 100);
        pair.post(2, SendOp::Send, 10);
        pair.run(20);
        assert_eq!(pair.done(1), [(7, Status::Success)], "{what}: the QP still works");
        assert!(pair.packets().iter().all(|line| line.starts_with('>')), "{what}");
    }
}

/// A requester that tries keys is not told which are wrong, but it cannot try for ever.
#[test]
fn too_many_wrong_keys_end_the_connection() {
    const TRIES: u64 = 256;
    let mut pair = pair();
    let right = pair.remote(0);
    let (key, other) = (right.rkey.value(), right.addr ^ 1 << 40);
    for n in 1..TRIES {
        // A right key with an address outside its region is a wrong try as well.
        let wrong = match n % 4 {
            0 => RemoteAddr { addr: other, ..right },
            _ => RemoteAddr { rkey: Key(key ^ u32::try_from(n).unwrap() << 8), ..right },
        };
        pair.post(n, SendOp::Write(wrong), 600);
        pair.run(20);
        assert_eq!(pair.state(1), QpState::Rts, "after {n} wrong keys");
    }
    assert_eq!(pair.events(1), []);
    pair.post(0, SendOp::Write(RemoteAddr { rkey: Key(key ^ 1), ..right }), 600);
    pair.run(20);
    assert_eq!(pair.events(1), [AsyncEvent::QpAccessError(pair.qps[1].qpn())]);
    assert_eq!((pair.state(0), pair.state(1)), (QpState::Rts, QpState::Err));
    pair.buffers[1].write(0, &[9]);
    pair.post(1, SendOp::Write(right), 600);
    pair.run(20);
    let mut first = [0];
    pair.buffers[1].read(0, &mut first);
    assert_eq!(first, [9], "the right key comes too late");
}

#[test]
fn a_message_longer_than_its_receive_is_dropped() {
    let mut pair = pair();
    pair.post_recv(7, 300);
    pair.post(1, SendOp::Send, 600);
    pair.post(2, SendOp::Send, 200);
    pair.run(20);
    assert_eq!(pair.done(1), [(7, Status::Success)], "the receive serves the next message");
    let counters = [(Counter::RxDiscards, 1), (Counter::RespLocalLengthError, 1)];
    assert_eq!(pair.counters(1), counters);
}

#[test]
fn a_receive_with_invalid_memory_moves_the_qp_to_err() {
    let mut pair = pair();
    let read_only = pair.pds[1].alloc_buffer(4096, Access::REMOTE_READ).unwrap();
    let sges = [read_only.region().sge(0, 100)];
    pair.qps[1].post_recv(&RecvRequest { wr_id: 7, sges: &sges }).unwrap();
    pair.post_recv(8, 100);
    pair.post(1, SendOp::Send, 10);
    pair.run(20);
    assert_eq!(pair.done(1), [(7, Status::LocalProtection), (8, FLUSHED)]);
    assert_eq!((pair.state(0), pair.state(1)), (QpState::Rts, QpState::Err));
}

/// As with mlx5, posting succeeds, and the request completes in error.
#[test]
fn operations_that_need_a_response_complete_in_error() {
    for number in 0.. {
        let mut pair = pair();
        let remote = pair.remote(0);
        let ops = [
            SendOp::Read(remote),
            SendOp::FetchAdd { remote, add: 1 },
            SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            SendOp::SendInvalidate(remote.rkey),
        ];
        let Some(&op) = ops.get(number) else { return };
        pair.post(1, SendOp::Write(remote), 8);
        pair.post(2, op, 8);
        pair.run(10);
        let done = [(1, Status::Success), (2, Status::LocalQpOperation)];
        assert_eq!((pair.done(0), pair.state(0)), (done.to_vec(), QpState::Sqe), "{op:?}");
        assert_eq!((pair.packets().len(), pair.state(1)), (1, QpState::Rts), "{op:?}");
    }
}

/// The send queue is flushed, receiving continues, and RTS enables the send queue again.
#[test]
fn a_failed_send_stops_the_send_queue_only() {
    let mut pair = pair();
    let bad = [Sge { lkey: Key(0xffff_ff01), ..pair.buffers[0].region().sge(0, 8) }];
    pair.post(1, SendOp::Write(pair.remote(0)), 8);
    pair.post_sges(2, SendOp::Send, &bad, SIGNALED);
    pair.post(3, SendOp::Write(pair.remote(0)), 8);
    pair.run(10);
    let failed = [(1, Status::Success), (2, Status::LocalProtection), (3, FLUSHED)];
    assert_eq!(pair.done(0), failed);
    assert_eq!(pair.state(0), QpState::Sqe);
    pair.post(4, SendOp::Write(pair.remote(0)), 8);
    pair.run(10);
    assert_eq!(pair.done(0), [(4, FLUSHED)]);

    let sges = [pair.buffers[0].region().sge(0, 8)];
    pair.qps[0].post_recv(&RecvRequest { wr_id: 9, sges: &sges }).unwrap();
    let from = [pair.buffers[1].region().sge(0, 8)];
    let (op, data) = (SendOp::Send, Data::Sges(&from));
    pair.qps[1].post_send(&SendRequest { wr_id: 5, op, data, flags: SIGNALED }).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(9, Status::Success)], "receiving continues");

    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.packets();
    pair.post_recv(7, 8);
    pair.post(6, SendOp::Send, 8);
    pair.run(10);
    assert_eq!(pair.packets(), ["> UC Send Only 101"]);
    assert_eq!((pair.done(0), pair.done(1)[1]), (vec![(6, Status::Success)], (7, Status::Success)));
}

/// Memory is deregistered in the middle of a message: the remaining PSNs of the message are
/// skipped.
#[test]
fn an_aborted_message_uses_up_its_psns() {
    let mut pair = pair();
    let region = pair.pds[0].alloc_buffer(1 << 14, Access::NONE).unwrap();
    let sges = [region.region().sge(0, 40 * 256)];
    pair.post_sges(1, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    pair.rig.devices[0].turn(pair.rig.now);
    drop(region);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::LocalProtection)]);
    let sent = pair.packets().len();
    assert!((1..40).contains(&sent), "{sent} packets");
    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.post_recv(7, 8);
    pair.post(2, SendOp::Send, 8);
    pair.run(10);
    assert_eq!(pair.packets(), ["> UC Send Only 140"]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut pair = pair();
    pair.post_recv(7, 100);
    pair.inject(&Crafted::new(Opcode::RC_SEND_ONLY, 100, &[0; 8]));
    pair.inject(&Crafted::new(Opcode::RC_SEND_FIRST, 100, &[0; 256]));
    pair.run(10);
    assert_eq!(pair.counters(1), [(Counter::RxDiscards, 2)]);
    assert_eq!((pair.done(1), pair.packets()), (vec![], vec![]));
}

#[test]
fn a_drain_is_immediate() {
    let mut pair = pair();
    pair.qps[0]
        .modify(&QpAttributes { en_sqd_async_notify: Some(true), ..to(QpState::Sqd) })
        .unwrap();
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained(pair.qps[0].qpn())]);
    pair.post(1, SendOp::Write(pair.remote(0)), 8);
    pair.run(10);
    assert_eq!((pair.done(0), pair.packets()), (vec![], vec![]));
    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.run(10);
    assert_eq!(pair.packets(), ["> UC RDMA Write Only 100 at 0 len 8"]);
}
