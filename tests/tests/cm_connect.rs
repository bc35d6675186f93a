//! RDMA CM connections in virtual time with literal times: establishment, retransmission, timewait.
//!
//! End 0 (10.77.0.2) listens, end 1 (10.77.0.3) connects. A message takes 1 ms. With the defaults,
//! a REQ is retransmitted after 2 * 256 + 1024 = 1536 ms, a REP after 1024 ms, and timewait takes
//! 512 ms at either end.

use feroce_engine::cm::{
    CmConfig, CmError, CmId, Ece, EventKind, Parameters, QpKind, State, Status,
};
use feroce_engine::time::{Duration, Instant};
use feroce_tests::cm::{DELAY, PORT, Pair, address, parameters};
use feroce_wire::cm::{CmMessage, PortSpace, RejectReason, Transport};
use feroce_wire::{Psn, Qpn};

use EventKind::{
    ConnectRequest, ConnectResponse, Disconnected, Established, Rejected, TimewaitExit, Unreachable,
};

const TCP: PortSpace = PortSpace::Tcp;

/// Connects until end 0 has the request. Returns the listener, the active and the passive
/// identifier.
fn requested(pair: &mut Pair) -> (CmId, CmId, CmId) {
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    let active = pair.connect(1, TCP, 0x50, b"hello");
    pair.run_until(1);
    let event = pair.expect(0, ConnectRequest);
    assert_eq!(event.listener, Some(listener));
    (listener, active, event.id)
}

