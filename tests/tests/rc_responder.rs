//! Duplicate requests, and the order of the responses of an RC responder.

use feroce_engine::counters::Counter;
use feroce_engine::qp::QpState;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, Notify, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_wire::Opcode;

fn read(pair: &Pair, psn: u32, offset: u64, len: u32) -> Crafted<'static> {
    Crafted::new(Opcode::RC_READ_REQUEST, psn, &[]).reth(pair.remote(offset), len)
}

fn depth_one() -> Pair {
    Pair::new(&PairSetup::with(|options| options.max_rd_atomic = Some(1)))
}

#[test]
fn responses_are_in_psn_order_and_the_last_one_acknowledges() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.post(2, SendOp::Read(pair.remote(0)), 300);
    pair.post(3, SendOp::FetchAdd { remote: pair.remote(8), add: 1 }, 8);
    pair.post(4, SendOp::Send, 4);
    pair.run(10);
    let expected = [
        "> Write Only 100 A at 0 len 4",
        "> Read Request 101 A at 0 len 300",
        "> Fetch Add 103 A",
        "> Send Only 104 A",
        "< Read Response First 101 ack msn 4",
        "< Read Response Last 102 ack msn 4",
        "< Atomic Acknowledge 103 ack msn 4",
        "< Acknowledge 104 ack msn 4",
    ];
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.done(0).len(), 4);
}

/// A duplicate READ and a new one together, at a depth of one: the requester may have received the
/// first response while its retransmission was in flight, and then sent the new READ.
#[test]
fn a_duplicate_read_does_not_count_against_the_depth() {
    let mut pair = depth_one();
    pair.inject(&read(&pair, 100, 0, 4));
    pair.run(10);
    pair.trace();
    pair.inject(&read(&pair, 100, 0, 4));
    pair.inject(&read(&pair, 101, 8, 4));
    pair.run(10);
    let expected = ["< Read Response Only 100 ack msn 2", "< Read Response Only 101 ack msn 2"];
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.state(1), QpState::Rts);
    let counters = [(Counter::DuplicateRequest, 1), (Counter::RxReadRequests, 2)];
    assert_eq!(pair.counters(1), counters);
}

/// A READ is requested again during its response: the response restarts there, and no packet is
/// sent twice after that.
#[test]
fn a_duplicate_read_restarts_its_own_response() {
    let mut pair = depth_one();
    pair.inject(&read(&pair, 100, 0, 200 * 256));
    pair.rig.now = Instant::ZERO + Duration::from_micros(1);
    pair.rig.wire.step(pair.rig.now);
    pair.rig.devices[1].turn(pair.rig.now);
    // The requester requests the READ again from the tenth packet. The request arrives when 32
    // packets, two transmit quanta of 16, have been sent.
    let again = read(&pair, 110, 10 * 256, 190 * 256).frame(pair.qps[1].qpn());
    pair.rig.wire.inject(1, &again, Instant::ZERO);
    pair.run(10);
    let numbers: Vec<u32> = pair
        .packets()
        .iter()
        .map(|line| line.split(' ').nth(4).unwrap().parse().unwrap())
        .collect();
    let expected: Vec<u32> = (100..132).chain(110..300).collect();
    assert_eq!(numbers, expected);
    pair.inject(&read(&pair, 300, 0, 4));
    pair.run(10);
    assert_eq!(pair.packets(), ["< Read Response Only 300 ack msn 2"]);
}

#[test]
fn a_read_whose_response_is_pending_is_not_answered_twice() {
    let mut pair = Pair::default();
    pair.inject(&read(&pair, 100, 0, 600));
    pair.inject(&read(&pair, 101, 256, 344));
    pair.run(10);
    assert_eq!(pair.packets().len(), 3);
}

#[test]
fn a_part_of_a_read_may_be_requested_again() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Read(pair.remote(0)), 1000);
    pair.run(10);
    pair.trace();
    pair.inject(&read(&pair, 101, 256, 300));
    pair.run(10);
    let expected = ["< Read Response First 101 ack msn 1", "< Read Response Last 102 ack msn 1"];
    assert_eq!(pair.packets(), expected);
}

