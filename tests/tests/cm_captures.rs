//! Captured conversations of Linux rxe, with an endpoint of ours in the place of either end: it is fed what the other end said and
//! says what the captured one said, byte for byte but for the liberties named here.

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

/// A captured message.
#[derive(Clone, Debug)]
struct Said {
    at: Duration,
    from: IpAddr,
    to: IpAddr,
    mad: CmMad,
}

fn conversation(file: &str) -> Vec<Said> {
    let frames = capture::read(file);
    let said = frames.iter().filter_map(|frame| {
        let packet = frame.packet();
        let mad = CmMad::parse(packet.payload.first).ok()?;
        let is_gsi = packet.bth.dest_qp == Qpn::GSI;
        is_gsi.then(|| Said { at: frame.at, from: packet.ip.src(), to: packet.ip.dst(), mad })
    });
    said.collect()
}

/// The capturing kernel (6.1) has other times than the defaults, which are those of newer ones.
fn config() -> CmConfig {
    CmConfig { response_timeout: 20, packet_lifetime: 18, ..CmConfig::default() }
}

/// An endpoint that names its `count`-th identifier `comm_id` and begins with `psn`.
fn endpoint(end: usize, names: &[(u32, u32)], port: Option<u16>) -> Endpoint {
    // The first number is what identifiers are mixed with; then, for each, its PSN, and for who asks, its port.
    let (first, _) = names[0];
    let mut numbers = vec![first ^ 1];
    let (low, high) = config().ephemeral;
    let port = port.map(|port| u32::from(port - low) + 5 * (u32::from(high - low) + 1));
    for (_, psn) in names {
        numbers.push(*psn);
        numbers.extend(port);
    }
    let mut numbers = numbers.into_iter();
    let mut endpoint = Endpoint::new(config(), move || numbers.next().expect("no more is drawn"));
    endpoint.add_device(DEVICE, GUIDS[end]);
    endpoint
}

/// What an endpoint says, when it is said.
fn next(endpoint: &mut Endpoint) -> CmMad {
    let outgoing = endpoint.transmit().expect("an answer");
    CmMad::parse(&outgoing.mad).expect("a message")
}

/// Liberties: transactions are named differently, as the kernel swaps the bytes of its communication id.
fn same(ours: CmMad, theirs: &Said) {
    let ours = CmMad { transaction: theirs.mad.transaction, ..ours };
    assert_eq!(ours.to_bytes(), theirs.mad.to_bytes(), "{ours:?}\n{:?}", theirs.mad);
}

fn now(said: &Said) -> Instant {
    Instant::ZERO + said.at
}

fn feed(endpoint: &mut Endpoint, said: &Said) {
    let source = Source { device: DEVICE, local: said.to, remote: said.from };
    endpoint.receive(&said.mad.to_bytes(), &source, now(said)).expect("a message");
}