/// An established connection, at 3 ms. Returns the same identifiers as [`requested`].
fn connected(pair: &mut Pair) -> (CmId, CmId, CmId) {
    let (listener, active, passive) = requested(pair);
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
fn a_connection_is_established_and_disconnected() {
    let mut pair = Pair::new(1);
    let (listener, active, passive) = requested(&mut pair);
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
    assert_eq!((one.agreed.responder_resources, one.agreed.initiator_depth), (4, 2), "as accepted");
    assert_eq!(
        (two.agreed.responder_resources, two.agreed.initiator_depth),
        (2, 4),
        "limited by the peer"
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
    // 512 ms after the DREP was sent (end 0), and after it arrived (end 1).
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

/// XRC: the initiator announces no receive parameters, the target no send parameters. The target's
/// QP number has a field of its own (EECN).
#[test]
fn an_xrc_initiator_connects_to_a_target() {
    let mut pair = Pair::new(1);
    pair.listen_with_type(0, (PortSpace::Ib, QpKind::XrcTgt), "0.0.0.0", 0);
    let active = pair.route_with_type(1, (PortSpace::Ib, QpKind::XrcIni), false, PORT);
    let local = Parameters { srq: true, ..parameters(0x50) };
    pair.ends[1].connect(active, &local, b"", pair.now).unwrap();
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

    let sent: Vec<_> = pair.sent_messages.iter().map(|said| said.message).collect();
    let [CmMessage::Req(req), CmMessage::Rep(rep), _] = sent[..] else { panic!("{sent:?}") };
    assert_eq!(req.connection(), Some(Transport::Xrc));
    assert_eq!((req.transport, req.extended_transport, req.local_qpn), (3, 1, Qpn::masked(0x50)));
    assert_eq!((req.initiator_depth, req.responder_resources), (2, 0));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.srq), (0, 0, false));
    assert_eq!((rep.local_eecn, rep.local_qpn), (Qpn::masked(0x5e), Qpn::default()));
    assert_eq!((rep.responder_resources, rep.initiator_depth, rep.srq), (4, 0, true));
    let initiator = pair.ends[1].qp_parameters(active).unwrap();
    assert_eq!(initiator.agreed.qpn, Qpn::masked(0x5e));
    assert_eq!((initiator.agreed.retry_count, initiator.agreed.initiator_depth), (7, 4));

    // The DREQ names the target's QP, and the target accepts it.
    pair.ends[1].disconnect(active, pair.now).unwrap();
    pair.flush();
    pair.run_until(4);
    pair.expect(0, Disconnected);
    let target = pair.ends[0].create(PortSpace::Ib, QpKind::XrcTgt);
    assert_eq!(pair.ends[0].connect(target, &local, b"", pair.now), Err(CmError::State));
}

/// Private data is at most 56 (REQ), 196 (REP) and 148 (REJ) bytes.
#[test]
fn private_data_is_limited_by_its_field() {
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
fn a_connection_is_requested_over_ipv6() {
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

/// A listener on `::` also accepts IPv4, except with `v6_only`.
#[test]
fn a_listener_on_the_any_address_accepts_ipv4() {
    for (ip, v6_only, accepts) in
        [("::", false, true), ("::", true, false), ("0.0.0.0", false, true)]
    {
        let mut pair = Pair::new(1);
        let id = pair.ends[0].create(TCP, QpKind::Rc);
        pair.ends[0].set_v6_only(id, v6_only).unwrap();
        pair.ends[0]
            .bind(id, format!("[{ip}]:{PORT}").parse().or(format!("{ip}:{PORT}").parse()).unwrap())
            .unwrap();
        pair.ends[0].listen(id, 0, pair.now).unwrap();
        pair.connect(1, TCP, 1, b"");
        pair.run_until(5);
        let event = pair.delivered.remove(0).2;
        let expected = if accepts { ConnectRequest } else { Rejected };
        assert_eq!(event.kind, expected, "{ip} {v6_only}");
        if !accepts {
            assert_eq!(
                event.status,
                Status::Rejected(RejectReason::CONSUMER),
                "the reason that Linux gives"
            );
        }
    }
}

#[test]
fn a_req_without_a_listener_is_rejected() {
    let mut pair = Pair::new(1);
    let active = pair.connect(1, TCP, 1, b"");
    pair.run_until(10);
    let event = pair.expect(1, Rejected);
    assert_eq!(event.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    assert_eq!(pair.trace(), [(0, 1, "Req"), (1, 0, "Rej")]);
    pair.ends[1].destroy(active, pair.now).unwrap();
    pair.run_out();
    pair.assert_empty();
}

/// A program opens its device before it listens. The request waits for the listener.
#[test]
fn an_early_request_waits_for_its_listener() {
    let mut pair = Pair::new(1);
    pair.ends[0].hold_early_requests(pair.now + Duration::from_millis(500));
    pair.connect(1, TCP, 0x50, b"hello");
    pair.run_until(20);
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    pair.flush();
    assert_eq!(pair.expect(0, ConnectRequest).listener, Some(listener));
    assert_eq!(pair.trace(), [(0, 1, "Req")], "neither rejected nor retransmitted");
}

#[test]
fn an_early_request_without_a_listener_is_rejected_in_time() {
    let mut pair = Pair::new(1);
    pair.ends[0].hold_early_requests(pair.now + Duration::from_millis(500));
    pair.connect(1, TCP, 0x50, b"hello");
    pair.run_until(501);
    let event = pair.expect(1, Rejected);
    assert_eq!(event.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    assert_eq!(pair.trace(), [(0, 1, "Req"), (500, 0, "Rej")]);
    pair.connect(1, TCP, 0x51, b"hello");
    pair.run_until(503);
    pair.expect(1, Rejected);
}

/// 16 REQs are sent 1536 ms apart. Another 1536 ms later the active end gives up.
#[test]
fn a_req_without_a_response_times_out() {
    let mut pair = Pair::new(1);
    pair.lose("Req", u32::MAX);
    pair.connect(1, TCP, 1, b"");
    pair.run_until(60_000);
    let expected: Vec<_> = (0..16).map(|count| (count * 1536, 1, "Req")).collect();
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.events(), [(24_576, 1, Unreachable)]);
}

/// A program that starts 100 ms after the first REQ gets the copy of 128 ms.
#[test]
fn an_early_copy_reaches_a_program_that_has_just_started() {
    let mut pair = Pair::with_config(1, CmConfig::default());
    pair.lose("Req", 1);
    pair.connect(1, TCP, 1, b"");
    pair.run_until(100);
    pair.listen(0, TCP, "0.0.0.0", 0);
    pair.run_until(130);
    pair.expect(0, ConnectRequest);
    assert_eq!(pair.trace(), [(0, 1, "Req"), (128, 1, "Req")]);
}

/// Early copies change neither the number nor the times of the retransmissions, and with a slow
/// program they cause no MRA.
#[test]
fn early_copies_come_in_addition_to_retransmissions() {
    let mut pair = Pair::with_config(1, CmConfig::default());
    requested(&mut pair);
    pair.run_until(2000);
    let copies = [(0, 1, "Req"), (128, 1, "Req"), (512, 1, "Req"), (1536, 1, "Req")];
    assert_eq!(pair.trace(), [&copies[..], &[(1537, 0, "Mra")]].concat());
    let mut pair = Pair::with_config(2, CmConfig::default());
    pair.lose("Req", u32::MAX);
    pair.connect(1, TCP, 1, b"");
    pair.run_until(60_000);
    let mut expected: Vec<_> = (0..16).map(|count| (count * 1536, 1, "Req")).collect();
    expected.splice(1..1, [(128, 1, "Req"), (512, 1, "Req")]);
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.events(), [(24_576, 1, Unreachable)]);
}

/// The program at end 0 does not accept at once. The response to the first retransmitted REQ, after
/// 1536 ms, is an MRA, which makes the active end wait for 65536 ms and 512 ms more.
#[test]
fn an_mra_extends_the_wait_for_a_slow_program() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = requested(&mut pair);
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
    // The active end also sends an MRA if its program delays the RTU.
    pair.run_until(110_000);
    assert_eq!(pair.trace(), [(100_000, 0, "Rep"), (101_024, 0, "Rep"), (101_025, 1, "Mra")]);
    pair.ends[1].establish(active, b"").unwrap();
    pair.flush();
    pair.run_until(110_001);
    pair.expect(0, Established);
}

#[test]
fn a_lost_rep_is_retransmitted() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = requested(&mut pair);
    pair.lose("Rep", 2);
    pair.accept(0, passive, 2, b"");
    pair.run_until(3000);
    // The REQ retransmitted in between gets no response: the REP is retransmitted anyway.
    assert_eq!(
        pair.trace(),
        [(0, 1, "Req"), (1, 0, "Rep"), (1025, 0, "Rep"), (1536, 1, "Req"), (2049, 0, "Rep")]
    );
    pair.expect(1, ConnectResponse);
}

#[test]
fn a_lost_rtu_is_sent_again_for_the_next_rep() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = requested(&mut pair);
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

/// Data that arrives before the RTU establishes the connection.
#[test]
fn data_before_the_rtu_establishes_the_connection() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = requested(&mut pair);
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

/// Without an RTU, the passive end gives up after 16 REPs and sends a REJ.
#[test]
fn a_rep_without_an_rtu_times_out_with_a_rej() {
    let mut pair = Pair::new(1);
    let (_, active, passive) = requested(&mut pair);
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

/// A lost REJ is sent again for each retransmitted REQ. The program gets one request event.
#[test]
fn a_lost_rej_is_sent_again_for_the_repeated_req() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = requested(&mut pair);
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

/// A REQ for a QP that is still connected here shows that the peer has lost the old connection. The
/// request is rejected, and the old connection is disconnected.
#[test]
fn a_req_for_a_connected_qp_ends_the_stale_connection() {
    let mut pair = Pair::new(1);
    let (_, _, passive) = connected(&mut pair);
    // The active end loses its state, as in a crash, and uses the same QP number again.
    let mut fresh = Pair::new(9);
    std::mem::swap(&mut pair.ends[1], &mut fresh.ends[1]);
    let again = pair.connect(1, TCP, 0x50, b"");
    pair.run_until(10);
    assert_eq!(
        pair.trace(),
        [(3, 1, "Req"), (4, 0, "Rej"), (4, 0, "Dreq"), (5, 1, "Drep")],
        "the DREQ is for a connection that end 1 no longer knows"
    );
    let rejected = pair.expect(1, Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::STALE_CONNECTION));
    assert_eq!(pair.expect(0, Disconnected).id, passive);
    assert_eq!(pair.ends[1].state(again), Ok(State::Timewait));
    pair.run_until(1000);
    assert_eq!(pair.events(), [(517, 1, TimewaitExit), (518, 0, TimewaitExit)]);
    // After timewait the same QP can be connected.
    pair.connect(1, TCP, 0x50, b"");
    pair.run_until(1001);
    pair.expect(0, ConnectRequest);
}

/// The DREQ of a stale connection is lost, because no program runs at the peer at this moment. The
/// peer's next attempt succeeds nevertheless.
#[test]
fn the_attempt_after_a_stale_connection_succeeds() {
    let mut pair = Pair::new(1);
    let _ = connected(&mut pair);
    let [_, fresh] = Pair::new(9).ends;
    pair.ends[1] = fresh;
    pair.delivery = Box::new(|_, message| match message {
        CmMessage::Dreq(_) => vec![],
        _ => vec![DELAY],
    });
    pair.connect(1, TCP, 0x50, b"");
    pair.run_until(10);
    let rejected = pair.expect(1, Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::STALE_CONNECTION));
    // The program is started once more, with the same QP number.
    let [_, fresh] = Pair::new(10).ends;
    pair.ends[1] = fresh;
    pair.connect(1, TCP, 0x50, b"");
    pair.run_until(11);
    pair.expect(0, ConnectRequest);
}

