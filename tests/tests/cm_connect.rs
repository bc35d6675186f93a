//! Connections by RDMA CM, in virtual time with literal times: how they begin, what is said again and when, how they end.
//!
//! End 0 (10.77.0.2) listens, end 1 (10.77.0.3) asks. A message takes 1 ms. With the defaults, a REQ is sent again after
//! 2 * 256 + 1024 = 1536 ms, a REP after 1024 ms, and timewait takes 512 ms at either end.

use feroce_engine::cm::{CmError, CmId, Ece, EventKind, Parameters, QpKind, State, Status};
use feroce_engine::time::{Duration, Instant};
use feroce_tests::cm::{DELAY, PORT, Pair, address, parameters};
use feroce_wire::cm::{CmMessage, PortSpace, RejectReason, Transport};
use feroce_wire::{Psn, Qpn};

use EventKind::{
    ConnectRequest, ConnectResponse, Disconnected, Established, Rejected, TimewaitExit, Unreachable,
};

const TCP: PortSpace = PortSpace::Tcp;

/// A connection up to the request: the listener, the active and the passive identifier.
fn asked(pair: &mut Pair) -> (CmId, CmId, CmId) {
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    let active = pair.dial(1, TCP, 0x50, b"hello");
    pair.run_until(1);
    let event = pair.expect(0, ConnectRequest);
    assert_eq!(event.listener, Some(listener));
    (listener, active, event.id)
}

/// A connection that stands; the time is 3 ms.
fn connected(pair: &mut Pair) -> (CmId, CmId, CmId) {
    let (listener, active, passive) = asked(pair);
    pair.accept(0, passive, 0x5e, b"welcome");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(3);
    pair.expect(0, Established);
    pair.sent_messages.clear();
    (listener, active, passive)
}

#[test]
fn a_life() {
    let mut pair = Pair::new(1);
    let (listener, active, passive) = asked(&mut pair);
    assert_eq!(pair.ends[0].qp_parameters(passive).map(|qp| qp.agreed.qpn), Ok(Qpn::masked(0x50)));
    pair.accept(0, passive, 0x5e, b"welcome");
    pair.run_until(2);
    let response = pair.expect(1, ConnectResponse);
    assert_eq!(response.private_data.len(), 196);
    assert_eq!(response.private_data[..8], *b"welcome\0");
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(100);
    pair.expect(0, Established);

    let (one, two) = (pair.ends[0].qp_parameters(passive), pair.ends[1].qp_parameters(active));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.agreed.qpn, two.agreed.qpn), (Qpn::masked(0x50), Qpn::masked(0x5e)));
    assert_eq!((one.rq_psn, one.sq_psn), (two.sq_psn, two.rq_psn));
    assert_ne!(one.rq_psn, Psn::new(0));
    assert_eq!((one.agreed.responder_resources, one.agreed.initiator_depth), (4, 2), "as it said");
    assert_eq!(
        (two.agreed.responder_resources, two.agreed.initiator_depth),
        (2, 4),
        "as the peer allows"
    );
    assert_eq!(
        (one.agreed.retry_count, one.agreed.rnr_retry_count, two.agreed.rnr_retry_count),
        (7, 6, 6)
    );
    assert_eq!((one.ack_timeout, two.ack_timeout), (17, 17));
    assert_eq!((one.path.local, one.path.remote), (address(0, false), address(1, false)));
    assert_eq!(pair.ends[0].source(passive).unwrap().unwrap().port(), PORT);
    assert_eq!(pair.ends[0].destination(passive), pair.ends[1].source(active));

    pair.ends[1].disconnect(active, pair.now).unwrap();
    pair.flush();
    pair.run_until(150);
    pair.expect(0, Disconnected);
    assert_eq!(pair.ends[0].state(passive), Ok(State::DreqReceived));
    pair.ends[0].disconnect(passive, pair.now).unwrap();
    pair.flush();
    pair.run_until(1000);
    assert_eq!(
        pair.trace(),
        [(0, 1, "Req"), (1, 0, "Rep"), (2, 1, "Rtu"), (100, 1, "Dreq"), (150, 0, "Drep")]
    );
    // 512 ms after the DREP was sent, and after it came.
    assert_eq!(
        pair.events(),
        [(151, 1, Disconnected), (662, 0, TimewaitExit), (663, 1, TimewaitExit)]
    );
    for (end, id) in [(0, listener), (0, passive), (1, active)] {
        pair.ends[end].destroy(id, pair.now).unwrap();
    }
    pair.run_out();
    pair.assert_empty();
    assert_eq!(pair.trace(), []);
}