/// A route as the sender of `req` had it.
fn route(
    endpoint: &mut Endpoint,
    space: PortSpace,
    said: &Said,
    addresses: &IpCmHeader,
    port: u16,
) -> CmId {
    let id = endpoint.create(space, QpKind::of(space));
    let destination = std::net::SocketAddr::new(addresses.destination, port);
    endpoint.resolve_address(id, None, destination).expect("new");
    let (local, remote) = (said.from, said.to);
    let (mtu, hop_limit, traffic_class) = (PathMtu::Mtu1024, 64, 0);
    let path = Path { device: DEVICE, local, remote, mtu, hop_limit, traffic_class };
    endpoint.address_resolved(id, Ok(path)).expect("asked");
    endpoint.resolve_route(id).expect("resolved");
    endpoint.route_resolved(id, Ok(())).expect("asked");
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

/// In the place of the active end: REQ, RTU, DREQ.
fn active(file: &str) {
    let said = conversation(file);
    let [first, second, third, fourth, fifth] = &said[..] else { panic!("{file}: five messages") };
    let (CmMessage::Req(req), CmMessage::Rep(rep)) = (first.mad.message, second.mad.message) else {
        panic!("{file}: REQ, REP")
    };
    let addresses = IpCmHeader::parse(&req.private_data).expect("addresses");
    let names = [(req.local_comm_id, req.starting_psn.value())];
    let mut ours = endpoint(1, &names, Some(addresses.source.port()));
    let id = route(&mut ours, PortSpace::Tcp, first, &addresses, port_of(req.service_id));
    let data = &req.private_data[IpCmHeader::LEN..];
    ours.connect(id, &parameters_of(&req), data, now(first)).expect("a route");
    same(next(&mut ours), first);
    feed(&mut ours, second);
    let event = ours.event().expect("the REP");
    assert_eq!(
        (event.kind, &event.private_data[..]),
        (EventKind::ConnectResponse, &rep.private_data[..])
    );
    assert_eq!(ours.qp_parameters(id).expect("known").sq_psn, rep.starting_psn);
    ours.establish(id, b"").expect("accepted");
    same(next(&mut ours), third);
    ours.disconnect(id, now(fourth)).expect("connected");
    same(next(&mut ours), fourth);
    feed(&mut ours, fifth);
    assert_eq!(ours.event().expect("the DREP").kind, EventKind::Disconnected);
    assert_eq!(ours.transmit(), None);
}

/// In the place of the passive end: REP, DREP.
fn passive(file: &str) {
    let said = conversation(file);
    let [first, second, third, fourth, fifth] = &said[..] else { panic!("{file}: five messages") };
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
    let own = Parameters {
        qpn: rep.local_qpn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        ..Parameters::default()
    };
    ours.accept(event.id, &own, &rep.private_data, now(second)).expect("asked");
    same(next(&mut ours), second);
    feed(&mut ours, third);
    assert_eq!(ours.event().expect("the RTU").kind, EventKind::Established);
    let qp = ours.qp_parameters(event.id).expect("known");
    assert_eq!((qp.ack_timeout, qp.rq_psn, qp.agreed.qpn), (19, rep.starting_psn, req.local_qpn));
    feed(&mut ours, fourth);
    assert_eq!(ours.event().expect("the DREQ").kind, EventKind::Disconnected);
    ours.disconnect(event.id, now(fifth)).expect("connected");
    same(next(&mut ours), fifth);
    assert_eq!(ours.transmit(), None);
}

const LIVES: [&str; 3] =
    ["rxe/rping_v4.pcap.zst", "rxe/rping_v6.pcap.zst", "rxe/rstream_v4.pcap.zst"];

#[test]
fn whole_lives_as_the_active_end() {
    LIVES.into_iter().for_each(active);
}

#[test]
fn whole_lives_as_the_passive_end() {
    LIVES.into_iter().for_each(passive);
}

/// 20 requests at once for a port that nobody listens to: each is answered as rxe answered it, transactions included.
#[test]
fn rejects() {
    for (file, count) in [("rxe/cmtime_v4.pcap.zst", 20), ("rxe/rping_reject.pcap.zst", 1)] {
        let said = conversation(file);
        let requests = said.iter().filter(|said| matches!(said.mad.message, CmMessage::Req(_)));
        let mut ours = endpoint(0, &[(1, 1)], None);
        let mut answered = 0;
        for request in requests {
            feed(&mut ours, request);
            let answer = next(&mut ours);
            let CmMessage::Rej(Rej { remote_comm_id, .. }) = answer.message else {
                panic!("{answer:?}")
            };
            let theirs = said.iter().find(|said| match said.mad.message {
                CmMessage::Rej(rej) => rej.remote_comm_id == remote_comm_id,
                _ => false,
            });
            assert_eq!(answer.to_bytes(), theirs.expect("an answer").mad.to_bytes());
            answered += 1;
        }
        assert_eq!((answered, ours.event()), (count, None));
    }
}

/// `ib_send_bw -R`: two connections; the first is ended by the passive end.
#[test]
fn two_connections_of_which_the_passive_end_ends_one() {
    let said = conversation("rxe/send_bw_cm_v4.pcap.zst");
    let names: Vec<_> = said.iter().map(|said| said.mad.message.name()).collect();
    assert_eq!(names, ["Req", "Rep", "Rtu", "Req", "Rep", "Rtu", "Dreq", "Drep", "Dreq", "Drep"]);
    let rep = |at: usize| match said[at].mad.message {
        CmMessage::Rep(rep) => rep,
        _ => panic!("a REP"),
    };
    for (at, dreq) in [(0, 8), (3, 6)] {
        let CmMessage::Req(req) = said[at].mad.message else { panic!("a REQ") };
        let reply = rep(at + 1);
        let mut ours =
            endpoint(0, &[(reply.local_comm_id ^ 3, 0), (0, reply.starting_psn.value())], None);
        let listener = ours.create(PortSpace::Tcp, QpKind::Rc);
        ours.bind(listener, format!("0.0.0.0:{}", port_of(req.service_id)).parse().unwrap())
            .unwrap();
        ours.listen(listener, 0, Instant::ZERO).unwrap();
        feed(&mut ours, &said[at]);
        let id = ours.event().expect("the REQ").id;
        let own = Parameters {
            qpn: reply.local_qpn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            rnr_retry_count: reply.rnr_retry_count,
            ..Parameters::default()
        };
        ours.accept(id, &own, &reply.private_data, now(&said[at + 1])).unwrap();
        same(next(&mut ours), &said[at + 1]);
        feed(&mut ours, &said[at + 2]);
        if said[dreq].from == said[at].to {
            ours.disconnect(id, now(&said[dreq])).unwrap();
            same(next(&mut ours), &said[dreq]);
            feed(&mut ours, &said[dreq + 1]);
        } else {
            feed(&mut ours, &said[dreq]);
            ours.disconnect(id, now(&said[dreq + 1])).unwrap();
            same(next(&mut ours), &said[dreq + 1]);
        }
        assert_eq!(ours.transmit(), None);
    }
}

/// `udaddy`: two questions, both roles.
#[test]
fn datagrams() {
    let said = conversation("rxe/udaddy_v4.pcap.zst");
    for at in 0..2 {
        let (CmMessage::SidrReq(ask), CmMessage::SidrRep(answer)) =
            (said[at].mad.message, said[at + 2].mad.message)
        else {
            panic!("a question and its answer")
        };
        let addresses = IpCmHeader::parse(&ask.private_data).unwrap();
        asks(&said[at], &ask, &addresses);

        let mut ours = endpoint(0, &[(1, 0), (0, 0)], None);
        let listener = ours.create(PortSpace::Udp, QpKind::Ud);
        ours.bind(listener, "10.77.0.2:7174".parse().unwrap()).unwrap();
        ours.listen(listener, 0, Instant::ZERO).unwrap();
        feed(&mut ours, &said[at]);
        let id = ours.event().expect("the question").id;
        let own = Parameters { qpn: answer.qpn, qkey: Qkey(0x0123_4567), ..Parameters::default() };
        ours.accept(id, &own, b"", now(&said[at + 2])).unwrap();
        same(next(&mut ours), &said[at + 2]);
    }
}

fn asks(said: &Said, ask: &SidrReq, addresses: &IpCmHeader) {
    let mut ours = endpoint(1, &[(ask.request_id, 0)], Some(addresses.source.port()));
    let id = route(&mut ours, PortSpace::Udp, said, addresses, port_of(ask.service_id));
    ours.connect(id, &Parameters::default(), b"", now(said)).unwrap();
    same(next(&mut ours), said);
}
