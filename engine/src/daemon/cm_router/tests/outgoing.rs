//! What clients may send.

use feroce_wire::MadError;
use feroce_wire::cm::SidrStatus;

use super::*;

#[test]
fn a_client_must_be_attached_and_send_messages_of_cm_to_hosts() {
    let mut bench = Bench::new();
    let first_req = req(0x11, A_QP, LOCAL, PEER);
    assert_eq!(bench.sends(ClientId(3), first_req), Err(Refused::UnknownClient));
    let owns = |_| true;
    let mut send = |dst, mad: &[u8]| bench.router.outgoing(A, &flow_to(dst), mad, &owns, bench.now);
    let mut other_class = mad(7, first_req);
    other_class[1] = 0x03;
    let malformed = Refused::Malformed;
    assert_eq!(send(PEER, &other_class), Err(malformed(MadError::Class(3))));
    assert_eq!(send(PEER, &[0; 255]), Err(malformed(MadError::Length(255))));
    assert_eq!(send(PEER, &[]), Err(malformed(MadError::Length(0))));
    for dst in [[239, 0, 0, 1], [255; 4], [0; 4], [127, 0, 0, 1]] {
        assert_eq!(send(dst, &mad(7, first_req)), Err(Refused::Destination(dst.into())));
    }
    assert_eq!(bench.router.connections(A), 0);
    bench.router.client_gone(A, bench.now);
    assert_eq!(bench.sends(A, first_req), Err(Refused::UnknownClient));
}

#[test]
fn requests_name_a_qp_a_guid_and_addresses_of_the_client() {
    let mut bench = Bench::new();
    let first_req = req(0x11, A_QP, LOCAL, PEER);
    for (request, expected) in [
        (Req { local_qpn: B_QP, ..first_req }, Err(Refused::Qpn(B_QP))),
        (Req { local_qpn: Qpn::GSI, ..first_req }, Err(Refused::Qpn(Qpn::GSI))),
        (Req { local_ca_guid: PEER_GUID, ..first_req }, Err(Refused::Guid(PEER_GUID))),
        (Req { primary_local_gid: mapped(OTHER), ..first_req }, Err(Refused::SourceAddress)),
        (Req { private_data: addresses(OTHER, PEER), ..first_req }, Err(Refused::SourceAddress)),
        (Req { local_comm_id: 0, ..first_req }, Err(Refused::CommIdInUse(0))),
        (Req { local_comm_id: 0x12, local_qpn: Qpn::default(), ..first_req }, Ok(())),
        // No port of RDMA CM: the private data is the program's.
        (Req { service_id: ServiceId(5), private_data: [0x40; 92], ..first_req }, Ok(())),
    ] {
        assert_eq!(bench.sends(A, request), expected, "{request:?}");
    }
    let mut gsi = CmRouter::new(GUID, || 0);
    gsi.add_client(A, Limits::default());
    let all = |_| true;
    let to_gsi = mad(7, Req { local_qpn: Qpn::GSI, ..first_req });
    let refused = gsi.outgoing(A, &flow_to(PEER), &to_gsi, &all, bench.now);
    assert_eq!(refused, Err(Refused::Qpn(Qpn::GSI)), "even if the caller says that A owns it");
    let resolution = sidr_req(0x21, LOCAL, PEER);
    for (request, expected) in [
        (SidrReq { request_id: 0, ..resolution }, Err(Refused::CommIdInUse(0))),
        (SidrReq { private_data: addresses(OTHER, PEER), ..resolution }, {
            Err(Refused::SourceAddress)
        }),
        (resolution, Ok(())),
    ] {
        assert_eq!(bench.sends(A, request), expected);
    }
    assert_eq!(bench.router.connections(A), 3);
}