/// XRC: the initiator says nothing of receiving, the target nothing of sending, and its number has a place of its own.
#[test]
fn an_initiator_and_a_target() {
    let mut pair = Pair::new(1);
    pair.listen_with_type(0, (PortSpace::Ib, QpKind::XrcTgt), "0.0.0.0", 0);
    let active = pair.route_with_type(1, (PortSpace::Ib, QpKind::XrcIni), false, PORT);
    let own = Parameters { srq: true, ..parameters(0x50) };
    pair.ends[1].connect(active, &own, b"", pair.now).unwrap();
    pair.flush();
    pair.run_until(1);
    let request = pair.expect(0, ConnectRequest);
    assert_eq!(
        (request.parameters.responder_resources, request.parameters.initiator_depth),
        (2, 0)
    );
    pair.accept(0, request.id, 0x5e, b"");
    pair.run_until(2);
    let response = pair.expect(1, ConnectResponse);
    assert_eq!((response.parameters.qpn, response.parameters.srq), (Qpn::masked(0x5e), true));
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(3);
    pair.expect(0, Established);

    let said: Vec<_> = pair.sent_messages.iter().map(|said| said.message).collect();
    let [CmMessage::Req(req), CmMessage::Rep(rep), _] = said[..] else { panic!("{said:?}") };
    assert_eq!(req.connection(), Some(Transport::Xrc));
    assert_eq!((req.transport, req.extended_transport, req.local_qpn), (3, 1, Qpn::masked(0x50)));
    assert_eq!((req.initiator_depth, req.responder_resources), (2, 0));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.srq), (0, 0, false));
    assert_eq!((rep.local_eecn, rep.local_qpn), (Qpn::masked(0x5e), Qpn::default()));
    assert_eq!((rep.responder_resources, rep.initiator_depth, rep.srq), (4, 0, true));
    let initiator = pair.ends[1].qp_parameters(active).unwrap();
    assert_eq!(initiator.agreed.qpn, Qpn::masked(0x5e));
    assert_eq!((initiator.agreed.retry_count, initiator.agreed.initiator_depth), (7, 4));

    // A DREQ names the target's QP, and finds it.
    pair.ends[1].disconnect(active, pair.now).unwrap();
    pair.flush();
    pair.run_until(4);
    pair.expect(0, Disconnected);
    let target = pair.ends[0].create(PortSpace::Ib, QpKind::XrcTgt);
    assert_eq!(pair.ends[0].connect(target, &own, b"", pair.now), Err(CmError::State));
}

/// Whole fields are delivered, whatever was filled in: 56, 196, 148 bytes.
#[test]
fn private_data() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "0.0.0.0", 0);
    let route = pair.route(1, TCP, false, PORT);
    let now = pair.now;
    let long = pair.ends[1].connect(route, &parameters(1), &[7; 57], now);
    assert_eq!(long, Err(CmError::PrivateData { have: 57, room: 56 }));
    assert_eq!(pair.ends[1].connect(route, &parameters(1), &[7; 56], now), Ok(()));
    pair.flush();
    pair.run_until(1);
    let request = pair.expect(0, ConnectRequest);
    assert_eq!(request.private_data, [7; 56]);
    assert_eq!(
        (request.parameters.responder_resources, request.parameters.initiator_depth),
        (2, 4)
    );
    let now = pair.now;
    let long = pair.ends[0].accept(request.id, &parameters(2), &[8; 197], now);
    assert_eq!(long, Err(CmError::PrivateData { have: 197, room: 196 }));
    let long = pair.ends[0].reject(request.id, RejectReason::CONSUMER, &[8; 149], now);
    assert_eq!(long, Err(CmError::PrivateData { have: 149, room: 148 }));
    pair.ends[0].reject(request.id, RejectReason::CONSUMER, &[8; 148], now).unwrap();
    pair.flush();
    pair.run_until(2);
    let rejected = pair.expect(1, Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::CONSUMER));
    assert_eq!(rejected.private_data, [8; 148]);
    assert_eq!(pair.ends[1].state(route), Ok(State::Idle));
}

