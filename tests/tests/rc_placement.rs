//! ATOMIC WRITE and FLUSH with the RC service, as requester and as responder.

use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{
    AsyncEvent, CompletionOpcode, Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_tests::drain;
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_wire::{Feth, Opcode, PlacementType, Selectivity};

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const OK: Status = Status::Success;

/// Creates a pair whose QPs allow FLUSH with both placement types.
fn flushing() -> Pair {
    Pair::new(&PairSetup::with(|options| {
        options.access |= Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    }))
}

fn flush(remote: RemoteAddr, length: u32) -> SendOp {
    let (placement, selectivity) = (PlacementType::GLOBAL, Selectivity::Range);
    SendOp::Flush { remote, length, placement, selectivity }
}

fn post(pair: &mut Pair, wr_id: u64, op: SendOp, data: Data<'_>) {
    pair.qps[0].post_send(&SendRequest { wr_id, op, data, flags: SIGNALED }).unwrap();
}

#[test]
fn an_atomic_write_stores_eight_bytes_and_gets_a_response() {
    let mut pair = Pair::default();
    let word = 0x1122_3344_5566_7788u64.to_ne_bytes();
    let to = pair.remote(16);
    post(&mut pair, 1, SendOp::AtomicWrite(to), Data::Inline(&[&word]));
    pair.buffers[0].write(0, &word);
    let to = pair.remote(32);
    pair.post(2, SendOp::AtomicWrite(to), 8);
    pair.run(10);
    let expected = [
        "> Atomic Write 100 A at 16 len 8",
        "> Atomic Write 101 A at 32 len 8",
        "< Read Response Only 100 ack msn 2",
        "< Read Response Only 101 ack msn 2",
    ];
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.buffers[1].load_word(16), 0x1122_3344_5566_7788);
    assert_eq!(pair.buffers[1].load_word(32), 0x1122_3344_5566_7788);
    let done = drain(&pair.cqs[0]);
    assert!(done.iter().all(|done| done.opcode == CompletionOpcode::AtomicWrite));
    assert_eq!(
        done.iter().map(|done| (done.wr_id, done.status)).collect::<Vec<_>>(),
        [(1, OK), (2, OK)]
    );
}

/// The response is lost: the request is retransmitted and the response sent again, but the request
/// is not executed again.
#[test]
fn a_duplicate_atomic_write_is_not_executed_again() {
    let mut pair = Pair::default();
    let to = pair.remote(0);
    pair.rig.wire.set_filter(Some(Box::new({
        let mut lost = false;
        move |from, _, _| from == 1 && !std::mem::replace(&mut lost, true)
    })));
    post(&mut pair, 1, SendOp::AtomicWrite(to), Data::Inline(&[&[1; 8]]));
    pair.run(100);
    assert_eq!((pair.done(0), pair.buffers[1].load_byte(0)), (vec![], 1));
    pair.buffers[1].write(0, &[2; 8]);
    pair.run(10_000);
    assert_eq!((pair.done(0), pair.buffers[1].load_byte(0)), (vec![(1, OK)], 2));
}

#[test]
fn an_atomic_write_needs_write_access_alignment_and_eight_bytes() {
    for (op, len, expected) in [
        (4, 8, Status::RemoteInvalidRequest), // Misaligned.
        (1 << 16, 8, Status::RemoteAccess),
        (0, 7, Status::LocalLength),
        (0, 16, Status::LocalLength),
    ] {
        let mut pair = Pair::default();
        let to = pair.remote(op);
        pair.post(1, SendOp::AtomicWrite(to), len);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, expected)], "{op} {len}");
    }
    let setup = PairSetup::with(|options| options.access = Access::REMOTE_READ);
    let mut pair = Pair::new(&setup);
    let to = pair.remote(0);
    pair.post(1, SendOp::AtomicWrite(to), 8);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.events(1), [AsyncEvent::QpRequestError(pair.qps[1].qpn())]);
}

#[test]
fn flush_works_for_a_range_and_for_a_region() {
    let mut pair = flushing();
    let remote = pair.remote(0);
    pair.post(1, SendOp::Write(remote), 64);
    post(&mut pair, 2, flush(remote, 64), Data::Sges(&[]));
    let whole = SendOp::Flush {
        remote: RemoteAddr { addr: 0, ..remote }, // Ignored.
        length: u32::MAX,
        placement: PlacementType::GLOBAL,
        selectivity: Selectivity::Region,
    };
    post(&mut pair, 3, whole, Data::Sges(&[]));
    pair.run(10);
    let frames = pair.frames();
    let feths: Vec<_> = frames
        .iter()
        .filter_map(|seen| feroce_wire::Packet::parse(&seen.bytes, &[]).unwrap().ext.feth)
        .collect();
    let range = Feth { placement: PlacementType::GLOBAL, ..Feth::default() };
    assert_eq!(feths, [range, Feth { selectivity: Selectivity::Region, ..range }]);
    assert_eq!(frames.iter().filter(|seen| seen.from == 1).count(), 2, "each flush is answered");
    let done = drain(&pair.cqs[0]);
    let seen: Vec<_> = done.iter().map(|done| (done.wr_id, done.status, done.opcode)).collect();
    let flushed = CompletionOpcode::Flush;
    assert_eq!(seen, [(1, OK, CompletionOpcode::RdmaWrite), (2, OK, flushed), (3, OK, flushed)]);
}