/// The REQ that meets the stale connection arrives twice. The copy gets the same REJ and makes no
/// connection, and the next attempt succeeds.
#[test]
fn a_copy_of_a_req_that_was_stale_makes_no_connection() {
    let mut pair = Pair::new(1);
    let _ = connected(&mut pair);
    let [_, fresh] = Pair::new(9).ends;
    pair.ends[1] = fresh;
    pair.delivery = Box::new(|_, message| match message {
        CmMessage::Dreq(_) => vec![],
        CmMessage::Req(_) => vec![DELAY, 3 * DELAY],
        _ => vec![DELAY],
    });
    pair.connect(1, TCP, 0x50, b"");
    pair.run_until(10);
    let rejected = pair.expect(1, Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::STALE_CONNECTION));
    assert!(pair.delivered.iter().all(|(_, _, event)| event.kind != ConnectRequest));
    pair.delivered.clear();
    pair.connect(1, TCP, 0x50, b"");
    pair.run_until(20);
    pair.expect(0, ConnectRequest);
}

/// A REQ with the node GUID and QP number of a connected peer, from another address, does not end
/// the peer's connection.
#[test]
fn a_forged_stale_req_ends_no_connection() {
    use feroce_engine::cm::Source;
    use feroce_tests::cm::DEVICE;
    use feroce_wire::cm::CmMad;
    let mut pair = Pair::new(1);
    let _ = connected(&mut pair);
    let mut copy = Pair::new(1); // With the same seed.
    requested(&mut copy);
    let CmMessage::Req(mut req) = copy.sent_messages[0].message else { panic!("a REQ") };
    req.local_comm_id = 1;
    for (forger, messages) in [("10.77.0.66", vec!["Rej"]), ("10.77.0.3", vec!["Rej", "Dreq"])] {
        req.local_comm_id += 1;
        let mad = CmMad { transaction: 5, modifier: 0, message: req.into() }.to_bytes();
        let remote = forger.parse().unwrap();
        let from = Source { device: DEVICE, local: address(0, false), remote };
        pair.ends[0].receive(&mad, &from, pair.now).unwrap();
        let mut sent = Vec::new();
        while let Some(outgoing) = pair.ends[0].transmit() {
            sent.push(CmMad::parse(&outgoing.mad).unwrap().message.name());
        }
        assert_eq!(sent, messages, "{forger}");
    }
}