#[test]
fn over_ipv6() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "::", 0);
    let active = pair.route(1, TCP, true, PORT);
    pair.ends[1].connect(active, &parameters(1), b"", pair.now).unwrap();
    pair.flush();
    pair.run_until(1);
    let request = pair.expect(0, ConnectRequest);
    let destination = pair.ends[0].destination(request.id).unwrap().unwrap();
    assert_eq!(destination.ip(), address(1, true));
    pair.accept(0, request.id, 2, b"");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
}

/// `::` hears IPv4 too, unless it says that it does not.
#[test]
fn any_address() {
    for (ip, v6_only, is_heard) in
        [("::", false, true), ("::", true, false), ("0.0.0.0", false, true)]
    {
        let mut pair = Pair::new(1);
        let id = pair.ends[0].create(TCP, QpKind::Rc);
        pair.ends[0].set_v6_only(id, v6_only).unwrap();
        pair.ends[0]
            .bind(id, format!("[{ip}]:{PORT}").parse().or(format!("{ip}:{PORT}").parse()).unwrap())
            .unwrap();
        pair.ends[0].listen(id, 0, pair.now).unwrap();
        pair.dial(1, TCP, 1, b"");
        pair.run_until(5);
        let event = pair.delivered.remove(0).2;
        let expected = if is_heard { ConnectRequest } else { Rejected };
        assert_eq!(event.kind, expected, "{ip} {v6_only}");
        if !is_heard {
            assert_eq!(event.status, Status::Rejected(RejectReason::CONSUMER), "as Linux says it");
        }
    }
}

#[test]
fn a_port_that_nobody_listens_to() {
    let mut pair = Pair::new(1);
    let active = pair.dial(1, TCP, 1, b"");
    pair.run_until(10);
    let event = pair.expect(1, Rejected);
    assert_eq!(event.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    assert_eq!(pair.trace(), [(0, 1, "Req"), (1, 0, "Rej")]);
    pair.ends[1].destroy(active, pair.now).unwrap();
    pair.run_out();
    pair.assert_empty();
}

/// 16 REQs, 1536 ms apart, and then as long again.
/// A program whose device is a moment ahead of its listener.
#[test]
fn a_request_ahead_of_its_listener() {
    let mut pair = Pair::new(1);
    pair.ends[0].hold_early_requests(pair.now + Duration::from_millis(500));
    pair.dial(1, TCP, 0x50, b"hello");
    pair.run_until(20);
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    pair.flush();
    assert_eq!(pair.expect(0, ConnectRequest).listener, Some(listener));
    assert_eq!(pair.trace(), [(0, 1, "Req")], "neither refused nor said again");
}

#[test]
fn a_request_whose_listener_does_not_come() {
    let mut pair = Pair::new(1);
    pair.ends[0].hold_early_requests(pair.now + Duration::from_millis(500));
    pair.dial(1, TCP, 0x50, b"hello");
    pair.run_until(501);
    let event = pair.expect(1, Rejected);
    assert_eq!(event.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    assert_eq!(pair.trace(), [(0, 1, "Req"), (500, 0, "Rej")]);
    pair.dial(1, TCP, 0x51, b"hello");
    pair.run_until(503);
    pair.expect(1, Rejected);
}

#[test]
fn nobody_answers() {
    let mut pair = Pair::new(1);
    pair.lose("Req", u32::MAX);
    pair.dial(1, TCP, 1, b"");
    pair.run_until(60_000);
    let expected: Vec<_> = (0..16).map(|count| (count * 1536, 1, "Req")).collect();
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.events(), [(24_576, 1, Unreachable)]);
}

/// A program that takes its time is asked again after 1536 ms; it is said then to wait: 65536 ms and 512 more.
#[test]
fn a_program_that_takes_its_time() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = asked(&mut pair);
    pair.run_until(100_000);
    assert_eq!(
        pair.trace(),
        [
            (0, 1, "Req"),
            (1536, 1, "Req"),
            (1537, 0, "Mra"),
            (1538 + 66_048, 1, "Req"),
            (67_587, 0, "Mra")
        ]
    );
    pair.accept(0, passive, 2, b"");
    pair.run_until(100_001);
    pair.expect(1, ConnectResponse);
    // And so the other side: an RTU that takes its time.
    pair.run_until(110_000);
    assert_eq!(pair.trace(), [(100_000, 0, "Rep"), (101_024, 0, "Rep"), (101_025, 1, "Mra")]);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(110_001);
    pair.expect(0, Established);
}