/// A gap whose packet arrives late, before the NAK is sent: the NAK reports the PSN that is missing
/// now.
#[test]
fn a_nak_after_reordering_reports_the_psn_missing_now() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    pair.post_recv(8, 100);
    pair.inject(&Crafted::new(Opcode::RC_SEND_ONLY, 101, &[2; 4]));
    pair.inject(&Crafted::new(Opcode::RC_SEND_ONLY, 100, &[1; 4]));
    pair.run(10);
    assert_eq!(pair.packets(), ["< Acknowledge 101 nak psn-sequence msn 1"]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
    assert_eq!(pair.counters(1), [(Counter::OutOfSequence, 1)]);
}

/// Reserved bits, MigReq, FECN and BECN in the BTH of a peer's request are ignored (reserved bits:
/// C9-6).
#[test]
fn reserved_bits_are_ignored() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    let mut crafted = Crafted::new(Opcode::RC_SEND_ONLY, 100, &[1; 4]);
    (crafted.bth.reserved6, crafted.bth.reserved7) = (0x3f, 0x7f);
    (crafted.bth.mig_req, crafted.bth.fecn, crafted.bth.becn) = (false, true, true);
    pair.inject(&crafted);
    pair.run(10);
    assert_eq!(pair.packets(), ["< Acknowledge 100 ack msn 1"]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
}

/// No ACK without AckReq, and none below an earlier ACK.
#[test]
fn acks_are_sent_on_request_and_never_go_back() {
    let mut pair = Pair::default();
    let write = |pair: &Pair, psn, ack_req| {
        let mut crafted = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[1; 4]).reth(pair.remote(0), 4);
        crafted.bth.ack_req = ack_req;
        crafted
    };
    for (psn, ack_req, expected) in [
        (100, false, None),
        (101, true, Some("< Acknowledge 101 ack msn 2")),
        (102, false, None),
        (100, true, Some("< Acknowledge 102 ack msn 3")),
        (103, true, Some("< Acknowledge 103 ack msn 4")),
    ] {
        pair.inject(&write(&pair, psn, ack_req));
        pair.run(10);
        assert_eq!(pair.packets(), expected.map(str::to_owned).into_iter().collect::<Vec<_>>());
    }
}

/// A program that only polls and responds at once sends its message before the acknowledgement.
/// Once a completion event has woken the program, the acknowledgement goes first, even while the
/// program polls: its peer may sleep on one channel for sends and receives, and mistake the event
/// of the received message for that of its own SEND, or free what the completion of its SEND needs.
#[test]
fn a_response_message_overtakes_the_ack_unless_an_event_woke_the_program() {
    for (earlier, notify, sleeps) in [
        (None, None, false),
        (None, Some(Notify::Any), true),
        (None, Some(Notify::Solicited), false),
        (Some(Notify::Any), None, true),
        (Some(Notify::Solicited), None, false),
    ] {
        let mut pair = Pair::default();
        if let Some(notify) = earlier {
            pair.cqs[1].request_notify(notify);
            pair.post_recv(6, 100);
            pair.post(1, SendOp::Send, 4);
            pair.run(10);
            assert_eq!((pair.done(0).len(), pair.done(1).len(), pair.packets().len()), (1, 1, 2));
        }
        pair.post_recv(7, 100);
        let receive = RecvRequest { wr_id: 8, sges: &[pair.buffers[0].region().sge(0, 100)] };
        pair.qps[0].post_recv(&receive).unwrap();
        if let Some(notify) = notify {
            pair.cqs[1].request_notify(notify);
        }
        pair.post(1, SendOp::Send, 4);
        pair.rig.turn_and_carry(0);
        pair.rig.devices[1].turn(pair.rig.now);
        assert_eq!(pair.done(1), [(7, Status::Success)]);
        let data = Data::Sges(&[pair.buffers[1].region().sge(0, 4)]);
        let request = SendRequest { wr_id: 2, op: SendOp::Send, data, flags: SendFlags::SIGNALED };
        pair.qps[1].post_send(&request).unwrap();
        pair.run(10);
        let response = "< Send Only 5000 A";
        let acknowledgement = match earlier {
            None => "< Acknowledge 100 ack msn 1",
            Some(_) => "< Acknowledge 101 ack msn 2",
        };
        let mut expected = [response, acknowledgement];
        if sleeps {
            expected.reverse();
        }
        assert_eq!(pair.packets()[1..3], expected, "{earlier:?}, {notify:?}");
        assert_eq!((pair.done(0).len(), pair.done(1).len()), (2, 1));
    }
}
