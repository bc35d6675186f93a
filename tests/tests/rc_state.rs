//! QP states of the RC service as a program sees them: drain, error, reset, events; and keys that a
//! peer invalidates.

use feroce_engine::counters::Counter;
use feroce_engine::device::{ConnectOptions, PostError};
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{
    AsyncEvent, CompletionOpcode, Data, Extra, RecvRequest, RemoteAddr, SendFlags, SendOp,
    SendRequest, Sge, Status,
};
use feroce_tests::drain;
use feroce_tests::pair::{Crafted, FIRST_PSN, Pair, PairSetup};
use feroce_wire::{Ieth, Key, Opcode, Psn, RnrTimer};

const FLUSHED: Status = Status::WorkRequestFlushed;

fn to(state: QpState) -> QpAttributes {
    QpAttributes { state: Some(state), ..QpAttributes::default() }
}

#[test]
fn a_cq_overflow_moves_the_qp_to_err_with_events() {
    let mut pair = Pair::new(&PairSetup { cq_depth: 2, ..PairSetup::default() });
    for wr_id in 1..=4 {
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 4);
    }
    pair.run(10);
    let expected = [AsyncEvent::CqError(pair.cqs[0].id()), AsyncEvent::QpFatal(pair.qps[0].qpn())];
    assert_eq!(pair.events(0), expected);
    assert!(pair.cqs[0].overflowed() && !pair.cqs[1].overflowed());
    assert_eq!(pair.state(0), QpState::Err);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.counters(0), [(Counter::CqOverflow, 2)], "completions lost");
}

/// In SQD, started requests finish and the others wait. Then the event is raised. RTS resumes the
/// queue.
#[test]
fn sqd_drains_and_resumes() {
    let mut setup = PairSetup::default();
    setup.config.window = 32;
    let mut pair = Pair::new(&setup);
    pair.post(1, SendOp::Write(pair.remote(0)), 40 * 256);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.rig.settle();
    let sqd = QpAttributes { en_sqd_async_notify: Some(true), ..to(QpState::Sqd) };
    pair.qps[0].modify(&sqd).unwrap();
    pair.rig.settle();
    assert_eq!(pair.events(0), [], "32 packets are outstanding");
    pair.run(20);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained(pair.qps[0].qpn())]);
    pair.run(10_000);
    assert!(
        pair.packets().iter().all(|line| !line.contains("Only")),
        "no other request is started"
    );
    // The QP still receives and responds.
    pair.inject_read_of_end_0();
    pair.run(10);
    assert_eq!(pair.packets(), ["> Read Response Only 5000 ack msn 1"]);
    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(2, Status::Success)]);
}

#[test]
fn an_idle_qp_in_sqd_is_drained_at_once() {
    let mut pair = Pair::default();
    let sqd = QpAttributes { en_sqd_async_notify: Some(true), ..to(QpState::Sqd) };
    pair.qps[0].modify(&sqd).unwrap();
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained(pair.qps[0].qpn())]);
    let retimed = QpAttributes { timeout: Some(4), ..to(QpState::Sqd) };
    pair.qps[0].modify(&retimed).unwrap();
    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.lose(0, 100, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(100);
    assert_eq!(pair.trace()[1], "65.536 > Write Only 100 A at 0 len 4");
}

/// The last packet before the drain has no AckReq, because another request was to follow.
#[test]
fn a_drain_completes_without_a_timeout() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = 0));
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.post(2, SendOp::Read(pair.remote(0)), 4);
    pair.post(3, SendOp::Write(pair.remote(0)), 10 * 256);
    // Two that could follow the third in a run.
    pair.post(4, SendOp::Write(pair.remote(0)), 4);
    pair.post(5, SendOp::Write(pair.remote(0)), 4);
    // One turn sends a quantum of sixteen packets, which ends with the third request.
    pair.rig.devices[0].turn(pair.rig.now);
    let sqd = QpAttributes { en_sqd_async_notify: Some(true), ..to(QpState::Sqd) };
    pair.qps[0].modify(&sqd).unwrap();
    pair.run(20);
    assert_eq!(pair.packets()[15..17], ["> Write Last 115", "> Write Last 115 A"]);
    assert_eq!(pair.events(0), [AsyncEvent::SqDrained(pair.qps[0].qpn())]);
    assert_eq!(pair.done(0).len(), 3);
    pair.qps[0].modify(&to(QpState::Rts)).unwrap();
    pair.run(20);
    assert_eq!(pair.done(0).len(), 2);
}

