//! Which client receives a MAD, and what the router answers.

use feroce_wire::cm::SidrStatus;

use super::*;

const PEER_QP: Qpn = Qpn::masked(0x901);

#[test]
fn what_is_no_message_from_a_host_is_dropped() {
    let mut bench = Bench::listening();
    let first_req = mad(9, req(0x91, PEER_QP, PEER, LOCAL));
    let mut arrives = |flow: FlowSpec, mad: &[u8]| bench.router.incoming(&flow, mad, bench.now);
    assert_eq!(arrives(flow_to(PEER), &first_req[..255]), Route::Dropped);
    assert_eq!(arrives(flow_to([0; 4]), &first_req), Route::Dropped);
    assert_eq!(arrives(flow_to([239, 0, 0, 1]), &first_req), Route::Dropped);
    assert_eq!(arrives(flow([239, 0, 0, 1], PEER), &first_req), Route::Dropped);
    assert_eq!(arrives(flow_to(PEER), &first_req), Route::Client(A));
    assert_eq!(bench.sent(), []);
}

#[test]
fn a_request_goes_to_the_client_that_claims_its_service() {
    let mut bench = Bench::new();
    bench.router.claim(A, Claim::port(PortSpace::Tcp, PORT, LOCAL.into())).unwrap();
    bench.router.claim(B, Claim::port(PortSpace::Tcp, PORT + 1, [0, 0, 0, 0].into())).unwrap();
    bench.router.claim(B, Claim::service(ServiceId(5))).unwrap();
    let to_port = |id, port| {
        let service_id = ServiceId::new(PortSpace::Tcp, port);
        Req { service_id, ..req(id, PEER_QP, PEER, LOCAL) }
    };
    assert_eq!(bench.arrives(to_port(0x91, PORT)), Route::Client(A));
    assert_eq!(bench.arrives(to_port(0x92, PORT + 1)), Route::Client(B));
    assert_eq!(bench.arrives(to_port(0x93, PORT + 2)), Route::Answered);
    assert_eq!(bench.sent(), [rej(0, 0x93, 0, RejectReason::INVALID_SERVICE_ID).into()]);
    let bare = Req { service_id: ServiceId(5), private_data: [9; 92], ..to_port(0x94, 0) };
    assert_eq!(bench.arrives(bare), Route::Client(B), "no addresses are needed");
}

/// As `cma_ib_req_handler` and `Endpoint::find_listener`: the port has listeners, but none for the
/// address in the header.
#[test]
fn a_request_to_another_address_is_rejected_by_the_router() {
    let mut bench = Bench::new();
    bench.router.claim(A, Claim::port(PortSpace::Tcp, PORT, OTHER.into())).unwrap();
    bench.router.claim(A, Claim::port(PortSpace::Udp, PORT, OTHER.into())).unwrap();
    let first_req = req(0x91, PEER_QP, PEER, LOCAL);
    let consumer: CmMessage = rej(0, 0x91, 0, RejectReason::CONSUMER).into();
    for request in [
        first_req,
        Req { private_data: addresses(PEER, OTHER), ..first_req }, // not where it was sent
        Req { private_data: [0; 92], ..first_req },                // no addresses
    ] {
        assert_eq!(bench.arrives(request), Route::Answered);
        assert_eq!(bench.sent(), [consumer]);
    }
    assert_eq!(bench.arrives(sidr_req(0x91, PEER, LOCAL)), Route::Answered);
    let status = SidrStatus::REJECT;
    assert_eq!(bench.sent(), [SidrRep { status, ..sidr_rep(0x91, Qpn::default()) }.into()]);
    let unknown = SidrReq { service_id: ServiceId(77), ..sidr_req(0x92, PEER, LOCAL) };
    assert_eq!(bench.arrives(unknown), Route::Answered);
    let (status, service_id) = (SidrStatus::UNSUPPORTED, ServiceId(77));
    let expected = SidrRep { status, service_id, ..sidr_rep(0x92, Qpn::default()) };
    assert_eq!(bench.sent(), [expected.into()]);
}