#[test]
fn a_lost_rep() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = asked(&mut pair);
    pair.lose("Rep", 2);
    pair.accept(0, passive, 2, b"");
    pair.run_until(3000);
    // The REQ comes again in between and is not answered: the REP is sent again anyway.
    assert_eq!(
        pair.trace(),
        [(0, 1, "Req"), (1, 0, "Rep"), (1025, 0, "Rep"), (1536, 1, "Req"), (2049, 0, "Rep")]
    );
    pair.expect(1, ConnectResponse);
}

#[test]
fn a_lost_rtu() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = asked(&mut pair);
    pair.lose("Rtu", 1);
    pair.accept(0, passive, 2, b"");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(2000);
    assert_eq!(
        pair.trace(),
        [(0, 1, "Req"), (1, 0, "Rep"), (2, 1, "Rtu"), (1025, 0, "Rep"), (1026, 1, "Rtu")]
    );
    assert_eq!(pair.events(), [(1027, 0, Established)]);
}

/// Data that comes before the RTU says that the connection stands.
#[test]
fn established_by_data() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = asked(&mut pair);
    assert_eq!(pair.ends[0].notify_established(passive), Err(CmError::State));
    pair.lose("Rtu", u32::MAX);
    pair.accept(0, passive, 2, b"");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.ends[0].notify_established(passive).unwrap();
    pair.flush();
    assert_eq!(pair.ends[0].notify_established(passive), Err(CmError::IsConnected));
    pair.run_until(10_000);
    assert_eq!(pair.trace(), [(0, 1, "Req"), (1, 0, "Rep"), (2, 1, "Rtu")]);
    assert_eq!(pair.events(), [(2, 0, Established)]);
}

/// Whoever accepts and never hears of it again gives up after 16 REPs, and says so.
#[test]
fn nobody_confirms() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = asked(&mut pair);
    pair.lose("Rtu", u32::MAX);
    pair.accept(0, passive, 2, b"");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.sent_messages.clear();
    pair.run_until(16_386);
    let last = pair.sent_messages.last().cloned().unwrap();
    assert_eq!((last.by, last.message.name(), last.at.as_millis()), (0, "Rej", 1 + 16 * 1024));
    assert_eq!(pair.expect(0, Unreachable).status, Status::TimedOut);
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::TIMEOUT));
    assert_eq!(pair.ends[1].state(active), Ok(State::Timewait));
}

/// A REJ that is lost is given again; the program is asked once.
#[test]
fn a_lost_rej() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = asked(&mut pair);
    pair.lose("Rej", 2);
    pair.ends[0].reject(passive, RejectReason::CONSUMER, b"no", pair.now).unwrap();
    pair.ends[0].destroy(passive, pair.now).unwrap();
    pair.flush();
    pair.run_until(10_000);
    assert_eq!(
        pair.trace(),
        [
            (0, 1, "Req"),
            (1, 0, "Rej"),
            (1536, 1, "Req"),
            (1537, 0, "Rej"),
            (3072, 1, "Req"),
            (3073, 0, "Rej")
        ]
    );
    let rejected = pair.expect(1, Rejected);
    assert_eq!((&rejected.private_data[..2], pair.delivered.len()), (&b"no"[..], 0));
}

