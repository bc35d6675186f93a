//! CM conversations captured from Linux rxe, replayed to an endpoint of Feroce in either role.
//!
//! The endpoint receives the messages of one captured end. Its own messages must equal those of
//! the other captured end byte for byte, except for the field that [`assert_same`] ignores.

use std::net::IpAddr;

use feroce_engine::cm::{
    CmConfig, CmId, DeviceKey, Endpoint, EventKind, Parameters, Path, QpKind, Source,
};
use feroce_engine::time::{Duration, Instant};
use feroce_tests::capture;
use feroce_wire::cm::{CmMad, CmMessage, IpCmHeader, PortSpace, Rej, Req, SidrReq};
use feroce_wire::{PathMtu, Qkey, Qpn};

const DEVICE: DeviceKey = DeviceKey(0);
const GUIDS: [u64; 2] = [0x0077_00ff_fe00_0141, 0x0077_00ff_fe00_0142];

/// A captured CM message.
#[derive(Clone, Debug)]
struct CapturedMad {
    at: Duration,
    from: IpAddr,
    to: IpAddr,
    mad: CmMad,
}

fn conversation(file: &str) -> Vec<CapturedMad> {
    let frames = capture::read(file);
    let captured = frames.iter().filter_map(|frame| {
        let packet = frame.packet();
        let mad = CmMad::parse(packet.payload.first).ok()?;
        let is_gsi = packet.bth.dest_qp == Qpn::GSI;
        is_gsi.then(|| CapturedMad {
            at: frame.at,
            from: packet.ip.src(),
            to: packet.ip.dst(),
            mad,
        })
    });
    captured.collect()
}

/// The timeouts of the captured kernel (6.1). The defaults are those of newer kernels.
fn config() -> CmConfig {
    CmConfig { response_timeout: 20, packet_lifetime: 18, ..CmConfig::default() }
}

/// An endpoint whose random numbers are chosen so that its messages equal the captured ones.
///
/// `ids` holds the communication ID and the starting PSN of each identifier in order of creation.
/// `port` is the local port of an active end.
fn endpoint(end: usize, ids: &[(u32, u32)], port: Option<u16>) -> Endpoint {
    // The first random number is mixed into the communication IDs. Each identifier then draws its
    // PSN and, at an active end, its local port.
    let (first, _) = ids[0];
    let mut numbers = vec![first ^ 1];
    let (low, high) = config().ephemeral;
    let port = port.map(|port| u32::from(port - low) + 5 * (u32::from(high - low) + 1));
    for (_, psn) in ids {
        numbers.push(*psn);
        numbers.extend(port);
    }
    let mut numbers = numbers.into_iter();
    let mut endpoint =
        Endpoint::new(config(), move || numbers.next().expect("a random number is left"));
    endpoint.add_device(DEVICE, GUIDS[end]);
    endpoint
}

/// The next MAD that the endpoint sends.
fn next_mad(endpoint: &mut Endpoint) -> CmMad {
    let outgoing = endpoint.transmit().expect("a MAD to send");
    CmMad::parse(&outgoing.mad).expect("a message")
}

/// Asserts that both messages are equal except for the transaction ID.
///
/// The kernel derives the transaction ID from its communication ID with swapped bytes; Feroce does
/// not.
fn assert_same(ours: CmMad, theirs: &CapturedMad) {
    let ours = CmMad { transaction: theirs.mad.transaction, ..ours };
    assert_eq!(ours.to_bytes(), theirs.mad.to_bytes(), "{ours:?}\n{:?}", theirs.mad);
}

fn now(captured: &CapturedMad) -> Instant {
    Instant::ZERO + captured.at
}

fn feed(endpoint: &mut Endpoint, captured: &CapturedMad) {
    let source = Source { device: DEVICE, local: captured.to, remote: captured.from };
    endpoint.receive(&captured.mad.to_bytes(), &source, now(captured)).expect("a message");
}

/// Creates an identifier with the route that the captured sender used.
fn route(
    endpoint: &mut Endpoint,
    space: PortSpace,
    captured: &CapturedMad,
    addresses: &IpCmHeader,
    port: u16,
) -> CmId {
    let id = endpoint.create(space, QpKind::of(space));
    let destination = std::net::SocketAddr::new(addresses.destination, port);
    endpoint.resolve_address(id, None, destination).expect("new");
    let (local, remote) = (captured.from, captured.to);
    let (mtu, hop_limit, traffic_class) = (PathMtu::Mtu1024, 64, 0);
    let path = Path { device: DEVICE, local, remote, mtu, hop_limit, traffic_class };
    endpoint.address_resolved(id, Ok(path)).expect("requested");
    endpoint.resolve_route(id).expect("resolved");
    endpoint.route_resolved(id, Ok(())).expect("requested");
    assert_eq!(endpoint.source(id).expect("known"), Some(addresses.source));
    while endpoint.event().is_some() {}
    id
}