#[test]
fn copies_of_a_request_go_to_the_client_that_got_the_first() {
    let mut bench = Bench::listening();
    let first_req = req(0x91, PEER_QP, PEER, LOCAL);
    assert_eq!(bench.arrives(first_req), Route::Client(A));
    bench.router.release(A, Claim::port(PortSpace::Tcp, PORT, [0, 0, 0, 0].into()));
    bench.router.claim(B, Claim::port(PortSpace::Tcp, PORT, [0, 0, 0, 0].into())).unwrap();
    assert_eq!(bench.arrives(first_req), Route::Client(A), "although B listens now");
    bench.sends(A, rep(0x11, 0x91, A_QP, GUID)).unwrap();
    assert_eq!(bench.arrives(first_req), Route::Client(A), "A answers with a copy of its REP");
    assert_eq!(bench.arrives(req(0x92, PEER_QP, PEER, LOCAL)), Route::Client(B), "another request");
    let from_other = req(0x91, PEER_QP, OTHER, LOCAL);
    assert_eq!(bench.arrives_from(OTHER, from_other), Route::Client(B), "another host's ID");
    // The peer uses the ID for another service: it has started anew.
    let resolution = SidrReq { service_id: UDP_SERVICE, ..sidr_req(0x91, PEER, LOCAL) };
    assert_eq!(bench.arrives(resolution), Route::Client(A), "request IDs are other IDs");
    let service_id = ServiceId::new(PortSpace::Tcp, PORT + 1);
    bench.router.claim(B, Claim { service: service_id, ..Claim::service(SERVICE) }).unwrap();
    assert_eq!(bench.arrives(Req { service_id, ..first_req }), Route::Client(B));
    assert_eq!(bench.arrives(rtu(0x91, 0x11)), Route::Client(A), "by the local ID");
    let no = rej(0, 0x91, 0, RejectReason::CONSUMER);
    assert_eq!(bench.sends(B, no), Ok(()), "the latest request with this ID");
}

#[test]
fn other_messages_go_to_the_owner_of_the_local_id() {
    let mut bench = Bench::connected_actively();
    let other_qp = Qpn::masked(0x902);
    for message in [
        CmMessage::from(rep(0x91, 0x11, PEER_QP, PEER_GUID)),
        mra(0x91, 0x11, 1, 20).into(),
        rtu(0x91, 0x11).into(),
        dreq(0x91, 0x11, other_qp).into(),
        drep(0x91, 0x11).into(),
        rej(0x91, 0x11, 2, RejectReason::CONSUMER).into(),
    ] {
        assert_eq!(bench.arrives_from(OTHER, message), {
            if matches!(message, CmMessage::Dreq(_)) { Route::Answered } else { Route::Dropped }
        });
        assert_eq!(bench.arrives(message), Route::Client(A), "{message:?}");
    }
    assert_eq!(bench.sent(), [drep(0x11, 0x91).into()], "the DREP to the DREQ of another host");
}

#[test]
fn messages_about_unknown_connections_get_a_drep_or_nothing() {
    let mut bench = Bench::connected_actively();
    for (message, expected) in [
        (CmMessage::from(dreq(0x91, 0x12, A_QP)), Some(drep(0x12, 0x91))),
        (dreq(0x92, 0x11, A_QP).into(), Some(drep(0x11, 0x92))),
        (drep(0x92, 0x11).into(), None),
        (rtu(0x92, 0x11).into(), None),
        (mra(0x92, 0x11, 1, 3).into(), None),
        (rep(0x92, 0x11, PEER_QP, PEER_GUID).into(), None),
        (rep(0x91, 0x12, PEER_QP, PEER_GUID).into(), None),
        (rej(0x92, 0x11, 2, RejectReason::CONSUMER).into(), None),
        (sidr_rep(0x11, PEER_QP).into(), None),
    ] {
        let route = bench.arrives(message);
        let answers: Vec<CmMessage> = expected.map(Into::into).into_iter().collect();
        assert_eq!((route, bench.sent()), {
            (if answers.is_empty() { Route::Dropped } else { Route::Answered }, answers)
        });
    }
}

#[test]
fn a_rep_is_for_the_active_side() {
    let mut bench = Bench::connected_passively();
    assert_eq!(bench.arrives(rep(0x91, 0x11, PEER_QP, PEER_GUID)), Route::Dropped);
}

/// As `cm_dreq_handler`: an endpoint ignores a DREQ for another QP, and stays connected.
#[test]
fn a_dreq_for_another_qp_ends_nothing() {
    for (qpn, expected) in
        [(A_QP, CmMessage::from(drep(0x11, 0x91))), (B_QP, dreq(0x11, 0x91, PEER_QP).into())]
    {
        let mut bench = Bench::connected_passively();
        assert_eq!(bench.arrives(dreq(0x91, 0x11, qpn)), Route::Client(A));
        bench.router.client_gone(A, bench.now);
        assert_eq!(bench.sent(), [expected]);
    }
}

