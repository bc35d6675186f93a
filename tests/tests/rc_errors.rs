//! Requests that an RC responder refuses, and what both ends report.

use feroce_engine::counters::Counter;
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::verbs::{
    AsyncEvent, Data, RemoteAddr, SendFlags, SendOp, SendRequest, Sge, Status,
};
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_wire::{
    Aeth, Deth, Feth, ImmDt, Key, Msn, Opcode, Pkey, PlacementType, Psn, Qkey, Qpn, Syndrome,
    XrcEth,
};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Posts `op`, which the peer must refuse with a NAK (remote access error), and checks both ends.
fn refused_access(pair: &mut Pair, op: SendOp, what: &str) {
    let len = if op.is_atomic() { 8 } else { 600 };
    let before = vec![0x5a; 1024];
    pair.buffers[1].write(0, &before);
    pair.post(1, op, len);
    pair.post(2, SendOp::Send, 4);
    pair.post_recv(7, 4);
    pair.run(10);
    let packets = pair.packets();
    let naks: Vec<&String> = packets.iter().filter(|line| line.contains("nak")).collect();
    assert_eq!(naks, ["< Acknowledge 100 nak remote-access msn 0"], "{what}");
    let failed = [(1, Status::RemoteAccess), (2, Status::WorkRequestFlushed)];
    assert_eq!(pair.done(0), failed, "{what}");
    assert_eq!(pair.done(1), [(7, Status::WorkRequestFlushed)], "{what}");
    assert_eq!(
        pair.events(1).last(),
        Some(&AsyncEvent::QpAccessError(pair.qps[1].qpn())),
        "{what}"
    );
    assert_eq!((pair.state(0), pair.state(1)), (QpState::Err, QpState::Err), "{what}");
    let requester = [
        (Counter::ReqRemoteAccessErrors, 1),
        (Counter::ReqCqeError, 1),
        (Counter::ReqCqeFlushError, 1),
    ];
    assert_eq!(pair.counters(0), requester, "{what}");
    let responder = pair.counters(1);
    assert!(responder.contains(&(Counter::RespRemoteAccessErrors, 1)), "{what}");
    assert!(responder.contains(&(Counter::RespCqeFlushError, 1)), "{what}");
    let mut after = vec![0; 1024];
    pair.buffers[1].read(0, &mut after);
    assert_eq!(after, before, "{what}: memory was touched");
}

fn every_access(remote: RemoteAddr) -> [SendOp; 5] {
    [
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 1),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
    ]
}

/// Both ends enter ERR (C9-222.1).
#[test]
fn access_outside_a_region_or_with_a_wrong_key_is_refused() {
    for number in 0..5 {
        let place = |pair: &Pair, what: &str| match what {
            "wrong key" => {
                let RemoteAddr { addr, rkey } = pair.remote(0);
                RemoteAddr { addr, rkey: Key(rkey.value() ^ 1) }
            }
            "key never issued" => RemoteAddr { rkey: Key(0xffff_ff01), ..pair.remote(0) },
            "end of the region" => pair.remote((1 << 16) - 8),
            "before the region" => RemoteAddr { addr: pair.remote(0).addr - 8, ..pair.remote(0) },
            _ => RemoteAddr { addr: u64::MAX - 7, ..pair.remote(0) },
        };
        for what in
            ["wrong key", "key never issued", "end of the region", "before the region", "overflow"]
        {
            let mut pair = Pair::default();
            let op = every_access(place(&pair, what))[number];
            if what == "end of the region" && op.is_atomic() {
                continue; // Eight aligned bytes fit or lie wholly outside.
            }
            refused_access(&mut pair, op, &format!("{what}: {op:?}"));
        }
    }
}