/// C9-220, C10-42.
#[test]
fn err_flushes_both_queues_in_order_and_later_posts() {
    let mut pair = Pair::default();
    pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
    for wr_id in 1..=3 {
        pair.post_flagged(wr_id, SendOp::Write(pair.remote(0)), 4, SendFlags::NONE);
        let sges = [pair.buffers[0].region().sge(0, 4)];
        pair.qps[0].post_recv(&RecvRequest { wr_id: 10 + wr_id, sges: &sges }).unwrap();
    }
    pair.run(10);
    assert_eq!(pair.done(0), []);
    pair.qps[0].modify(&to(QpState::Err)).unwrap();
    let sends = [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)];
    let receives = [(11, FLUSHED), (12, FLUSHED), (13, FLUSHED)];
    assert_eq!(pair.done(0), [sends, receives].concat());
    pair.post(4, SendOp::Write(pair.remote(0)), 4);
    pair.qps[0].post_recv(&RecvRequest { wr_id: 14, sges: &[] }).unwrap();
    pair.run(10_000);
    assert_eq!(pair.done(0), [(4, FLUSHED), (14, FLUSHED)]);
    assert_eq!(pair.events(0), [], "no event: the program moved the QP to ERR");
    let counters = [(Counter::ReqCqeFlushError, 4), (Counter::RespCqeFlushError, 4)];
    assert_eq!(pair.counters(0), counters);
    assert_eq!(pair.packets().len(), 3, "nothing is sent in ERR");
}

/// A program posts a request and moves its QP to ERR at once, as `rdma_disconnect` does. The core
/// knows of the request only by the doorbell; the request is sent nevertheless.
#[test]
fn a_request_posted_just_before_err_is_sent() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    pair.run(10); // The QP has nothing to send.
    pair.post(1, SendOp::Send, 4);
    pair.qps[0].modify(&to(QpState::Err)).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(1, FLUSHED)]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
}

/// ERR flushes every request, also one that would fail at this end if it were sent.
#[test]
fn a_request_with_a_local_error_is_flushed_by_err() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    pair.run(10); // The QP has nothing to send.
    let wrong = Sge { lkey: Key(0xffff_ff01), ..pair.buffers[0].region().sge(0, 4) };
    pair.post(1, SendOp::Send, 4);
    pair.post_sges(2, SendOp::Send, &[wrong], SendFlags::SIGNALED);
    // A transition that is refused changes nothing.
    let refused = QpAttributes { current_state: Some(QpState::Init), ..to(QpState::Err) };
    assert!(pair.qps[0].modify(&refused).is_err());
    pair.qps[0].modify(&to(QpState::Err)).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);

    // The QP reports its own errors again after a transition that was refused.
    let mut pair = Pair::default();
    assert!(pair.qps[0].modify(&refused).is_err());
    pair.post_sges(2, SendOp::Send, &[wrong], SendFlags::SIGNALED);
    assert!(pair.qps[0].modify(&refused).is_err());
    pair.run(10);
    assert_eq!(pair.done(0), [(2, Status::LocalProtection)]);
}

/// Before a program moves a QP to ERR, the QP sends what it can. If the memory of a READ response
/// has gone then, the peer gets a NAK, and the QP goes to ERR for that reason: one event. In ERR,
/// further requests to the same memory cause none.
#[test]
fn a_response_withdrawn_just_before_err_causes_one_event() {
    let mut pair = Pair::default();
    let region = pair.pds[1].alloc_buffer(16 * 1024, Access::ALL).unwrap();
    let remote = RemoteAddr { addr: region.region().addr(), rkey: region.region().rkey() };
    pair.post(1, SendOp::Read(remote), 40 * 256);
    pair.post(2, SendOp::Read(remote), 4);
    pair.rig.devices[0].turn(pair.rig.now);
    pair.rig.wire.step(pair.rig.now);
    pair.rig.now += Duration::from_micros(1);
    pair.rig.wire.step(pair.rig.now);
    pair.rig.devices[1].turn(pair.rig.now);
    pair.rig.devices[1].turn(pair.rig.now); // Sends the first packets of the response.
    drop(region);
    assert_eq!((pair.state(1), pair.events(1)), (QpState::Rts, Vec::new()));
    pair.qps[1].modify(&to(QpState::Err)).unwrap();
    let event = AsyncEvent::QpAccessError(pair.qps[1].qpn());
    assert_eq!((pair.state(1), pair.events(1)), (QpState::Err, vec![event]));
    pair.qps[1].modify(&to(QpState::Err)).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess), (2, FLUSHED)]);
    pair.inject(&Crafted::new(Opcode::RC_READ_REQUEST, FIRST_PSN[0], &[]).reth(remote, 4));
    pair.run(10);
    assert_eq!((pair.state(1), pair.events(1)), (QpState::Err, Vec::new()));
}