#[test]
fn a_communication_id_belongs_to_one_client_and_one_connection() {
    let mut bench = Bench::connected_actively();
    let again = req(0x11, B_QP, LOCAL, PEER);
    let in_use = Err(Refused::CommIdInUse(0x11));
    assert_eq!(bench.sends(B, again), in_use);
    assert_eq!(bench.sends(B, sidr_req(0x11, LOCAL, PEER)), in_use);
    for forged in [
        CmMessage::from(rtu(0x11, 0x91)),
        dreq(0x11, 0x91, B_QP).into(),
        drep(0x11, 0x91).into(),
        mra(0x11, 0x91, 1, 20).into(),
        rej(0x11, 0x91, 1, RejectReason::CONSUMER).into(),
        rep(0x11, 0x91, B_QP, GUID).into(),
    ] {
        assert_eq!(bench.sends(B, forged), in_use, "{forged:?}");
    }
    // A itself may repeat the REQ, and not use the ID for another connection.
    assert_eq!(bench.sends(A, req(0x11, A_QP, LOCAL, PEER)), Ok(()));
    assert_eq!(bench.sends_to(A, OTHER, req(0x11, A_QP, LOCAL, OTHER)), in_use);
    assert_eq!(bench.sends(A, sidr_req(0x11, LOCAL, PEER)), in_use);
    assert_eq!(bench.router.connections(A), 1);
    // After the end of the connection it may.
    bench.sends(A, dreq(0x11, 0x91, Qpn::masked(0x901))).unwrap();
    assert_eq!(bench.arrives(drep(0x91, 0x11)), Route::Client(A));
    assert_eq!(bench.router.connections(A), 0);
    assert_eq!(bench.sends(B, again), in_use, "as long as late copies may arrive");
    assert_eq!(bench.sends_to(A, OTHER, req(0x11, A_QP, LOCAL, OTHER)), Ok(()));
}

#[test]
fn an_id_is_free_when_its_exchange_is_forgotten() {
    let mut bench = Bench::connected_actively();
    bench.sends(A, dreq(0x11, 0x91, Qpn::masked(0x901))).unwrap();
    bench.arrives(drep(0x91, 0x11));
    assert_eq!(bench.router.next_deadline(), Some(bench.now + Duration::from_secs(100)));
    bench.advance(99_999);
    assert_eq!(bench.sends(A, drep(0x11, 0x91)), Ok(()), "a late copy, which extends the time");
    bench.advance(99_999);
    assert!(bench.sends(B, req(0x11, B_QP, LOCAL, PEER)).is_err());
    bench.advance(1);
    assert_eq!(bench.sends(B, req(0x11, B_QP, LOCAL, PEER)), Ok(()));
    assert_eq!(bench.sends(A, drep(0x11, 0x91)), Err(Refused::CommIdInUse(0x11)));
}

#[test]
fn messages_of_a_connection_go_to_its_peer_with_its_ids() {
    let mut bench = Bench::connected_actively();
    let qpn = Qpn::masked(0x901);
    let unknown = |local, remote| Err(Refused::NoConnection { local, remote });
    assert_eq!(bench.sends_to(A, OTHER, dreq(0x11, 0x91, qpn)), unknown(0x11, 0x91));
    assert_eq!(bench.sends(A, dreq(0x11, 0x92, qpn)), unknown(0x11, 0x92));
    assert_eq!(bench.sends(A, dreq(0x11, 0, qpn)), unknown(0x11, 0));
    assert_eq!(bench.sends(A, dreq(0x12, 0x91, qpn)), unknown(0x12, 0x91));
    assert_eq!(bench.sends(A, rtu(0x12, 0x91)), unknown(0x12, 0x91));
    assert_eq!(bench.sends(A, drep(0, 0x91)), unknown(0, 0x91));
    assert_eq!(bench.sends(A, mra(0x11, 0x92, 1, 20)), unknown(0x11, 0x92));
    assert_eq!(bench.sends(A, rep(0x11, 0x91, A_QP, GUID)), unknown(0x11, 0x91), "it is active");
    assert_eq!(bench.sends(A, dreq(0x11, 0x91, qpn)), Ok(()));
}

/// The kernel finds the connection of a REJ for a timeout by GUID and communication ID of the
/// sender, whatever host sends it.
#[test]
fn a_rej_for_a_timeout_names_the_own_guid() {
    let mut bench = Bench::new();
    bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
    let mut late = rej(0x11, 0, 2, RejectReason::TIMEOUT);
    late.info[..8].copy_from_slice(&PEER_GUID.to_be_bytes());
    assert_eq!(bench.sends(A, late), Err(Refused::Guid(PEER_GUID)));
    late.info[..8].copy_from_slice(&GUID.to_be_bytes());
    assert_eq!(bench.sends(A, late), Ok(()));
    assert_eq!(bench.router.connections(A), 0);
}