#[test]
fn regions_without_the_right_or_of_another_pd_are_refused() {
    for number in 0..5 {
        let mut pair = Pair::default();
        // For each operation, all rights but the one that it needs.
        let other_rights = [
            Access::LOCAL_WRITE | Access::REMOTE_READ,
            Access::LOCAL_WRITE | Access::REMOTE_READ,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        ];
        let region = pair.pds[1].alloc_buffer(4096, other_rights[number]).unwrap();
        let remote = RemoteAddr { addr: region.region().addr(), rkey: region.region().rkey() };
        refused_access(&mut pair, every_access(remote)[number], "no right");

        let mut pair = Pair::default();
        let other_pd = pair.rig.devices[1].alloc_pd();
        let region = other_pd.alloc_buffer(4096, Access::ALL).unwrap();
        let remote = RemoteAddr { addr: region.region().addr(), rkey: region.region().rkey() };
        refused_access(&mut pair, every_access(remote)[number], "other PD");
    }
}

#[test]
fn operations_that_the_qp_does_not_allow_are_invalid_requests() {
    for number in 0..5 {
        let mut setup = PairSetup::default();
        setup.options[1].access = Access::NONE;
        let mut pair = Pair::new(&setup);
        pair.post_recv(7, 4);
        let op = every_access(pair.remote(0))[number];
        pair.post(1, op, 8);
        pair.run(10);
        assert_eq!(pair.packets()[1], "< Acknowledge 100 nak invalid-request msn 0");
        assert_eq!(pair.done(0), [(1, Status::RemoteInvalidRequest)], "{op:?}");
        assert_eq!(pair.events(1), [AsyncEvent::QpRequestError(pair.qps[1].qpn())]);
        let requester = [(Counter::ReqRemoteInvalidRequest, 1), (Counter::ReqCqeError, 1)];
        assert_eq!(pair.counters(0), requester);
        let responder = [(Counter::RespRemoteInvalidRequest, 1), (Counter::RespCqeFlushError, 1)];
        assert_eq!(pair.counters(1), responder);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::FetchAdd { remote: pair.remote(4), add: 1 }, 8);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::RemoteInvalidRequest)]);
}

/// The completion of the failed receive reports the error, so there is no event.
#[test]
fn a_message_longer_than_its_receive_is_refused() {
    for len in [11, 300, 600] {
        let mut pair = Pair::default();
        pair.post_recv(7, 10);
        pair.post_recv(8, 1000);
        pair.post(1, SendOp::Send, len);
        pair.run(10);
        let nak = "< Acknowledge 100 nak invalid-request msn 0".to_owned();
        assert!(pair.packets().contains(&nak), "{len}");
        assert_eq!(pair.done(0), [(1, Status::RemoteInvalidRequest)]);
        let flushed = Status::WorkRequestFlushed;
        assert_eq!(pair.done(1), [(7, Status::LocalLength), (8, flushed)]);
        assert_eq!(pair.events(1), []);
        assert!(pair.counters(1).contains(&(Counter::RespLocalLengthError, 1)));
        assert!(pair.counters(1).contains(&(Counter::RespCqeError, 1)));
    }
}

#[test]
fn local_keys_without_the_right_are_a_protection_error() {
    for number in 0..4 {
        let mut pair = Pair::default();
        pair.post_recv(7, 100);
        let read_only = pair.pds[0].alloc_buffer(4096, Access::REMOTE_READ).unwrap();
        let (op, sge) = match number {
            0 => (SendOp::Send, Sge { lkey: Key(3), ..pair.buffers[0].region().sge(0, 4) }),
            1 => (SendOp::Write(pair.remote(0)), pair.buffers[0].region().sge((1 << 16) - 3, 4)),
            2 => (SendOp::Read(pair.remote(0)), read_only.region().sge(0, 4)),
            _ => {
                (SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, read_only.region().sge(0, 8))
            }
        };
        pair.post_sges(1, op, &[sge], SIGNALED);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::LocalProtection)], "{op:?}");
        assert_eq!(pair.trace().len(), 0);
        assert_eq!(pair.events(0), [], "the completion reports the error");
        assert_eq!((pair.state(0), pair.state(1)), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn an_atomic_not_of_eight_bytes_is_a_local_length_error() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::LocalLength)]);
}