/// The last message is sent whole, although it has more packets than a QP sends per turn.
#[test]
fn a_long_request_posted_just_before_err_is_sent_whole() {
    let mut pair = Pair::default();
    let len = 40 * 256;
    pair.post_recv(7, len);
    pair.run(10);
    pair.post(1, SendOp::Send, len);
    pair.qps[0].modify(&to(QpState::Err)).unwrap();
    pair.run(10);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
}

#[test]
fn reset_clears_the_qp_and_it_can_connect_again() {
    let mut pair = Pair::default();
    pair.rig.wire.set_filter(Some(Box::new(|from, _, _| from == 1)));
    pair.post_recv(7, 100);
    pair.post_recv(8, 100);
    pair.post(1, SendOp::Send, 4);
    pair.post(2, SendOp::Read(pair.remote(0)), 4);
    pair.run(10);
    pair.rig.wire.set_filter(None);
    for end in 0..2 {
        pair.qps[end].modify(&to(QpState::Reset)).unwrap();
    }
    assert_eq!(pair.done(0), [], "no completions for dropped requests");
    assert_eq!(pair.done(1), [], "unpolled completions are dropped, too");
    let request =
        SendRequest { wr_id: 3, op: SendOp::Send, data: Data::Sges(&[]), flags: SendFlags::NONE };
    assert_eq!(pair.qps[0].post_send(&request), Err(PostError::State));
    let receive = RecvRequest { wr_id: 3, sges: &[] };
    assert_eq!(pair.qps[0].post_recv(&receive), Err(PostError::State));
    pair.run(100_000);
    pair.trace();
    pair.connect();
    pair.post_recv(9, 100);
    pair.post(4, SendOp::Send, 4);
    pair.run(10);
    assert_eq!(pair.packets(), ["> Send Only 100 A", "< Acknowledge 100 ack msn 1"]);
    assert_eq!(pair.done(0), [(4, Status::Success)]);
    assert_eq!(pair.done(1), [(9, Status::Success)]);
}

#[test]
fn an_errored_qp_can_be_reset_and_used() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(RemoteAddr { addr: 0, ..pair.remote(0) }), 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
    for end in 0..2 {
        pair.qps[end].modify(&to(QpState::Reset)).unwrap();
    }
    pair.connect();
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(2, Status::Success)]);
}

/// The first packet on a QP in RTR causes an event, once.
#[test]
fn the_first_packet_in_rtr_causes_one_event() {
    let mut pair = Pair::default();
    pair.qps[1].modify(&to(QpState::Reset)).unwrap();
    let (peer, options) =
        (pair.qps[0].endpoint(Psn::new(100), 0).unwrap(), ConnectOptions::default());
    let path = feroce_engine::device::Path::new(peer.gid, 0);
    let flow = pair.qps[1].resolve(&path, peer.qpn).unwrap();
    let init = QpAttributes {
        pkey: Some(feroce_wire::Pkey::DEFAULT),
        port: Some(1),
        access: Some(options.access),
        ..to(QpState::Init)
    };
    let rtr = QpAttributes {
        flow: Some(flow),
        path_mtu: Some(feroce_wire::PathMtu::Mtu256),
        dest_qp: Some(peer.qpn),
        rq_psn: Some(Psn::new(FIRST_PSN[0])),
        max_dest_rd_atomic: Some(16),
        min_rnr_timer: RnrTimer::new(12),
        ..to(QpState::Rtr)
    };
    pair.qps[1].modify(&init).unwrap();
    pair.qps[1].modify(&rtr).unwrap();
    assert_eq!(pair.events(1), []);
    for wr_id in 0..2 {
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 4);
        pair.run(10);
    }
    assert_eq!(pair.done(0).len(), 2, "a QP in RTR responds");
    assert_eq!(pair.events(1), [AsyncEvent::CommunicationEstablished(pair.qps[1].qpn())]);
    let request =
        SendRequest { wr_id: 3, op: SendOp::Send, data: Data::Sges(&[]), flags: SendFlags::NONE };
    assert_eq!(pair.qps[1].post_send(&request), Err(PostError::State));
}