/// A QP that its owner connects anew is in no connection any more: the request is rejected, and the old connection ended.
#[test]
fn a_stale_connection() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = connected(&mut pair);
    // The active side forgets everything, as by a crash; its QP number comes again.
    let mut fresh = Pair::new(9);
    std::mem::swap(&mut pair.ends[1], &mut fresh.ends[1]);
    let again = pair.dial(1, TCP, 0x50, b"");
    pair.run_until(10);
    assert_eq!(
        pair.trace(),
        [(3, 1, "Req"), (4, 0, "Rej"), (4, 0, "Dreq"), (5, 1, "Drep")],
        "the DREQ is for a connection that is not known any more"
    );
    let rejected = pair.expect(1, Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::STALE_CONNECTION));
    assert_eq!(pair.expect(0, Disconnected).id, passive);
    assert_eq!(pair.ends[1].state(again), Ok(State::Timewait));
    pair.run_until(1000);
    assert_eq!(pair.events(), [(517, 1, TimewaitExit), (518, 0, TimewaitExit)]);
    // And now it goes.
    pair.dial(1, TCP, 0x50, b"");
    pair.run_until(1001);
    pair.expect(0, ConnectRequest);
}

/// What does not fit into the backlog is not heard, and comes again.
#[test]
fn a_full_backlog() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "0.0.0.0", 1);
    pair.dial(1, TCP, 1, b"1");
    pair.dial(1, TCP, 2, b"2");
    pair.run_until(1535);
    assert_eq!(pair.trace(), [(0, 1, "Req"), (0, 1, "Req")]);
    assert_eq!(pair.delivered.len(), 1);
    assert_eq!(pair.expect(0, ConnectRequest).private_data[0], b'1');
    pair.run_until(1540);
    assert_eq!(pair.expect(0, ConnectRequest).private_data[0], b'2');
}

/// Both ends ask each other at the same time: two connections.
#[test]
fn at_the_same_time() {
    let mut pair = Pair::new(1);
    let mut active = Vec::new();
    for end in 0..2 {
        pair.listen(end, TCP, "0.0.0.0", 0);
    }
    for end in 0..2 {
        active.push(pair.dial(end, TCP, 0x10, b""));
    }
    pair.run_until(1);
    for _ in 0..2 {
        let (_, end, event) = pair.delivered.remove(0);
        assert_eq!(event.kind, ConnectRequest);
        pair.accept(end, event.id, 0x20, b"");
    }
    pair.run_until(2);
    for _ in 0..2 {
        let (_, end, event) = pair.delivered.remove(0);
        assert_eq!((event.kind, event.id), (ConnectResponse, active[end]));
        pair.ends[end].establish(event.id, b"").unwrap();
        pair.flush();
    }
    pair.run_until(10_000);
    assert_eq!(pair.events(), [(3, 1, Established), (3, 0, Established)]);
}

/// Both end it at the same time: both answer, both are told once.
#[test]
fn both_disconnect() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = connected(&mut pair);
    pair.ends[0].disconnect(passive, pair.now).unwrap();
    pair.ends[1].disconnect(active, pair.now).unwrap();
    pair.flush();
    pair.run_until(10_000);
    assert_eq!(pair.trace(), [(3, 0, "Dreq"), (3, 1, "Dreq"), (4, 1, "Drep"), (4, 0, "Drep")]);
    assert_eq!(
        pair.events(),
        [
            (4, 1, Disconnected),
            (4, 0, Disconnected),
            (516, 0, TimewaitExit),
            (516, 1, TimewaitExit)
        ]
    );
}