#[test]
fn a_receive_with_a_wrong_key_is_a_remote_operational_error() {
    let mut pair = Pair::default();
    let sge = Sge { lkey: Key(3), ..pair.buffers[1].region().sge(0, 100) };
    let request = feroce_engine::verbs::RecvRequest { wr_id: 7, sges: &[sge] };
    pair.qps[1].post_recv(&request).unwrap();
    pair.post(1, SendOp::Send, 10);
    pair.run(10);
    assert_eq!(pair.packets()[1], "< Acknowledge 100 nak remote-operational msn 0");
    assert_eq!(pair.done(0), [(1, Status::RemoteOperational)]);
    assert_eq!(pair.done(1), [(7, Status::LocalProtection)]);
    assert_eq!(pair.events(1), []);
    assert!(pair.counters(0).contains(&(Counter::ReqRemoteOperationalErrors, 1)));
    assert!(pair.counters(1).contains(&(Counter::RespRemoteOperationalErrors, 1)));
}

/// End 1 posts a SEND that fails locally, so that its QP goes to ERR.
fn fail_end_1(pair: &mut Pair) {
    let sge = Sge { lkey: Key(3), ..pair.buffers[1].region().sge(0, 4) };
    let data = Data::Sges(std::slice::from_ref(&sge));
    let request = SendRequest { wr_id: 9, op: SendOp::Send, data, flags: SIGNALED };
    pair.qps[1].post_send(&request).unwrap();
}

#[test]
fn the_peer_of_a_qp_that_failed_hears_of_it_without_a_timeout() {
    let ops: [fn(RemoteAddr) -> SendOp; 3] = [SendOp::Write, SendOp::Read, |_| SendOp::Send];
    for op in ops {
        let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = 0));
        pair.post(1, SendOp::Write(pair.remote(0)), 10);
        pair.run(10);
        fail_end_1(&mut pair);
        pair.post_sges(2, op(pair.remote(0)), &[pair.buffers[0].region().sge(0, 10)], SIGNALED);
        pair.post(3, SendOp::Write(pair.remote(0)), 10);
        pair.run(50);
        assert_eq!(pair.done(1), [(9, Status::LocalProtection)]);
        let expected =
            [(1, Status::Success), (2, Status::RemoteOperational), (3, Status::WorkRequestFlushed)];
        assert_eq!(pair.done(0), expected, "{:?}", op(pair.remote(0)));
        let naks = pair.packets().into_iter().filter(|packet| packet.contains("nak"));
        assert_eq!(naks.collect::<Vec<_>>(), ["< Acknowledge 101 nak remote-operational msn 1"]);
    }
}

#[test]
fn a_qp_that_the_program_moves_to_err_is_silent() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = 0));
    pair.qps[1]
        .modify(&QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() })
        .unwrap();
    pair.post(1, SendOp::Write(pair.remote(0)), 10);
    pair.run(50);
    assert_eq!((pair.done(0), pair.packets().len()), (vec![], 1));
}

const FULL: [u8; 256] = [1; 256];