#[test]
fn a_qp_in_init_or_reset_drops_packets() {
    let mut pair = Pair::default();
    pair.qps[1].modify(&to(QpState::Reset)).unwrap();
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    assert_eq!(pair.packets().len(), 1);
    assert_eq!(pair.counters(1), [(Counter::RxDiscards, 1)]);
}

#[test]
fn send_with_invalidate_makes_a_key_invalid() {
    let mut pair = Pair::default();
    let region = pair.pds[1].alloc_buffer(4096, Access::ALL).unwrap();
    let rkey = region.region().rkey();
    let remote = RemoteAddr { addr: region.region().addr(), rkey };
    pair.post_recv(7, 100);
    pair.post(1, SendOp::Write(remote), 8);
    pair.post(2, SendOp::SendInvalidate(rkey), 300 - 256);
    pair.post(3, SendOp::Write(remote), 8);
    pair.run(10);
    let (ok, refused) = (Status::Success, Status::RemoteAccess);
    assert_eq!(pair.done(0), [(1, ok), (2, ok), (3, refused)]);
    let received = drain(&pair.cqs[1]);
    assert_eq!(received[0].extra, Extra::Invalidated(rkey));
    assert_eq!((received[0].opcode, received[0].byte_len), (CompletionOpcode::Receive, 44));
    assert_eq!(pair.packets().last().unwrap(), "< Acknowledge 102 nak remote-access msn 2");
}

/// A SEND WITH INVALIDATE of a key that may not be invalidated is an error of class J (IBTA volume
/// 1, section 9.9.6.3): the receive fails and the connection ends, without a NAK. The requests
/// before it are acknowledged.
#[test]
fn a_key_that_may_not_be_invalidated_ends_the_connection_without_a_nak() {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for is_unknown in [false, true] {
        let mut pair = Pair::default();
        let region = pair.pds[1].alloc_buffer(4096, access).unwrap();
        let rkey = if is_unknown { feroce_wire::Key(0xffff_ff01) } else { region.region().rkey() };
        pair.post_recv(7, 100);
        pair.post_recv(8, 100);
        pair.post(1, SendOp::Write(pair.remote(0)), 4);
        pair.post(2, SendOp::SendInvalidate(rkey), 4);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::Success)]);
        assert_eq!(pair.done(1), [(7, Status::RemoteInvalidRequest), (8, FLUSHED)]);
        assert_eq!((pair.state(1), pair.events(1)), (QpState::Err, vec![]));
        let expected = [
            "> Write Only 100 at 0 len 4",
            "> Send Only Invalidate 101 A",
            "< Acknowledge 100 ack msn 1",
        ];
        assert_eq!(pair.packets(), expected);
        pair.run(1_000_000);
        assert_eq!(pair.done(0), [(2, Status::RetryExceeded)]);
        assert!(pair.packets().iter().all(|packet| packet.starts_with('>')));
    }
}

/// Without an earlier request, the peer of such a request gets no packet at all.
#[test]
fn a_first_request_with_a_wrong_key_to_invalidate_gets_no_response() {
    let mut pair = Pair::default();
    pair.post_recv(7, 100);
    let mut crafted = Crafted::new(Opcode::RC_SEND_ONLY_INV, 100, &[1; 4]);
    crafted.bth.ack_req = true;
    crafted.ext.ieth = Some(Ieth { rkey: feroce_wire::Key(0xffff_ff01) });
    pair.inject(&crafted);
    pair.run(10);
    assert_eq!(pair.packets(), Vec::<String>::new());
    assert_eq!(pair.done(1), [(7, Status::RemoteInvalidRequest)]);
}