#[test]
fn a_lost_dreq_and_a_lost_drep() {
    for (lost, said) in [
        ("Dreq", vec![(3, 1, "Dreq"), (1539, 1, "Dreq"), (1540, 0, "Drep")]),
        ("Drep", vec![(3, 1, "Dreq"), (4, 0, "Drep"), (1539, 1, "Dreq"), (1540, 0, "Drep")]),
    ] {
        let mut pair = Pair::new(1);
        let (_, active, passive) = connected(&mut pair);
        pair.lose(lost, 1);
        pair.ends[1].disconnect(active, pair.now).unwrap();
        pair.flush();
        for millis in [4, 1540] {
            pair.run_until(millis);
            if pair.ends[0].state(passive) == Ok(State::DreqReceived) {
                pair.ends[0].disconnect(passive, pair.now).unwrap();
                pair.flush();
            }
        }
        pair.run_until(1541);
        assert_eq!(pair.trace(), said, "{lost}");
        assert_eq!(pair.ends[1].state(active), Ok(State::Timewait));
        let told = pair.events().into_iter().filter(|(_, _, kind)| *kind == Disconnected);
        assert_eq!(told.map(|(_, end, _)| end).collect::<Vec<_>>(), [0, 1], "{lost}");
    }
}

/// A peer that is gone: 16 DREQs, then it is over.
#[test]
fn nobody_agrees() {
    let mut pair = Pair::new(1);
    let (_, active, _) = connected(&mut pair);
    pair.lose("Dreq", u32::MAX);
    pair.ends[1].disconnect(active, pair.now).unwrap();
    pair.flush();
    pair.run_until(30_000);
    assert_eq!(pair.trace().len(), 16);
    let (at, _, event) = pair.delivered.remove(0);
    assert_eq!((at.as_millis(), event.kind), (3 + 24_576, Disconnected));
    assert_eq!(event.status, Status::TimedOut);
    assert_eq!(pair.events(), [(3 + 24_576 + 512, 1, TimewaitExit)]);
}

/// Destroying in any state says what is to be said, and leaves nothing behind.
#[test]
fn destroyed_in_any_state() {
    type Make = fn(&mut Pair) -> (CmId, CmId, CmId);
    let accepted: Make = |pair| {
        let ids = asked(pair);
        pair.accept(0, ids.2, 2, b"");
        ids
    };
    let responded: Make = |pair| {
        let ids = asked(pair);
        pair.accept(0, ids.2, 2, b"");
        pair.run_until(2);
        pair.expect(1, ConnectResponse);
        ids
    };
    let ending: Make = |pair| {
        let ids = connected(pair);
        pair.ends[1].disconnect(ids.1, pair.now).unwrap();
        pair.flush();
        pair.run_until(4);
        ids
    };
    // In which state, which end destroys, and what the other end is told of it.
    let cases: &[(&str, Make, usize, &[EventKind])] = &[
        ("asked", asked, 1, &[Rejected]),
        ("asked", asked, 0, &[Rejected]),
        ("accepted", accepted, 0, &[ConnectResponse, Rejected]),
        ("accepted", accepted, 1, &[Rejected]),
        ("responded", responded, 0, &[Rejected]),
        ("responded", responded, 1, &[Rejected]),
        ("connected", connected, 0, &[Disconnected]),
        ("connected", connected, 1, &[Disconnected]),
        ("ending", ending, 0, &[Disconnected]),
        ("ending", ending, 1, &[Disconnected]),
    ];
    for (name, make, by, told) in cases {
        let mut pair = Pair::new(1);
        let (listener, active, passive) = make(&mut pair);
        let id = [passive, active][*by];
        pair.ends[*by].destroy(id, pair.now).unwrap();
        pair.flush();
        assert_eq!(pair.ends[*by].state(id), Err(CmError::Unknown));
        pair.run_until(5000);
        if pair.ends[1 - by].state([passive, active][1 - by]) == Ok(State::DreqReceived) {
            pair.ends[1 - by].disconnect([passive, active][1 - by], pair.now).unwrap();
            pair.flush();
        }
        pair.run_out();
        let kinds: Vec<_> = pair
            .delivered
            .iter()
            .filter(|(_, end, _)| *end == 1 - by)
            .map(|told| told.2.kind)
            .collect();
        let heard: Vec<_> = kinds.into_iter().filter(|kind| *kind != TimewaitExit).collect();
        assert_eq!(heard, *told, "{name}, destroyed by {by}");
        pair.ends[0].destroy(listener, pair.now).unwrap();
        pair.ends[1 - by].destroy([passive, active][1 - by], pair.now).unwrap();
        pair.run_out();
        pair.assert_empty();
    }
}

