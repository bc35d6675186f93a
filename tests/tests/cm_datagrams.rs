//! Service ID resolution (SIDR) in virtual time with literal times, and the binding of ports.
//!
//! End 0 listens, end 1 sends the SIDR_REQ. A message takes 1 ms. A SIDR_REQ is retransmitted after
//! 1024 ms.

use feroce_engine::cm::{CmError, CmId, EventKind, ObjectCounts, QpKind, State, Status};
use feroce_tests::cm::{PORT, Pair, parameters};
use feroce_wire::cm::{CmMessage, PortSpace, RejectReason, SidrStatus};
use feroce_wire::{Qkey, Qpn};

use EventKind::{AddrError, ConnectRequest, Established, Rejected, Unreachable};

const UDP: PortSpace = PortSpace::Udp;

/// Sends a SIDR_REQ that end 0 receives. Returns the requesting and the requested identifier.
fn requested(pair: &mut Pair) -> (CmId, CmId) {
    pair.listen(0, UDP, "10.77.0.2", 0);
    let active = pair.connect(1, UDP, 0x50, b"who?");
    pair.run_until(1);
    let request = pair.expect(0, ConnectRequest);
    assert_eq!((request.private_data.len(), &request.private_data[..4]), (180, &b"who?"[..]));
    (active, request.id)
}

#[test]
fn a_sidr_request_is_answered() {
    let mut pair = Pair::new(1);
    let (active, passive) = requested(&mut pair);
    let mut local = parameters(0x65);
    local.qkey = Qkey(0x0123_4567);
    let long = pair.ends[0].accept(passive, &local, &[0; 137], pair.now);
    assert_eq!(long, Err(CmError::PrivateData { have: 137, room: 136 }));
    pair.ends[0].accept(passive, &local, b"me", pair.now).unwrap();
    pair.flush();
    pair.run_until(5000);
    assert_eq!(pair.trace(), [(0, 1, "SidrReq"), (1, 0, "SidrRep")]);
    let reply = pair.expect(1, Established);
    assert_eq!(
        (reply.parameters.qpn, reply.parameters.qkey),
        (Qpn::masked(0x65), Qkey(0x0123_4567))
    );
    assert_eq!((reply.private_data.len(), &reply.private_data[..2]), (136, &b"me"[..]));
    assert_eq!(pair.ends[1].state(active), Ok(State::Idle));
    assert_eq!(pair.ends[1].connect(active, &parameters(1), b"", pair.now), Err(CmError::State));
    assert_eq!(pair.delivered.len(), 0, "the answering end gets no further event");
}

#[test]
fn a_lost_sidr_req_or_rep_is_repeated() {
    for (lost, sent) in [
        ("SidrReq", vec![(0, 1, "SidrReq"), (1024, 1, "SidrReq"), (1025, 0, "SidrRep")]),
        (
            "SidrRep",
            vec![(0, 1, "SidrReq"), (1, 0, "SidrRep"), (1024, 1, "SidrReq"), (1025, 0, "SidrRep")],
        ),
    ] {
        let mut pair = Pair::new(1);
        pair.lose(lost, 1);
        pair.listen(0, UDP, "0.0.0.0", 0);
        pair.connect(1, UDP, 1, b"");
        for millis in [1, 1025] {
            pair.run_until(millis);
            if !pair.delivered.is_empty() {
                let id = pair.expect(0, ConnectRequest).id;
                pair.accept(0, id, 2, b"");
            }
        }
        pair.run_until(5000);
        assert_eq!(pair.trace(), sent, "{lost}");
        assert_eq!(pair.events(), [(1026, 1, Established)], "{lost}: one request event");
    }
}

#[test]
fn a_sidr_req_without_a_reply_times_out() {
    let mut pair = Pair::new(1);
    pair.lose("SidrReq", u32::MAX);
    let active = pair.connect(1, UDP, 1, b"");
    pair.run_until(60_000);
    let expected: Vec<_> = (0..16).map(|count| (count * 1024, 1, "SidrReq")).collect();
    assert_eq!(pair.trace(), expected);
    let event = pair.expect(1, Unreachable);
    assert_eq!(event.status, Status::TimedOut);
    pair.ends[1].destroy(active, pair.now).unwrap();
    pair.assert_empty();
}