fn with_imm(mut crafted: Crafted<'_>) -> Crafted<'_> {
    crafted.ext.imm = Some(ImmDt(1));
    crafted
}

/// Sequences of packets whose last packet must be refused as invalid.
fn invalid_sequences(at: RemoteAddr) -> Vec<(&'static str, Vec<Crafted<'static>>)> {
    let packet = Crafted::new;
    let odd = RemoteAddr { addr: at.addr + 4, ..at };
    let write_first = |len| packet(Opcode::RC_WRITE_FIRST, 100, &FULL).reth(at, len);
    let send_first = || packet(Opcode::RC_SEND_FIRST, 100, &FULL);
    let padded = |mut crafted: Crafted<'static>, pad| {
        crafted.bth.pad = pad;
        crafted
    };
    let flush = || {
        let mut flush = packet(Opcode::RC_FLUSH, 100, &[]).reth(at, 4);
        flush.ext.feth = Some(Feth { placement: PlacementType::GLOBAL, ..Feth::default() });
        flush
    };
    vec![
        ("Middle without First", vec![packet(Opcode::RC_SEND_MIDDLE, 100, &FULL)]),
        ("Last without First", vec![packet(Opcode::RC_SEND_LAST, 100, &FULL)]),
        ("WRITE Middle without First", vec![packet(Opcode::RC_WRITE_MIDDLE, 100, &FULL)]),
        ("WRITE Last without First", vec![packet(Opcode::RC_WRITE_LAST, 100, &[1; 4])]),
        ("First in a message", vec![send_first(), packet(Opcode::RC_SEND_FIRST, 101, &FULL)]),
        ("Only in a message", vec![send_first(), packet(Opcode::RC_SEND_ONLY, 101, &[1; 4])]),
        ("WRITE in a SEND", vec![send_first(), packet(Opcode::RC_WRITE_MIDDLE, 101, &FULL)]),
        ("SEND in a WRITE", vec![write_first(600), packet(Opcode::RC_SEND_LAST, 101, &[1; 4])]),
        (
            "READ in a SEND",
            vec![send_first(), packet(Opcode::RC_READ_REQUEST, 101, &[]).reth(at, 4)],
        ),
        ("First too short", vec![packet(Opcode::RC_SEND_FIRST, 100, &[1; 252])]),
        ("First padded", vec![padded(packet(Opcode::RC_SEND_FIRST, 100, &FULL), 1)]),
        ("Only too long", vec![packet(Opcode::RC_SEND_ONLY, 100, &[1; 260])]),
        ("Middle too short", vec![send_first(), packet(Opcode::RC_SEND_MIDDLE, 101, &[1; 252])]),
        ("Last empty", vec![send_first(), packet(Opcode::RC_SEND_LAST, 101, &[])]),
        ("Last too long", vec![send_first(), packet(Opcode::RC_SEND_LAST, 101, &[1; 260])]),
        (
            "WRITE Only with a wrong DMA length",
            vec![packet(Opcode::RC_WRITE_ONLY, 100, &[1; 4]).reth(at, 5)],
        ),
        (
            "WRITE Only with too much pad",
            vec![padded(packet(Opcode::RC_WRITE_ONLY, 100, &[1; 4]).reth(at, 4), 1)],
        ),
        ("WRITE First of one packet", vec![write_first(256)]),
        ("WRITE First of more than 2^31", vec![write_first((1 << 31) + 1)]),
        (
            "WRITE Last before the end",
            vec![write_first(600), packet(Opcode::RC_WRITE_LAST, 101, &[1; 88])],
        ),
        (
            "WRITE Middle at the end",
            vec![write_first(512), packet(Opcode::RC_WRITE_MIDDLE, 101, &FULL)],
        ),
        (
            "WRITE Last too long",
            vec![write_first(260), with_imm(packet(Opcode::RC_WRITE_LAST_IMM, 101, &[1; 8]))],
        ),
        (
            "READ of more than 2^31",
            vec![packet(Opcode::RC_READ_REQUEST, 100, &[]).reth(at, u32::MAX)],
        ),
        (
            "READ request with a payload",
            vec![packet(Opcode::RC_READ_REQUEST, 100, &[1; 4]).reth(at, 4)],
        ),
        ("FLUSH, which the QP does not allow", vec![flush()]),
        ("ATOMIC WRITE of 4", vec![packet(Opcode::RC_ATOMIC_WRITE, 100, &[1; 4]).reth(at, 4)]),
        ("ATOMIC WRITE at 4", vec![packet(Opcode::RC_ATOMIC_WRITE, 100, &[1; 8]).reth(odd, 8)]),
    ]
}

#[test]
fn packets_out_of_order_or_of_wrong_length_are_invalid_requests() {
    let count = invalid_sequences(Pair::default().remote(0)).len();
    for number in 0..count {
        let mut pair = Pair::default();
        pair.post_recv(7, 2048);
        let (what, packets) = invalid_sequences(pair.remote(0)).swap_remove(number);
        for packet in &packets {
            pair.inject(packet);
        }
        pair.run(10);
        let nak = format!("< Acknowledge {} nak invalid-request msn 0", 99 + packets.len());
        assert_eq!(pair.packets(), [nak], "{what}");
        assert_eq!(pair.state(1), QpState::Err, "{what}");
        assert_eq!(pair.done(1), [(7, Status::WorkRequestFlushed)], "{what}");
        assert_eq!(pair.events(1), [AsyncEvent::QpRequestError(pair.qps[1].qpn())], "{what}");
        // The requester has no request outstanding, so it ignores the NAK.
        assert_eq!((pair.state(0), pair.done(0)), (QpState::Rts, vec![]), "{what}");
    }
}