#[test]
fn only_the_client_that_got_a_request_answers_it() {
    let mut bench = Bench::listening();
    let peer_qp = Qpn::masked(0x901);
    assert_eq!(bench.arrives(req(0x91, peer_qp, PEER, LOCAL)), Route::Client(A));
    let unknown = |local, remote| Err(Refused::NoConnection { local, remote });
    let consumer = RejectReason::CONSUMER;
    assert_eq!(bench.sends(B, rej(0, 0x91, 0, consumer)), unknown(0, 0x91));
    assert_eq!(bench.sends(B, rep(0x21, 0x91, B_QP, GUID)), unknown(0x21, 0x91));
    assert_eq!(bench.sends(B, mra(0x21, 0x91, 0, 20)), unknown(0x21, 0x91));
    assert_eq!(bench.sends_to(A, OTHER, rej(0, 0x91, 0, consumer)), unknown(0, 0x91));
    assert_eq!(bench.sends(A, rej(0, 0x92, 0, consumer)), unknown(0, 0x92));
    assert_eq!(bench.sends(A, rtu(0x11, 0x91)), unknown(0x11, 0x91));
    assert_eq!(bench.sends(A, rep(0, 0x91, A_QP, GUID)), Err(Refused::CommIdInUse(0)));
    assert_eq!(bench.sends(A, rep(0x11, 0x91, B_QP, GUID)), Err(Refused::Qpn(B_QP)));
    assert_eq!(bench.sends(A, rep(0x11, 0x91, A_QP, 5)), Err(Refused::Guid(5)));
    // An MRA fixes the local ID.
    assert_eq!(bench.sends(A, mra(0x11, 0x91, 0, 20)), Ok(()));
    assert_eq!(bench.sends(A, rep(0x12, 0x91, A_QP, GUID)), unknown(0x12, 0x91));
    assert_eq!(bench.router.connections(A), 0);
    assert_eq!(bench.sends(A, rep(0x11, 0x91, A_QP, GUID)), Ok(()));
    assert_eq!(bench.router.connections(A), 1);
    assert_eq!(bench.sends(A, rep(0x11, 0x91, A_QP, GUID)), Ok(()), "a copy");
    assert_eq!(bench.sends(B, req(0x11, B_QP, LOCAL, PEER)), Err(Refused::CommIdInUse(0x11)));
}

/// An XRC target names its QP in the EECN field.
#[test]
fn the_qp_of_an_xrc_target_is_checked() {
    let mut bench = Bench::listening();
    bench.arrives(req(0x91, Qpn::masked(0x901), PEER, LOCAL));
    let target = |qpn| Rep { local_eecn: qpn, ..rep(0x11, 0x91, Qpn::default(), GUID) };
    assert_eq!(bench.sends(A, target(B_QP)), Err(Refused::Qpn(B_QP)));
    assert_eq!(bench.sends(A, target(A_QP)), Ok(()));
    assert_eq!(bench.arrives(rtu(0x91, 0x11)), Route::Client(A));
    assert_eq!(bench.arrives(dreq(0x91, 0x11, A_QP)), Route::Client(A));
    assert_eq!(bench.sends(A, drep(0x11, 0x91)), Ok(()));
    assert_eq!(bench.router.connections(A), 0);
}

#[test]
fn a_rejected_request_can_be_rejected_again() {
    let mut bench = Bench::listening();
    let peer_qp = Qpn::masked(0x901);
    bench.arrives(req(0x91, peer_qp, PEER, LOCAL));
    assert_eq!(bench.sends(A, rej(0, 0x91, 0, RejectReason::CONSUMER)), Ok(()));
    assert_eq!(bench.arrives(req(0x91, peer_qp, PEER, LOCAL)), Route::Client(A));
    assert_eq!(bench.sends(A, rej(0x11, 0x91, 0, RejectReason::STALE_CONNECTION)), Ok(()));
    let unknown = Err(Refused::NoConnection { local: 0x12, remote: 0x91 });
    assert_eq!(bench.sends(A, rep(0x12, 0x91, A_QP, GUID)), unknown);
}