/// A listener goes, and with it the requests that nobody has taken; those that are taken stay.
#[test]
fn a_listener_is_destroyed() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    pair.dial(1, TCP, 1, b"1");
    pair.dial(1, TCP, 2, b"2");
    pair.run_until(1);
    let taken = pair.expect(0, ConnectRequest);
    pair.ends[0].destroy(listener, pair.now).unwrap();
    pair.flush();
    pair.run_until(5);
    let (_, _, untaken) = pair.delivered.remove(0);
    assert_eq!(pair.ends[0].state(untaken.id), Err(CmError::Unknown));
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::CONSUMER));
    pair.accept(0, taken.id, 3, b"");
    pair.run_until(6);
    pair.expect(1, ConnectResponse);
    assert_eq!(pair.ends[0].object_counts().ports, 0, "the port is free");
}

/// Options of enhanced connection establishment go through.
#[test]
fn ece() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "0.0.0.0", 0);
    let active = pair.route(1, TCP, false, PORT);
    let (ours, theirs) =
        (Ece { vendor_id: 0x15b3, options: 0x1000_0001 }, Ece { vendor_id: 0xab_cdef, options: 2 });
    pair.ends[1].set_local_ece(active, ours).unwrap();
    pair.ends[1].connect(active, &parameters(1), b"", pair.now).unwrap();
    pair.flush();
    pair.run_until(1);
    let passive = pair.expect(0, ConnectRequest).id;
    assert_eq!(pair.ends[0].remote_ece(passive), Ok(ours));
    pair.ends[0].set_local_ece(passive, theirs).unwrap();
    pair.accept(0, passive, 2, b"");
    pair.run_until(2);
    pair.expect(1, ConnectResponse);
    assert_eq!(pair.ends[1].remote_ece(active), Ok(theirs));
}

/// Chosen traffic class and acknowledgement timeout are said to the peer, too.
#[test]
fn options() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "0.0.0.0", 0);
    let active = pair.ends[1].create(TCP, QpKind::Rc);
    pair.ends[1].set_ack_timeout(active, 20).unwrap();
    assert_eq!(pair.ends[1].set_ack_timeout(active, 32), Err(CmError::State));
    let datagrams = pair.ends[1].create(PortSpace::Udp, QpKind::Ud);
    assert_eq!(pair.ends[1].set_ack_timeout(datagrams, 20), Err(CmError::State));
    let active = pair.route(1, TCP, false, PORT);
    pair.ends[1].set_ack_timeout(active, 20).unwrap();
    pair.ends[1].connect(active, &parameters(1), b"", pair.now).unwrap();
    pair.flush();
    let CmMessage::Req(req) = pair.sent_messages[0].message else { panic!("a REQ") };
    assert_eq!(req.primary_ack_timeout, 20);
    pair.run_until(1);
    let passive = pair.expect(0, ConnectRequest).id;
    assert_eq!(pair.ends[0].qp_parameters(passive).unwrap().ack_timeout, 20);
}

/// Sharing may begin until one listens, and ends only before there is an address.
#[test]
fn options_of_addresses() {
    let mut pair = Pair::new(1);
    let end = &mut pair.ends[0];
    let address = "10.77.0.2:7".parse().unwrap();
    let [first, second] = [0; 2].map(|_| end.create(TCP, QpKind::Rc));
    end.bind(first, address).unwrap();
    end.set_reuse_address(second, true).unwrap();
    assert_eq!(end.bind(second, address), Err(CmError::AddressInUse));
    end.set_v6_only(first, true).unwrap();
    end.set_reuse_address(first, true).unwrap();
    assert_eq!(end.set_reuse_address(first, false), Err(CmError::State));
    end.bind(second, address).unwrap();
    end.destroy(second, Instant::ZERO).unwrap();
    end.listen(first, 0, Instant::ZERO).unwrap();
    assert_eq!(end.set_reuse_address(first, true), Err(CmError::State));
    assert_eq!(end.set_v6_only(first, false), Err(CmError::State));
}