/// A frame whose length after the BTH is not a multiple of four bytes.
#[test]
fn a_payload_without_its_pad_is_an_invalid_request() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    let mut crafted = Crafted::new(Opcode::RC_SEND_ONLY, 100, &[]);
    crafted.payload = &[1; 5];
    pair.inject(&crafted);
    pair.run(10);
    assert_eq!(pair.packets(), ["< Acknowledge 100 nak invalid-request msn 0"]);
}

#[test]
fn reads_beyond_the_responders_depth_are_invalid_requests() {
    let mut setup = PairSetup::default();
    setup.options[1].max_rd_atomic = Some(2);
    let mut pair = Pair::new(&setup);
    for psn in 100..103 {
        pair.inject(&Crafted::new(Opcode::RC_READ_REQUEST, psn, &[]).reth(pair.remote(0), 4));
    }
    pair.run(10);
    let expected = [
        "< Read Response Only 100 ack msn 2",
        "< Read Response Only 101 ack msn 2",
        "< Acknowledge 102 nak invalid-request msn 2",
    ];
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.state(1), QpState::Err);
}

/// Packets that are dropped without a response and counted in `RxDiscards`.
#[test]
fn packets_that_do_not_belong_to_the_connection_are_dropped() {
    let send = |opcode| Crafted::new(opcode, 100, &[1; 4]);
    let mut ud = send(Opcode::UD_SEND_ONLY);
    ud.ext.deth = Some(Deth { qkey: Qkey(1), src_qp: Qpn::masked(9), ..Deth::default() });
    let mut xrc = send(Opcode::XRC_SEND_ONLY);
    xrc.ext.xrceth = Some(XrcEth { srqn: 1, ..XrcEth::default() });
    let mut other_source = send(Opcode::RC_SEND_ONLY);
    other_source.source = [10, 0, 0, 9].into();
    let mut partition = send(Opcode::RC_SEND_ONLY);
    partition.bth.pkey = Pkey(0x8001);
    let mut unknown = send(Opcode::RC_SEND_ONLY);
    unknown.dest_qp = Some(Qpn::masked(0x1f));
    let mut outside = send(Opcode::RC_SEND_ONLY);
    outside.dest_qp = Some(Qpn::MULTICAST);
    let cases = [
        ("UC", send(Opcode::UC_SEND_ONLY)),
        ("UD", ud),
        ("XRC", xrc),
        ("source address", other_source),
        ("P_Key", partition),
        ("no such QP", unknown),
        ("QPN outside the slice", outside),
    ];
    for (what, crafted) in cases {
        let mut pair = Pair::default();
        pair.post_recv(7, 100);
        pair.inject(&crafted);
        pair.run(10);
        assert_eq!(pair.packets().len(), 0, "{what}");
        assert_eq!(pair.done(1), [], "{what}");
        assert_eq!(pair.counters(1), [(Counter::RxDiscards, 1)], "{what}");
        assert_eq!(pair.qps[1].query().rq_psn, Some(Psn::new(100)), "{what}");
    }
}

#[test]
fn damaged_frames_are_dropped() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    let frame = Crafted::new(Opcode::RC_SEND_ONLY, 100, &[1; 4]).frame(pair.qps[1].qpn());
    let mut damaged = frame.clone();
    *damaged.last_mut().unwrap() ^= 1;
    pair.inject_bytes(&damaged);
    let mut unknown_opcode = frame.clone();
    unknown_opcode[42] = 0x1f;
    pair.inject_bytes(&unknown_opcode);
    pair.inject_bytes(&frame[..frame.len() - 1]);
    pair.inject_bytes(&frame[..46]);
    pair.run(10);
    assert_eq!(pair.packets().len(), 0);
    assert_eq!(pair.counters(1), [(Counter::PortRcvErrors, 3), (Counter::RxIcrcEncapsulated, 1)]);
    pair.inject_bytes(&frame);
    pair.run(10);
    assert_eq!(pair.done(1), [(7, Status::Success)], "the QP still works");
}

