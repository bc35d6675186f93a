//! Which QP answers datagrams (service id resolution), in virtual time with literal times, and who may have which port.
//!
//! End 0 listens, end 1 asks. A message takes 1 ms; a question is asked again after 1024 ms.

use feroce_engine::cm::{CmError, CmId, EventKind, ObjectCounts, QpKind, State, Status};
use feroce_tests::cm::{PORT, Pair, parameters};
use feroce_wire::cm::{CmMessage, PortSpace, RejectReason, SidrStatus};
use feroce_wire::{Qkey, Qpn};

use EventKind::{AddrError, ConnectRequest, Established, Rejected, Unreachable};

const UDP: PortSpace = PortSpace::Udp;

fn asked(pair: &mut Pair) -> (CmId, CmId) {
    pair.listen(0, UDP, "10.77.0.2", 0);
    let asker = pair.dial(1, UDP, 0x50, b"who?");
    pair.run_until(1);
    let request = pair.expect(0, ConnectRequest);
    assert_eq!((request.private_data.len(), &request.private_data[..4]), (180, &b"who?"[..]));
    (asker, request.id)
}

#[test]
fn a_question() {
    let mut pair = Pair::new(1);
    let (asker, asked) = asked(&mut pair);
    let mut own = parameters(0x65);
    own.qkey = Qkey(0x0123_4567);
    let long = pair.ends[0].accept(asked, &own, &[0; 137], pair.now);
    assert_eq!(long, Err(CmError::PrivateData { have: 137, room: 136 }));
    pair.ends[0].accept(asked, &own, b"me", pair.now).unwrap();
    pair.flush();
    pair.run_until(5000);
    assert_eq!(pair.trace(), [(0, 1, "SidrReq"), (1, 0, "SidrRep")]);
    let answer = pair.expect(1, Established);
    assert_eq!(
        (answer.parameters.qpn, answer.parameters.qkey),
        (Qpn::masked(0x65), Qkey(0x0123_4567))
    );
    assert_eq!((answer.private_data.len(), &answer.private_data[..2]), (136, &b"me"[..]));
    assert_eq!(pair.ends[1].state(asker), Ok(State::Idle));
    assert_eq!(pair.ends[1].connect(asker, &parameters(1), b"", pair.now), Err(CmError::State));
    assert_eq!(pair.delivered.len(), 0, "who answers is told nothing more");
}

#[test]
fn lost_questions_and_answers() {
    for (lost, said) in [
        ("SidrReq", vec![(0, 1, "SidrReq"), (1024, 1, "SidrReq"), (1025, 0, "SidrRep")]),
        (
            "SidrRep",
            vec![(0, 1, "SidrReq"), (1, 0, "SidrRep"), (1024, 1, "SidrReq"), (1025, 0, "SidrRep")],
        ),
    ] {
        let mut pair = Pair::new(1);
        pair.lose(lost, 1);
        pair.listen(0, UDP, "0.0.0.0", 0);
        pair.dial(1, UDP, 1, b"");
        for millis in [1, 1025] {
            pair.run_until(millis);
            if !pair.delivered.is_empty() {
                let id = pair.expect(0, ConnectRequest).id;
                pair.accept(0, id, 2, b"");
            }
        }
        pair.run_until(5000);
        assert_eq!(pair.trace(), said, "{lost}");
        assert_eq!(pair.events(), [(1026, 1, Established)], "{lost}: asked once");
    }
}

#[test]
fn no_answer() {
    let mut pair = Pair::new(1);
    pair.lose("SidrReq", u32::MAX);
    let asker = pair.dial(1, UDP, 1, b"");
    pair.run_until(60_000);
    let expected: Vec<_> = (0..16).map(|count| (count * 1024, 1, "SidrReq")).collect();
    assert_eq!(pair.trace(), expected);
    let event = pair.expect(1, Unreachable);
    assert_eq!(event.status, Status::TimedOut);
    pair.ends[1].destroy(asker, pair.now).unwrap();
    pair.assert_empty();
}

#[test]
fn refused() {
    let mut pair = Pair::new(1);
    let nobody = pair.dial(1, UDP, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::UNSUPPORTED));
    let (asker, asked) = asked_again(&mut pair);
    pair.ends[0].reject(asked, RejectReason::CONSUMER, b"no", pair.now).unwrap();
    pair.flush();
    pair.run_until(10);
    let event = pair.expect(1, Unreachable);
    assert_eq!(event.status, Status::Sidr(SidrStatus::REJECT));
    assert_eq!(&event.private_data[..2], b"no");
    for id in [nobody, asker] {
        pair.ends[1].destroy(id, pair.now).unwrap();
    }
    assert_eq!(pair.ends[1].object_counts(), ObjectCounts::default());
}

fn asked_again(pair: &mut Pair) -> (CmId, CmId) {
    pair.listen(0, UDP, "0.0.0.0", 0);
    let asker = pair.dial(1, UDP, 0x50, b"");
    pair.run_until(6);
    let id = pair.expect(0, ConnectRequest).id;
    (asker, id)
}

/// A question that is destroyed is answered, too: with no.
#[test]
fn destroyed() {
    let mut pair = Pair::new(1);
    let (asker, asked) = asked(&mut pair);
    pair.ends[0].destroy(asked, pair.now).unwrap();
    pair.flush();
    pair.run_until(10);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::REJECT));
    pair.ends[1].destroy(asker, pair.now).unwrap();
    pair.run_out();
    assert_eq!(pair.ends[1].object_counts(), ObjectCounts::default());
}

/// A connection to who answers datagrams, and datagrams to who connects.
#[test]
fn the_wrong_kind() {
    let mut pair = Pair::new(1);
    let id = pair.ends[0].create(UDP, QpKind::Rc);
    pair.ends[0].bind(id, format!("0.0.0.0:{PORT}").parse().unwrap()).unwrap();
    pair.ends[0].listen(id, 0, pair.now).unwrap();
    pair.dial(1, UDP, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Unreachable).status, Status::Sidr(SidrStatus::REJECT));
    pair.ends[0].destroy(id, pair.now).unwrap();
    let id = pair.ends[0].create(PortSpace::Tcp, QpKind::Ud);
    pair.ends[0].bind(id, format!("0.0.0.0:{PORT}").parse().unwrap()).unwrap();
    pair.ends[0].listen(id, 0, pair.now).unwrap();
    pair.dial(1, PortSpace::Tcp, 1, b"");
    pair.run_until(10);
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::CONSUMER));
}

/// Spaces are apart: nobody listens to this port of that space.
#[test]
fn port_spaces() {
    let mut pair = Pair::new(1);
    pair.listen(0, UDP, "0.0.0.0", 0);
    pair.dial(1, PortSpace::Tcp, 1, b"");
    pair.run_until(5);
    assert_eq!(pair.expect(1, Rejected).status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
    let CmMessage::Req(req) = pair.sent_messages[0].message else { panic!("a REQ") };
    assert_eq!(req.service_id.port(), Some((PortSpace::Tcp, PORT)));
}

/// Binding: any port is one of the range, a port has one owner, a destroyed owner has none; what is not found is told.
#[test]
fn binding() {
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
        "once bound, it can be shared only"
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
    assert_eq!(again, Ok(()), "it may be tried again");
}