fn parameters_of(req: &Req) -> Parameters {
    Parameters {
        qpn: req.local_qpn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ..Parameters::default()
    }
}

fn port_of(service: feroce_wire::cm::ServiceId) -> u16 {
    service.port().expect("a port").1
}

/// Replays the active end: it sends REQ, RTU and DREQ.
fn replay_active_end(file: &str) {
    let captured = conversation(file);
    let [first, second, third, fourth, fifth] = &captured[..] else {
        panic!("{file}: five messages")
    };
    let (CmMessage::Req(req), CmMessage::Rep(rep)) = (first.mad.message, second.mad.message) else {
        panic!("{file}: REQ, REP")
    };
    let addresses = IpCmHeader::parse(&req.private_data).expect("addresses");
    let ids = [(req.local_comm_id, req.starting_psn.value())];
    let mut ours = endpoint(1, &ids, Some(addresses.source.port()));
    let id = route(&mut ours, PortSpace::Tcp, first, &addresses, port_of(req.service_id));
    let data = &req.private_data[IpCmHeader::LEN..];
    ours.connect(id, &parameters_of(&req), data, now(first)).expect("a route");
    assert_same(next_mad(&mut ours), first);
    feed(&mut ours, second);
    let event = ours.event().expect("the REP");
    assert_eq!(
        (event.kind, &event.private_data[..]),
        (EventKind::ConnectResponse, &rep.private_data[..])
    );
    assert_eq!(ours.qp_parameters(id).expect("known").sq_psn, rep.starting_psn);
    ours.establish(id, b"").expect("accepted");
    assert_same(next_mad(&mut ours), third);
    ours.disconnect(id, now(fourth)).expect("connected");
    assert_same(next_mad(&mut ours), fourth);
    feed(&mut ours, fifth);
    assert_eq!(ours.event().expect("the DREP").kind, EventKind::Disconnected);
    assert_eq!(ours.transmit(), None);
}

/// Replays the passive end: it sends REP and DREP.
fn replay_passive_end(file: &str) {
    let captured = conversation(file);
    let [first, second, third, fourth, fifth] = &captured[..] else {
        panic!("{file}: five messages")
    };
    let (CmMessage::Req(req), CmMessage::Rep(rep)) = (first.mad.message, second.mad.message) else {
        panic!("{file}: REQ, REP")
    };
    // The listener is the first identifier, the connection the second.
    let mut ours = endpoint(0, &[(rep.local_comm_id ^ 3, 0), (0, rep.starting_psn.value())], None);
    let listener = ours.create(PortSpace::Tcp, QpKind::Rc);
    let port = port_of(req.service_id);
    ours.bind(listener, std::net::SocketAddr::new(first.to, port)).expect("free");
    ours.listen(listener, 0, Instant::ZERO).expect("bound");
    feed(&mut ours, first);
    let event = ours.event().expect("the REQ");
    assert_eq!(event.kind, EventKind::ConnectRequest);
    assert_eq!(event.private_data, req.private_data[IpCmHeader::LEN..]);
    let local = Parameters {
        qpn: rep.local_qpn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        ..Parameters::default()
    };
    ours.accept(event.id, &local, &rep.private_data, now(second)).expect("requested");
    assert_same(next_mad(&mut ours), second);
    feed(&mut ours, third);
    assert_eq!(ours.event().expect("the RTU").kind, EventKind::Established);
    let qp = ours.qp_parameters(event.id).expect("known");
    assert_eq!((qp.ack_timeout, qp.rq_psn, qp.agreed.qpn), (19, rep.starting_psn, req.local_qpn));
    feed(&mut ours, fourth);
    assert_eq!(ours.event().expect("the DREQ").kind, EventKind::Disconnected);
    ours.disconnect(event.id, now(fifth)).expect("connected");
    assert_same(next_mad(&mut ours), fifth);
    assert_eq!(ours.transmit(), None);
}

/// Captures of one connection from REQ to DREP.
const CONNECTIONS: [&str; 3] =
    ["rxe/rping_v4.pcap.zst", "rxe/rping_v6.pcap.zst", "rxe/rstream_v4.pcap.zst"];

#[test]
fn the_active_end_of_a_connection_is_replayed() {
    CONNECTIONS.into_iter().for_each(replay_active_end);
}

#[test]
fn the_passive_end_of_a_connection_is_replayed() {
    CONNECTIONS.into_iter().for_each(replay_passive_end);
}