/// PSNs around the expected PSN: half of the space is ahead, half behind.
#[test]
fn psns_ahead_get_a_nak_and_psns_behind_an_ack() {
    let half = 1 << 23;
    let cases = [
        (101, "< Acknowledge 100 nak psn-sequence msn 0", Counter::OutOfSequence),
        (100 + half - 1, "< Acknowledge 100 nak psn-sequence msn 0", Counter::OutOfSequence),
        (100 + half, "< Acknowledge 99 ack msn 0", Counter::DuplicateRequest),
        (99, "< Acknowledge 99 ack msn 0", Counter::DuplicateRequest),
    ];
    for (psn, response, counter) in cases {
        let mut pair = Pair::default();
        pair.post_recv(7, 100);
        pair.inject(&Crafted::new(Opcode::RC_SEND_ONLY, psn, &[1; 4]));
        pair.run(10);
        assert_eq!(pair.packets(), [response], "{psn}");
        assert_eq!(pair.counters(1), [(counter, 1)], "{psn}");
        assert_eq!((pair.done(1), pair.state(0)), (vec![], QpState::Rts));
    }
}

/// Responses that do not match their request.
#[test]
fn a_response_of_another_kind_or_length_breaks_the_connection() {
    for number in 0..3 {
        let mut pair = Pair::default();
        pair.rig.wire.set_filter(Some(Box::new(|from, _, _| from == 0)));
        match number {
            0 => pair.post(1, SendOp::Read(pair.remote(0)), 300),
            1 => pair.post(1, SendOp::Read(pair.remote(0)), 4),
            _ => pair.post(1, SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, 8),
        }
        pair.run(1);
        let mut response = Crafted::new(Opcode::RC_READ_RESPONSE_ONLY, 100, &[1; 8]);
        let unlimited = Syndrome::from_byte(0x1f);
        response.ext.aeth = Some(Aeth { syndrome: unlimited, msn: Msn::new(1) });
        pair.inject_response(&response);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::BadResponse)], "{number}");
        let counters = [(Counter::ReqBadResponse, 1), (Counter::ReqCqeError, 1)];
        assert_eq!(pair.counters(0), counters);
        assert_eq!(pair.state(0), QpState::Err);
    }
}

/// The responder checks the key again for every packet of a READ, and for a duplicate READ.
#[test]
fn a_duplicate_read_of_a_deregistered_region_is_refused() {
    let mut pair = Pair::default();
    let region = pair.pds[1].alloc_buffer(4096, Access::ALL).unwrap();
    let remote = RemoteAddr { addr: region.region().addr(), rkey: region.region().rkey() };
    pair.lose(1, 100, 1);
    pair.post(1, SendOp::Read(remote), 8);
    pair.run(10);
    drop(region);
    pair.run(5000);
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.packets().last().unwrap(), "< Acknowledge 100 nak remote-access msn 1");
}

/// A peer that repeats READs to try keys, which costs it nothing otherwise, loses the connection.
#[test]
fn repeated_reads_with_wrong_keys_end_the_connection() {
    let mut pair = Pair::default();
    let remote = pair.remote(0);
    pair.post(1, SendOp::Read(remote), 8);
    pair.run(10);
    for tries in 1..=256 {
        assert_ne!(pair.state(1), QpState::Err, "after {} tries", tries - 1);
        let wrong = RemoteAddr { rkey: Key(remote.rkey.0 ^ (tries << 8)), ..remote };
        pair.inject(&Crafted::new(Opcode::RC_READ_REQUEST, 100, &[]).reth(wrong, 8));
        pair.run(10);
    }
    assert_eq!(pair.state(1), QpState::Err);
    let refused = (Counter::RespRemoteAccessErrors, 256);
    assert!(pair.counters(1).contains(&refused), "{:?}", pair.counters(1));
}