/// The response is lost: the FLUSH is retransmitted and the response sent again.
#[test]
fn a_duplicate_flush_is_answered_again() {
    let mut pair = flushing();
    let remote = pair.remote(0);
    pair.lose(1, 100, 1);
    post(&mut pair, 1, flush(remote, 64), Data::Sges(&[]));
    pair.run(10_000);
    let packets = pair.packets();
    let expected = [
        "> Flush 100 A at 0 len 64",
        "< Read Response Only 100 ack msn 1",
        "> Flush 100 A at 0 len 64",
        "< Read Response Only 100 ack msn 1",
    ];
    assert_eq!(packets, expected);
    assert_eq!(pair.done(0), [(1, OK)]);
}

#[test]
fn invalid_flushes_are_refused() {
    let persistent = PlacementType(0b11);
    let cases = [
        (0, 1 << 16, PlacementType::GLOBAL, Access::ALL, OK),
        (1, 1 << 16, PlacementType::GLOBAL, Access::ALL, Status::RemoteAccess),
        (0, 64, persistent, Access::ALL, Status::RemoteAccess),
        (0, 64, PlacementType::GLOBAL, Access::REMOTE_READ, Status::RemoteAccess),
        (0, 64, PlacementType(4), Access::ALL, Status::RemoteInvalidRequest),
    ];
    for (offset, length, placement, access, expected) in cases {
        let mut pair = flushing();
        let buffer = pair.pds[1].alloc_buffer(1 << 16, access).unwrap();
        let (addr, rkey) = (buffer.region().addr() + offset, buffer.region().rkey());
        let remote = RemoteAddr { addr, rkey };
        let selectivity = Selectivity::Range;
        let op = SendOp::Flush { remote, length, placement, selectivity };
        post(&mut pair, 1, op, Data::Sges(&[]));
        pair.run(10);
        assert_eq!(pair.done(0), [(1, expected)], "{offset} {length} {placement:?} {access:?}");
    }
    // A reserved selectivity, then a FLUSH with local data.
    let mut pair = flushing();
    let mut crafted = Crafted::new(Opcode::RC_FLUSH, 100, &[]).reth(pair.remote(0), 4);
    let selectivity = Selectivity::Reserved(2);
    crafted.ext.feth = Some(Feth { selectivity, placement: PlacementType::GLOBAL, reserved: 0 });
    pair.inject(&crafted);
    pair.run(10);
    assert_eq!(pair.packets(), ["< Acknowledge 100 nak invalid-request msn 0"]);
    let mut pair = flushing();
    let remote = pair.remote(0);
    pair.post(1, flush(remote, 4), 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::LocalLength)]);
    assert_eq!(pair.state(0), QpState::Err);
}

/// Both operations have responses, so the initiator depth limits them like READs.
#[test]
fn the_initiator_depth_limits_flush_and_atomic_write() {
    let mut pair = Pair::new(&PairSetup::with(|options| {
        options.access |= Access::FLUSH_GLOBAL;
        options.max_rd_atomic = Some(1);
    }));
    let remote = pair.remote(0);
    for wr_id in 1..=3 {
        post(&mut pair, wr_id, flush(remote, 4), Data::Sges(&[]));
    }
    post(&mut pair, 4, SendOp::AtomicWrite(remote), Data::Inline(&[&[1; 8]]));
    pair.run(20);
    let order: Vec<_> = pair.packets().iter().map(|line| line.as_bytes()[0]).collect();
    assert_eq!(order, b"><><><><", "one at a time");
    assert_eq!(pair.done(0).len(), 4);
}

/// A response with data breaks the connection.
#[test]
fn a_flush_response_with_data_is_a_bad_response() {
    let mut pair = flushing();
    let remote = pair.remote(0);
    pair.lose(1, 100, u32::MAX);
    post(&mut pair, 1, flush(remote, 4), Data::Sges(&[]));
    pair.run(5);
    pair.rig.wire.set_filter(None);
    let mut response = Crafted::new(Opcode::RC_READ_RESPONSE_ONLY, 100, &[1; 4]);
    response.ext.aeth = Some(feroce_wire::Aeth {
        syndrome: feroce_wire::Syndrome::Ack(feroce_wire::CreditCode::UNLIMITED),
        msn: feroce_wire::Msn::new(1),
    });
    pair.inject_response(&response);
    pair.run(5);
    assert_eq!(pair.done(0), [(1, Status::BadResponse)]);
}