#[test]
fn a_resolution_is_answered_by_the_client_that_got_it() {
    let mut bench = Bench::listening();
    assert_eq!(bench.arrives(sidr_req(0x91, PEER, LOCAL)), Route::Client(A));
    let unknown = Err(Refused::NoConnection { local: 0, remote: 0x91 });
    assert_eq!(bench.sends(B, sidr_rep(0x91, B_QP)), unknown);
    assert_eq!(bench.sends_to(A, OTHER, sidr_rep(0x91, A_QP)), unknown);
    assert_eq!(bench.sends(A, rej(0, 0x91, 0, RejectReason::CONSUMER)), unknown);
    assert_eq!(bench.sends(A, sidr_rep(0x91, B_QP)), Err(Refused::Qpn(B_QP)));
    let negative = SidrRep { status: SidrStatus::REJECT, ..sidr_rep(0x91, Qpn::default()) };
    assert_eq!(bench.sends(A, negative), Ok(()));
    assert_eq!(bench.sends(A, sidr_rep(0x91, A_QP)), Ok(()), "again, for a copy");
    bench.advance(100_000);
    assert_eq!(bench.sends(A, sidr_rep(0x91, A_QP)), unknown);
}

#[test]
fn connections_are_limited_per_client() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut bench = Bench::with_limits(limits);
    bench.router.claim(A, Claim::port(PortSpace::Tcp, PORT, [0, 0, 0, 0].into())).unwrap();
    bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
    bench.sends(A, sidr_req(0x12, LOCAL, PEER)).unwrap();
    let too_many = Err(Refused::TooMany(2));
    assert_eq!(bench.sends(A, req(0x13, A_QP, LOCAL, PEER)), too_many);
    assert_eq!(bench.sends(A, sidr_req(0x13, LOCAL, PEER)), too_many);
    assert_eq!(bench.sends(A, req(0x11, A_QP, LOCAL, PEER)), Ok(()), "a copy");
    assert_eq!(bench.arrives(req(0x91, Qpn::masked(0x901), PEER, LOCAL)), Route::Client(A));
    assert_eq!(bench.sends(A, rep(0x14, 0x91, A_QP, GUID)), too_many);
    assert_eq!(bench.sends(B, req(0x13, B_QP, LOCAL, PEER)), Ok(()), "another client");
    assert_eq!(bench.arrives(sidr_rep(0x12, Qpn::masked(0x901))), Route::Client(A));
    assert_eq!(bench.sends(A, rep(0x14, 0x91, A_QP, GUID)), Ok(()));
}

#[test]
fn only_the_latest_unanswered_requests_are_known() {
    let limits = Limits { requests: 2, ended: 1, ..Limits::default() };
    let mut bench = Bench::with_limits(limits);
    bench.router.claim(A, Claim::port(PortSpace::Tcp, PORT, [0, 0, 0, 0].into())).unwrap();
    for id in [0x91, 0x92, 0x91, 0x93] {
        assert_eq!(bench.arrives(req(id, Qpn::masked(id), PEER, LOCAL)), Route::Client(A));
    }
    let consumer = RejectReason::CONSUMER;
    let unknown = |remote| Err(Refused::NoConnection { local: 0, remote });
    assert_eq!(bench.sends(A, rej(0, 0x92, 0, consumer)), unknown(0x92), "the copy of 0x91 came");
    assert_eq!(bench.sends(A, rej(0, 0x91, 0, consumer)), Ok(()));
    assert_eq!(bench.sends(A, rej(0, 0x93, 0, consumer)), Ok(()));
    assert_eq!(bench.sends(A, rej(0, 0x93, 0, consumer)), Ok(()), "again");
    assert_eq!(bench.sends(A, rej(0, 0x91, 0, consumer)), unknown(0x91), "one ended is kept");
    assert_eq!(bench.router.table.len(), 1);
}