/// Commands out of turn are refused, and change nothing.
#[test]
fn out_of_turn() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let (_, active, passive) = asked(&mut pair);
    let end = &mut pair.ends[1];
    let remote = "10.77.0.2:1".parse().unwrap();
    assert_eq!(end.connect(active, &parameters(1), b"", now), Err(CmError::State));
    assert_eq!(end.accept(active, &parameters(1), b"", now), Err(CmError::State));
    assert_eq!(end.establish(active, b""), Err(CmError::State));
    assert_eq!(end.resolve_address(active, None, remote), Err(CmError::State));
    assert_eq!(end.resolve_route(active), Err(CmError::State));
    assert_eq!(end.listen(active, 0, Instant::ZERO), Err(CmError::State));
    assert_eq!(end.qp_parameters(active).err(), Some(CmError::State));
    assert_eq!(end.wanted_resources(active), Ok(Some(4)), "as it was asked for");
    assert_eq!(end.disconnect(active, now), Ok(()), "nothing to be ended");
    let unbound = end.create(TCP, QpKind::Rc);
    assert_eq!(end.wanted_resources(unbound), Ok(None));
    assert_eq!(end.disconnect(unbound, now), Err(CmError::State));
    assert_eq!(end.reject(unbound, RejectReason::CONSUMER, b"", now), Err(CmError::State));
    let mixed = end.resolve_address(unbound, Some("[::1]:0".parse().unwrap()), remote);
    assert_eq!(mixed, Err(CmError::Family));
    assert_eq!(end.state(CmId::from_number(99)), Err(CmError::Unknown));
    let end = &mut pair.ends[0];
    assert_eq!(end.connect(passive, &parameters(1), b"", now), Err(CmError::State));
    pair.flush();
    pair.run_until(1000);
    assert_eq!(pair.trace(), [(0, 1, "Req")]);
    assert_eq!(pair.events(), []);
}

/// What comes from elsewhere than it says is not heard.
#[test]
fn addresses_that_cannot_be() {
    use feroce_engine::cm::Source;
    use feroce_tests::cm::DEVICE;
    use feroce_wire::cm::{CmMad, IpCmHeader};
    for (source, destination) in [
        ("127.0.0.1:5", "10.77.0.2"),
        ("0.0.0.0:5", "10.77.0.2"),
        ("239.1.1.1:5", "10.77.0.2"),
        ("255.255.255.255:5", "10.77.0.2"),
        ("10.77.0.3:5", "10.77.0.9"),
    ] {
        let mut pair = Pair::new(1);
        asked(&mut pair);
        let CmMessage::Req(mut req) = pair.sent_messages[0].message else { panic!("a REQ") };
        let addresses = IpCmHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        };
        req.private_data[..36].copy_from_slice(&addresses.to_bytes());
        (req.local_comm_id, req.local_qpn) = (1, Qpn::masked(1));
        let mad = CmMad { transaction: 5, modifier: 0, message: req.into() }.to_bytes();
        let from = Source { device: DEVICE, local: address(0, false), remote: address(1, false) };
        pair.ends[0].receive(&mad, &from, Instant::ZERO + DELAY).unwrap();
        pair.sent_messages.clear();
        pair.flush();
        let CmMessage::Rej(rej) = pair.sent_messages[0].message else { panic!("a REJ") };
        assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::CONSUMER, 1), "{source}");
        assert_eq!(pair.delivered.len(), 0);
    }
}

/// A device goes: who went through it is told, and nothing more is said.
#[test]
fn a_device_goes() {
    let mut pair = Pair::new(1);
    let (_, active, _) = connected(&mut pair);
    pair.ends[1].remove_device(feroce_tests::cm::DEVICE);
    pair.flush();
    assert_eq!(pair.expect(1, EventKind::DeviceRemoval).id, active);
    pair.ends[1].destroy(active, pair.now).unwrap();
    pair.flush();
    assert_eq!(pair.trace(), []);
    assert_eq!(pair.ends[1].object_counts(), feroce_engine::cm::ObjectCounts::default());
}