/// Lets `millis` milliseconds pass.
fn wait(pair: &mut Pair, millis: u64) {
    let now = u64::try_from(pair.at().as_millis()).unwrap();
    pair.run_until(now + millis);
}

/// A server is killed and restarted twenty times, with the same QP number each time. The client,
/// which keeps running, is connected again within a second each time. The first attempt meets the
/// stale connection.
#[test]
fn a_client_reconnects_to_a_restarted_server_at_once() {
    let mut pair = Pair::new(1);
    for restart in 0..20 {
        let [fresh, _] = Pair::new(100 + restart).ends;
        pair.ends[0] = fresh;
        pair.listen(0, TCP, "0.0.0.0", 0);
        let before = pair.at();
        let mut attempts = 0;
        loop {
            attempts += 1;
            assert!(attempts <= 2, "restart {restart}");
            let active = pair.connect(1, TCP, 0x1000, b"");
            wait(&mut pair, 1);
            let request = pair.expect(0, ConnectRequest).id;
            pair.accept(0, request, 0x10, b"");
            wait(&mut pair, 1);
            let (_, _, event) = pair.delivered.remove(0);
            if event.kind == ConnectResponse {
                pair.ends[1].establish(active, b"").unwrap();
                pair.flush();
                break;
            }
            assert_eq!(event.status, Status::Rejected(RejectReason::STALE_CONNECTION));
            wait(&mut pair, 10);
            pair.delivered.clear();
        }
        assert!(pair.at() - before < Duration::from_secs(1), "restart {restart}");
        wait(&mut pair, 10);
        pair.delivered.clear();
    }
}