#[test]
fn before_the_rep_the_ids_of_the_peer_are_not_known() {
    for answer in [
        CmMessage::from(rej(0, 0x11, 0, RejectReason::INVALID_SERVICE_ID)),
        rej(0x91, 0x11, 0, RejectReason::CONSUMER).into(),
    ] {
        let mut bench = Bench::new();
        bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
        assert_eq!(bench.arrives(mra(0x91, 0x11, 0, 20)), Route::Client(A));
        assert_eq!(bench.router.connections(A), 1);
        assert_eq!(bench.arrives(answer), Route::Client(A));
        assert_eq!(bench.router.connections(A), 0, "{answer:?}");
    }
}

/// The first REP may have been lost on the way to the client, and the server started anew.
#[test]
fn until_its_rtu_a_client_receives_every_rep() {
    let mut bench = Bench::new();
    bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
    for id in [0x91, 0x92] {
        let route = bench.arrives(rep(id, 0x11, PEER_QP, PEER_GUID));
        assert_eq!(route, Route::Client(A));
    }
    assert_eq!(bench.sends(A, rtu(0x11, 0x92)), Ok(()));
    assert_eq!(bench.arrives(rep(0x91, 0x11, PEER_QP, PEER_GUID)), Route::Dropped);
}

/// The sender of a REJ for a timeout may know no ID of the receiver.
#[test]
fn a_rej_for_a_timeout_is_found_by_guid_and_id_of_its_sender() {
    for guid in [PEER_GUID, GUID] {
        let mut bench = Bench::listening();
        bench.arrives(req(0x91, PEER_QP, PEER, LOCAL));
        let mut late = rej(0x91, 0, 2, RejectReason::TIMEOUT);
        late.info[..8].copy_from_slice(&guid.to_be_bytes());
        let is_peer = guid == PEER_GUID;
        let expected = if is_peer { Route::Client(A) } else { Route::Dropped };
        assert_eq!(bench.arrives(late), expected);
        let accepted = bench.sends(A, rep(0x11, 0x91, A_QP, GUID)).is_ok();
        assert_eq!(accepted, !is_peer, "the request is over");
    }
}

#[test]
fn resolutions_come_back_to_the_requester() {
    let mut bench = Bench::new();
    bench.sends(B, sidr_req(0x21, LOCAL, PEER)).unwrap();
    let answer = sidr_rep(0x21, PEER_QP);
    assert_eq!(bench.arrives_from(OTHER, answer), Route::Dropped);
    assert_eq!(bench.arrives(rep(0x91, 0x21, PEER_QP, PEER_GUID)), Route::Dropped);
    assert_eq!(bench.arrives(answer), Route::Client(B));
    assert_eq!(bench.router.connections(B), 0);
}

/// Connections last without messages; requests and DREQs without a response do not.
#[test]
fn what_is_forgotten_when() {
    let day = 86_400_000;
    for mut bench in [Bench::connected_actively(), Bench::connected_passively()] {
        bench.advance(day);
        assert_eq!(bench.arrives(dreq(0x91, 0x11, A_QP)), Route::Client(A));
        bench.advance(day);
        assert_eq!(bench.sends(A, drep(0x11, 0x91)), Ok(()), "the program took its time");
        bench.advance(100_000);
        assert_eq!(bench.router.table.len(), 0);
    }
    // REQ: 100 s and twice the response time of 4.096 us * 2^18.
    let mut bench = Bench::new();
    bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
    let after = bench.router.next_deadline().map(|due| due.saturating_since(bench.now));
    assert_eq!(after, Some(Duration::from_nanos(100_000_000_000 + 2 * 1_073_741_824)));
    // An MRA extends that by four times its service time, 4.096 us * 2^24.
    bench.arrives(mra(0x91, 0x11, 0, 24));
    let after = bench.router.next_deadline().map(|due| due.saturating_since(bench.now));
    assert_eq!(after, Some(Duration::from_nanos(100_000_000_000 + 4 * 68_719_476_736)));
    bench.advance(374_878);
    assert_eq!(bench.router.connections(A), 0);
    let mut bench = Bench::connected_passively();
    bench.sends(A, dreq(0x11, 0x91, PEER_QP)).unwrap();
    bench.advance(102_148);
    assert_eq!(bench.router.connections(A), 0, "no DREP came");
}