/// REQs to a port without a listener, 20 at once and a single one. Each REJ equals that of rxe,
/// transaction ID included.
#[test]
fn a_req_without_a_listener_is_rejected_as_by_rxe() {
    for (file, count) in [("rxe/cmtime_v4.pcap.zst", 20), ("rxe/rping_reject.pcap.zst", 1)] {
        let captured = conversation(file);
        let requests =
            captured.iter().filter(|captured| matches!(captured.mad.message, CmMessage::Req(_)));
        let mut ours = endpoint(0, &[(1, 1)], None);
        let mut rejected = 0;
        for request in requests {
            feed(&mut ours, request);
            let rej = next_mad(&mut ours);
            let CmMessage::Rej(Rej { remote_comm_id, .. }) = rej.message else { panic!("{rej:?}") };
            let theirs = captured.iter().find(|captured| match captured.mad.message {
                CmMessage::Rej(their) => their.remote_comm_id == remote_comm_id,
                _ => false,
            });
            assert_eq!(rej.to_bytes(), theirs.expect("the REJ of rxe").mad.to_bytes());
            rejected += 1;
        }
        assert_eq!((rejected, ours.event()), (count, None));
    }
}

/// `ib_send_bw -R` makes two connections. The active end disconnects the first, the passive end
/// the second.
#[test]
fn either_end_disconnects_one_of_two_connections() {
    let captured = conversation("rxe/send_bw_cm_v4.pcap.zst");
    let names: Vec<_> = captured.iter().map(|captured| captured.mad.message.name()).collect();
    assert_eq!(names, ["Req", "Rep", "Rtu", "Req", "Rep", "Rtu", "Dreq", "Drep", "Dreq", "Drep"]);
    let rep = |at: usize| match captured[at].mad.message {
        CmMessage::Rep(rep) => rep,
        _ => panic!("a REP"),
    };
    for (at, dreq) in [(0, 8), (3, 6)] {
        let CmMessage::Req(req) = captured[at].mad.message else { panic!("a REQ") };
        let reply = rep(at + 1);
        let mut ours =
            endpoint(0, &[(reply.local_comm_id ^ 3, 0), (0, reply.starting_psn.value())], None);
        let listener = ours.create(PortSpace::Tcp, QpKind::Rc);
        ours.bind(listener, format!("0.0.0.0:{}", port_of(req.service_id)).parse().unwrap())
            .unwrap();
        ours.listen(listener, 0, Instant::ZERO).unwrap();
        feed(&mut ours, &captured[at]);
        let id = ours.event().expect("the REQ").id;
        let local = Parameters {
            qpn: reply.local_qpn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            rnr_retry_count: reply.rnr_retry_count,
            ..Parameters::default()
        };
        ours.accept(id, &local, &reply.private_data, now(&captured[at + 1])).unwrap();
        assert_same(next_mad(&mut ours), &captured[at + 1]);
        feed(&mut ours, &captured[at + 2]);
        if captured[dreq].from == captured[at].to {
            ours.disconnect(id, now(&captured[dreq])).unwrap();
            assert_same(next_mad(&mut ours), &captured[dreq]);
            feed(&mut ours, &captured[dreq + 1]);
        } else {
            feed(&mut ours, &captured[dreq]);
            ours.disconnect(id, now(&captured[dreq + 1])).unwrap();
            assert_same(next_mad(&mut ours), &captured[dreq + 1]);
        }
        assert_eq!(ours.transmit(), None);
    }
}

/// `udaddy` resolves two service IDs (SIDR). Both roles are replayed.
#[test]
fn service_id_resolution_is_replayed_in_both_roles() {
    let captured = conversation("rxe/udaddy_v4.pcap.zst");
    for at in 0..2 {
        let (CmMessage::SidrReq(request), CmMessage::SidrRep(reply)) =
            (captured[at].mad.message, captured[at + 2].mad.message)
        else {
            panic!("a SIDR_REQ and its SIDR_REP")
        };
        let addresses = IpCmHeader::parse(&request.private_data).unwrap();
        replay_sidr_request(&captured[at], &request, &addresses);

        let mut ours = endpoint(0, &[(1, 0), (0, 0)], None);
        let listener = ours.create(PortSpace::Udp, QpKind::Ud);
        ours.bind(listener, "10.77.0.2:7174".parse().unwrap()).unwrap();
        ours.listen(listener, 0, Instant::ZERO).unwrap();
        feed(&mut ours, &captured[at]);
        let id = ours.event().expect("the SIDR_REQ").id;
        let local = Parameters { qpn: reply.qpn, qkey: Qkey(0x0123_4567), ..Parameters::default() };
        ours.accept(id, &local, b"", now(&captured[at + 2])).unwrap();
        assert_same(next_mad(&mut ours), &captured[at + 2]);
    }
}

fn replay_sidr_request(captured: &CapturedMad, request: &SidrReq, addresses: &IpCmHeader) {
    let mut ours = endpoint(1, &[(request.request_id, 0)], Some(addresses.source.port()));
    let id = route(&mut ours, PortSpace::Udp, captured, addresses, port_of(request.service_id));
    ours.connect(id, &Parameters::default(), b"", now(captured)).unwrap();
    assert_same(next_mad(&mut ours), captured);
}