#[test]
fn a_sidr_request_can_be_rejected() {
    let mut pair = Pair::new(1);
    let unanswered = pair.connect(1, UDP, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::UNSUPPORTED));
    let (active, passive) = requested_from_any_address(&mut pair);
    pair.ends[0].reject(passive, RejectReason::CONSUMER, b"no", pair.now).unwrap();
    pair.flush();
    pair.run_until(10);
    let event = pair.expect(1, Unreachable);
    assert_eq!(event.status, Status::Sidr(SidrStatus::REJECT));
    assert_eq!(&event.private_data[..2], b"no");
    for id in [unanswered, active] {
        pair.ends[1].destroy(id, pair.now).unwrap();
    }
    assert_eq!(pair.ends[1].object_counts(), ObjectCounts::default());
}

/// The same at 6 ms with a listener on the any address.
fn requested_from_any_address(pair: &mut Pair) -> (CmId, CmId) {
    pair.listen(0, UDP, "0.0.0.0", 0);
    let active = pair.connect(1, UDP, 0x50, b"");
    pair.run_until(6);
    let id = pair.expect(0, ConnectRequest).id;
    (active, id)
}

/// Destroying an identifier that has received a SIDR_REQ and not responded sends a SIDR_REP with
/// the status REJECT.
#[test]
fn destroying_a_sidr_request_rejects_it() {
    let mut pair = Pair::new(1);
    let (active, passive) = requested(&mut pair);
    pair.ends[0].destroy(passive, pair.now).unwrap();
    pair.flush();
    pair.run_until(10);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::REJECT));
    pair.ends[1].destroy(active, pair.now).unwrap();
    pair.run_out();
    assert_eq!(pair.ends[1].object_counts(), ObjectCounts::default());
}

/// A SIDR_REQ to a listener for connections and a REQ to a listener for datagrams are rejected.
#[test]
fn a_request_of_the_wrong_kind_is_rejected() {
    let mut pair = Pair::new(1);
    let id = pair.ends[0].create(UDP, QpKind::Rc);
    pair.ends[0].bind(id, format!("0.0.0.0:{PORT}").parse().unwrap()).unwrap();
    pair.ends[0].listen(id, 0, pair.now).unwrap();
    pair.connect(1, UDP, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::REJECT));
    pair.ends[0].destroy(id, pair.now).unwrap();
    let id = pair.ends[0].create(PortSpace::Tcp, QpKind::Ud);
    pair.ends[0].bind(id, format!("0.0.0.0:{PORT}").parse().unwrap()).unwrap();
    pair.ends[0].listen(id, 0, pair.now).unwrap();
    pair.connect(1, PortSpace::Tcp, 1, b"");
    pair.run_until(10);
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::CONSUMER));
}

/// A listener in one port space does not receive requests to the same port of another space.
#[test]
fn port_spaces_are_separate() {
    let mut pair = Pair::new(1);
    pair.listen(0, UDP, "0.0.0.0", 0);
    pair.connect(1, PortSpace::Tcp, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    let CmMessage::Req(req) = pair.sent_messages[0].message else { panic!("a REQ") };
    assert_eq!(req.service_id.port(), Some((PortSpace::Tcp, PORT)));
}

/// Port 0 selects a port of the ephemeral range, a port has one owner, destroying the owner frees
/// it, and a failed address resolution is reported.
#[test]
fn a_port_has_one_owner_until_it_is_destroyed() {
    let mut pair = Pair::new(1);
    let end = &mut pair.ends[0];
    let (one, two) = (end.create(UDP, QpKind::Ud), end.create(UDP, QpKind::Ud));
    end.bind(one, "0.0.0.0:0".parse().unwrap()).unwrap();
    let port = end.source(one).unwrap().unwrap().port();
    assert!((32768..=60999).contains(&port), "{port}");
    let same = format!("10.77.0.2:{port}").parse().unwrap();
    assert_eq!(end.bind(two, same), Err(CmError::AddressNotAvailable));
    assert_eq!(
        end.set_reuse_address(one, false),
        Err(CmError::State),
        "after binding, reuse cannot be disabled"
    );
    end.destroy(one, pair.now).unwrap();
    assert_eq!(end.bind(two, same), Ok(()));
    assert_eq!(end.bind(two, same), Err(CmError::State));
    end.resolve_address(two, None, "10.77.0.3:1".parse().unwrap()).unwrap();
    end.address_resolved(two, Err(feroce_engine::cm::Unresolved::NoRoute)).unwrap();
    pair.flush();
    let event = pair.expect(0, AddrError);
    assert_eq!(event.status, Status::Unresolved(feroce_engine::cm::Unresolved::NoRoute));
    let again = pair.ends[0].resolve_address(two, None, "10.77.0.3:1".parse().unwrap());
    assert_eq!(again, Ok(()), "resolution may be retried");
}