/// A request beyond the backlog is dropped and delivered when the peer retransmits it.
#[test]
fn a_request_beyond_the_backlog_is_delivered_later() {
    let mut pair = Pair::new(1);
    pair.listen(0, TCP, "0.0.0.0", 1);
    pair.connect(1, TCP, 1, b"1");
    pair.connect(1, TCP, 2, b"2");
    pair.run_until(1535);
    assert_eq!(pair.trace(), [(0, 1, "Req"), (0, 1, "Req")]);
    assert_eq!(pair.delivered.len(), 1);
    assert_eq!(pair.expect(0, ConnectRequest).private_data[0], b'1');
    pair.run_until(1540);
    assert_eq!(pair.expect(0, ConnectRequest).private_data[0], b'2');
}

/// Both ends connect to each other at the same time. This gives two connections.
#[test]
fn simultaneous_requests_make_two_connections() {
    let mut pair = Pair::new(1);
    let mut active = Vec::new();
    for end in 0..2 {
        pair.listen(end, TCP, "0.0.0.0", 0);
    }
    for end in 0..2 {
        active.push(pair.connect(end, TCP, 0x10, b""));
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

/// Both ends disconnect at the same time: each sends a DREP, and each program gets one event.
#[test]
fn simultaneous_disconnects_are_reported_once() {
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
fn a_lost_dreq_or_drep_is_repeated() {
    for (lost, sent) in [
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
        assert_eq!(pair.trace(), sent, "{lost}");
        assert_eq!(pair.ends[1].state(active), Ok(State::Timewait));
        let disconnected = pair.events().into_iter().filter(|(_, _, kind)| *kind == Disconnected);
        assert_eq!(disconnected.map(|(_, end, _)| end).collect::<Vec<_>>(), [0, 1], "{lost}");
    }
}

/// Without a DREP, the connection ends after 16 DREQs.
#[test]
fn a_dreq_without_a_drep_times_out() {
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

/// Destroying an identifier in any state notifies the peer and leaves no object behind.
#[test]
fn an_identifier_can_be_destroyed_in_any_state() {
    type Make = fn(&mut Pair) -> (CmId, CmId, CmId);
    let accepted: Make = |pair| {
        let ids = requested(pair);
        pair.accept(0, ids.2, 2, b"");
        ids
    };
    let responded: Make = |pair| {
        let ids = requested(pair);
        pair.accept(0, ids.2, 2, b"");
        pair.run_until(2);
        pair.expect(1, ConnectResponse);
        ids
    };
    let disconnecting: Make = |pair| {
        let ids = connected(pair);
        pair.ends[1].disconnect(ids.1, pair.now).unwrap();
        pair.flush();
        pair.run_until(4);
        ids
    };
    // The state, the end that destroys, and the events at the other end.
    let cases: &[(&str, Make, usize, &[EventKind])] = &[
        ("requested", requested, 1, &[Rejected]),
        ("requested", requested, 0, &[Rejected]),
        ("accepted", accepted, 0, &[ConnectResponse, Rejected]),
        ("accepted", accepted, 1, &[Rejected]),
        ("responded", responded, 0, &[Rejected]),
        ("responded", responded, 1, &[Rejected]),
        ("connected", connected, 0, &[Disconnected]),
        ("connected", connected, 1, &[Disconnected]),
        ("disconnecting", disconnecting, 0, &[Disconnected]),
        ("disconnecting", disconnecting, 1, &[Disconnected]),
    ];
    for (name, make, by, expected) in cases {
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
            .map(|event| event.2.kind)
            .collect();
        let others: Vec<_> = kinds.into_iter().filter(|kind| *kind != TimewaitExit).collect();
        assert_eq!(others, *expected, "{name}, destroyed by {by}");
        pair.ends[0].destroy(listener, pair.now).unwrap();
        pair.ends[1 - by].destroy([passive, active][1 - by], pair.now).unwrap();
        pair.run_out();
        pair.assert_empty();
    }
}

/// Destroying a listener rejects the requests that its program has not taken. Taken requests stay.
#[test]
fn destroying_a_listener_rejects_untaken_requests() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(0, TCP, "0.0.0.0", 0);
    pair.connect(1, TCP, 1, b"1");
    pair.connect(1, TCP, 2, b"2");
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

/// Options of enhanced connection establishment (ECE) reach the peer in both directions.
#[test]
fn ece_options_reach_the_peer() {
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

/// A chosen ACK timeout is sent to the peer and used there.
#[test]
fn the_ack_timeout_option_reaches_the_peer() {
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

/// Address reuse can be enabled until the identifier listens, and disabled only before it is bound.
#[test]
fn address_options_are_refused_when_it_is_too_late() {
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

/// A program may listen on both families at one port: on `::` without IPv4, and on `0.0.0.0`, which
/// excludes IPv6 without an option.
#[test]
fn both_families_share_a_port() {
    let mut pair = Pair::new(1);
    let end = &mut pair.ends[0];
    for (v6_only, expected) in [(true, Ok(())), (false, Err(CmError::AddressNotAvailable))] {
        let [v6, v4] = [0; 2].map(|_| end.create(TCP, QpKind::Rc));
        end.set_v6_only(v6, v6_only).unwrap();
        end.bind(v6, "[::]:7".parse().unwrap()).unwrap();
        assert_eq!(end.bind(v4, "0.0.0.0:7".parse().unwrap()), expected, "{v6_only}");
        [v6, v4].into_iter().for_each(|id| end.destroy(id, Instant::ZERO).unwrap());
    }
}

/// Commands in a wrong state are refused and change nothing.
#[test]
fn commands_in_a_wrong_state_are_refused() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let (_, active, passive) = requested(&mut pair);
    let end = &mut pair.ends[1];
    let remote = "10.77.0.2:1".parse().unwrap();
    assert_eq!(end.connect(active, &parameters(1), b"", now), Err(CmError::State));
    assert_eq!(end.accept(active, &parameters(1), b"", now), Err(CmError::State));
    assert_eq!(end.establish(active, b""), Err(CmError::State));
    assert_eq!(end.resolve_address(active, None, remote), Err(CmError::State));
    assert_eq!(end.resolve_route(active), Err(CmError::State));
    assert_eq!(end.listen(active, 0, Instant::ZERO), Err(CmError::State));
    assert_eq!(end.qp_parameters(active).err(), Some(CmError::State));
    assert_eq!(end.wanted_resources(active), Ok(Some(4)), "as requested");
    assert_eq!(end.disconnect(active, now), Ok(()), "nothing to disconnect");
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

/// A REQ with addresses that are impossible, or that differ from those of its packet, is rejected.
#[test]
fn a_req_with_impossible_addresses_is_rejected() {
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
        requested(&mut pair);
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

/// Removing a device notifies the programs of its connections and sends nothing.
#[test]
fn removing_a_device_notifies_its_connections() {
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
