//! Clients that end without sending a message, in each state: the peer's endpoint gets an event
//! within a second.

use feroce_wire::cm::{RejectReason, SidrStatus};

use super::sim::Net;
use super::*;
use crate::cm::{CmId, EventKind, State, Status};

/// Hosts of clients 0 (active) and 1 (passive): one host and two.
const HOSTS: [[usize; 2]; 2] = [[0, 1], [0, 0]];

/// Runs client 0 and client 1 up to a step of the connection.
struct Scene {
    net: Net,
    active: CmId,
    passive: Option<CmId>,
}

impl Scene {
    /// The REQ has arrived.
    fn requested(hosts: [usize; 2]) -> Self {
        let mut net = Net::new(&hosts);
        net.listen(1, PortSpace::Tcp);
        let active = net.connect(0, 1, PortSpace::Tcp, 1);
        net.run(5);
        let passive = Some(net.expect(1, EventKind::ConnectRequest).id);
        Self { net, active, passive }
    }

    /// The REP has arrived.
    fn accepted(hosts: [usize; 2]) -> Self {
        let mut scene = Self::requested(hosts);
        scene.net.accept(1, scene.passive.unwrap(), 2);
        scene.net.run(5);
        scene.net.expect(0, EventKind::ConnectResponse);
        scene
    }

    /// The RTU has arrived.
    fn connected(hosts: [usize; 2]) -> Self {
        let mut scene = Self::accepted(hosts);
        scene.net.establish(0, scene.active);
        scene.net.run(5);
        scene.net.expect(1, EventKind::Established);
        scene.net.sent.clear();
        scene
    }

    /// Kills `victim`. The other client gets an event of `kind` within a second, and no further
    /// event apart from the end of timewait. Returns the status of the event.
    #[track_caller]
    fn dies(&mut self, victim: usize, kind: EventKind) -> Status {
        let at = self.net.at();
        let survivor = 1 - victim;
        self.net.kill(victim);
        self.net.run(1000);
        let events = &self.net.clients[survivor].events;
        let first = events.first().map(|(at, event)| (*at, event.kind));
        assert!(first.is_some_and(|(when, is)| is == kind && when - at <= 1000), "{events:?}");
        let status = self.net.expect(survivor, kind).status;
        if kind == EventKind::Disconnected {
            let id = [self.active, self.passive.unwrap()][survivor];
            self.net.disconnect(survivor, id);
        }
        self.net.run(400_000);
        let events = &mut self.net.clients[survivor].events;
        events.retain(|(_, event)| event.kind != EventKind::TimewaitExit);
        assert_eq!(*events, []);
        assert_eq!(self.net.refused, []);
        for router in &self.net.routers {
            router.table.check();
            assert_eq!(router.table.len(), 0, "nothing is left");
        }
        status
    }
}

#[test]
fn the_active_side_dies_after_its_req() {
    for hosts in HOSTS {
        let mut scene = Scene::requested(hosts);
        let status = scene.dies(0, EventKind::Rejected);
        assert_eq!(status, Status::Rejected(RejectReason::TIMEOUT));
    }
}

/// The REP crosses the REJ for the timeout, or that REJ is lost: the REP gets a REJ.
#[test]
fn the_active_side_dies_before_the_rep_arrives() {
    for hosts in HOSTS {
        for is_lost in [false, true] {
            let mut scene = Scene::requested(hosts);
            scene.net.accept(1, scene.passive.unwrap(), 2);
            let mut rejs = 0;
            scene.net.lose(move |message| {
                rejs += u32::from(matches!(message, CmMessage::Rej(_)));
                matches!(message, CmMessage::Rej(_)) && is_lost && rejs == 1
            });
            scene.dies(0, EventKind::Rejected);
        }
    }
}

#[test]
fn the_active_side_dies_before_its_rtu() {
    for hosts in HOSTS {
        let mut scene = Scene::accepted(hosts);
        let status = scene.dies(0, EventKind::Rejected);
        assert_eq!(status, Status::Rejected(RejectReason::CONSUMER));
    }
}

#[test]
fn each_side_dies_while_connected() {
    for (hosts, victim) in [(HOSTS[0], 0), (HOSTS[0], 1), (HOSTS[1], 0), (HOSTS[1], 1)] {
        let mut scene = Scene::connected(hosts);
        let at = scene.net.at();
        scene.dies(victim, EventKind::Disconnected);
        // The program confirms after a second; until then the DREQ is repeated.
        let host = hosts[victim];
        let expected = [0, 200, 600].map(|after| (at + after, host, "Dreq"));
        assert_eq!(scene.net.router_trace(), expected);
    }
}

/// The peer's host is off: five copies, and the end after 12.6 s.
#[test]
fn a_dreq_without_an_answer_is_repeated_five_times() {
    let mut scene = Scene::connected(HOSTS[0]);
    scene.net.lose(|_| true);
    let at = scene.net.at();
    scene.net.kill(0);
    scene.net.run(12_599);
    let expected = [0, 200, 600, 1400, 3000, 6200].map(|after| (at + after, 0, "Dreq"));
    assert_eq!(scene.net.router_trace(), expected);
    let deadline = |net: &Net| net.routers[0].next_deadline().map(|due| due.as_nanos() / 1_000_000);
    assert_eq!(deadline(&scene.net), Some(at + 12_600));
    scene.net.run(1);
    assert_eq!(deadline(&scene.net), Some(at + 112_600), "late messages are consumed until then");
    scene.net.run(100_000);
    assert_eq!((deadline(&scene.net), scene.net.routers[0].table.len()), (None, 0));
}

#[test]
fn the_first_dreqs_are_lost() {
    for hosts in HOSTS {
        let mut scene = Scene::connected(hosts);
        let mut dreqs = 0;
        scene.net.lose(move |message| {
            dreqs += u32::from(matches!(message, CmMessage::Dreq(_)));
            matches!(message, CmMessage::Dreq(_)) && dreqs <= 2
        });
        scene.dies(0, EventKind::Disconnected);
    }
}

/// The client has sent its DREQ, which was lost.
#[test]
fn a_side_dies_while_it_disconnects() {
    for hosts in HOSTS {
        let mut scene = Scene::connected(hosts);
        scene.net.lose(|_| true);
        scene.net.disconnect(1, scene.passive.unwrap());
        scene.net.lose(|_| false);
        scene.dies(1, EventKind::Disconnected);
    }
}

#[test]
fn the_passive_side_dies_with_a_request() {
    for hosts in HOSTS {
        let mut scene = Scene::requested(hosts);
        let status = scene.dies(1, EventKind::Rejected);
        assert_eq!(status, Status::Rejected(RejectReason::CONSUMER));
    }
}

/// The REJ is lost. When a copy of the REQ arrives, the client's claims have ended and a new server
/// listens.
#[test]
fn a_copy_of_an_old_request_does_not_reach_a_new_server() {
    let mut net = Net::new(&[0, 1, 1]);
    net.listen(1, PortSpace::Tcp);
    net.connect(0, 1, PortSpace::Tcp, 1);
    net.run(5);
    net.expect(1, EventKind::ConnectRequest);
    let mut rejs = 0;
    net.lose(move |message| {
        rejs += u32::from(matches!(message, CmMessage::Rej(_)));
        matches!(message, CmMessage::Rej(_)) && rejs == 1
    });
    net.kill(1);
    net.listen(2, PortSpace::Tcp);
    net.run(1000); // copies of the REQ after 128 and 512 ms
    let event = net.expect(0, EventKind::Rejected);
    assert_eq!(event.status, Status::Rejected(RejectReason::CONSUMER));
    assert_eq!(net.clients[2].events, []);
    net.connect(0, 1, PortSpace::Tcp, 3);
    net.run(5);
    net.expect(2, EventKind::ConnectRequest);
}

#[test]
fn the_passive_side_dies_after_its_rep() {
    for hosts in HOSTS {
        // The RTU is on its way, or lost: the peer is connected. The router does not know that.
        let mut scene = Scene::accepted(hosts);
        scene.net.lose(|_| true);
        scene.net.establish(0, scene.active);
        scene.net.lose(|_| false);
        let status = scene.dies(1, EventKind::Rejected);
        assert_eq!(status, Status::Rejected(RejectReason::CONSUMER));
        // The peer has not confirmed.
        let mut scene = Scene::accepted(hosts);
        scene.dies(1, EventKind::Rejected);
        // The REJ is lost, and the DREQ ends the connection.
        let mut scene = Scene::accepted(hosts);
        scene.net.establish(0, scene.active);
        scene.net.lose(|message| matches!(message, CmMessage::Rej(_)));
        scene.net.sent.clear();
        let (mut net, passive) = (scene.net, scene.passive.unwrap());
        net.routers[hosts[1]].client_gone(net.clients[1].id, net.now);
        net.clients[1].is_alive = false;
        net.flush();
        net.run(1000);
        net.expect(0, EventKind::Disconnected);
        assert_eq!(net.clients[1].endpoint.state(passive), Ok(State::RepSent), "no RTU came");
    }
}

/// The client has withdrawn its REP by a REJ. That REJ and the client's first DREQ were lost, and
/// the peer regards itself as connected.
#[test]
fn the_passive_side_dies_after_it_has_withdrawn_its_rep() {
    for hosts in HOSTS {
        let mut scene = Scene::accepted(hosts);
        scene.net.lose(|_| true);
        scene.net.establish(0, scene.active);
        let (passive, now) = (scene.passive.unwrap(), scene.net.now);
        scene.net.clients[1].endpoint.destroy(passive, now).unwrap();
        scene.net.flush();
        scene.net.lose(|_| false);
        scene.dies(1, EventKind::Disconnected);
    }
}

/// The peer has sent a DREQ, and the program has not reacted to it.
#[test]
fn a_side_dies_before_its_drep() {
    for hosts in HOSTS {
        let mut scene = Scene::connected(hosts);
        scene.net.disconnect(0, scene.active);
        scene.net.run(5);
        scene.net.expect(1, EventKind::Disconnected);
        scene.net.sent.clear();
        let at = scene.net.at();
        scene.dies(1, EventKind::Disconnected);
        assert_eq!(scene.net.router_trace(), [(at, hosts[1], "Drep")]);
    }
}

/// Both sides end: each router answers the DREQ of the other.
#[test]
fn both_sides_die() {
    for hosts in HOSTS {
        let mut scene = Scene::connected(hosts);
        let at = scene.net.at();
        scene.net.kill(0);
        scene.net.kill(1);
        scene.net.run(400_000);
        let trace = scene.net.router_trace();
        let names: Vec<_> = trace.iter().map(|(when, _, name)| (when - at, *name)).collect();
        assert_eq!(names, [(0, "Dreq"), (0, "Dreq"), (1, "Drep"), (1, "Drep")]);
        assert_eq!(scene.net.routers.each_ref().map(|router| router.table.len()), [0, 0]);
    }
}

#[test]
fn a_side_dies_during_a_resolution() {
    for (hosts, victim) in [(HOSTS[0], 0), (HOSTS[0], 1), (HOSTS[1], 0), (HOSTS[1], 1)] {
        let mut net = Net::new(&hosts);
        net.listen(1, PortSpace::Udp);
        net.connect(0, 1, PortSpace::Udp, 1);
        net.run(5);
        let passive = net.expect(1, EventKind::ConnectRequest).id;
        net.kill(victim);
        if victim == 1 {
            net.run(1000);
            let event = net.expect(0, EventKind::Unreachable);
            assert_eq!(event.status, Status::Sidr(SidrStatus::REJECT));
        } else {
            net.accept(1, passive, 2);
            net.run(5);
            assert_eq!(net.router_trace(), [], "the SIDR REP is consumed");
        }
        net.run(400_000);
        assert_eq!(net.routers.each_ref().map(|router| router.table.len()), [0, 0]);
    }
}

/// The survivor's copies of DREQ and REQ, long after the client's end.
#[test]
fn late_messages_about_a_client_that_is_gone_are_answered() {
    let mut bench = Bench::connected_passively();
    let peer_qp = Qpn::masked(0x901);
    bench.router.client_gone(A, bench.now);
    assert_eq!(bench.sent(), [dreq(0x11, 0x91, peer_qp).into()]);
    let first_req = req(0x91, peer_qp, PEER, LOCAL);
    assert_eq!(bench.arrives(first_req), Route::Dropped, "the DREQ is the answer");
    assert_eq!(bench.arrives(rtu(0x91, 0x11)), Route::Dropped);
    assert_eq!(bench.arrives(dreq(0x91, 0x11, A_QP)), Route::Answered);
    assert_eq!(bench.sent(), [drep(0x11, 0x91).into()]);
    bench.advance(90_000);
    assert_eq!(bench.sent(), [], "the DREQ is not repeated");
    bench.router.claim(B, Claim::port(PortSpace::Tcp, PORT, [0, 0, 0, 0].into())).unwrap();
    assert_eq!(bench.arrives(first_req), Route::Answered);
    assert_eq!(bench.sent(), [rej(0x11, 0x91, 0, RejectReason::STALE_CONNECTION).into()]);
    assert_eq!(bench.arrives(dreq(0x91, 0x11, A_QP)), Route::Answered);
    assert_eq!(bench.sent(), [drep(0x11, 0x91).into()]);
    assert_eq!(bench.sends(B, req(0x11, B_QP, LOCAL, PEER)), Err(Refused::CommIdInUse(0x11)));
    bench.advance(99_999);
    assert_eq!(bench.arrives(drep(0x91, 0x11)), Route::Dropped);
    bench.advance(1);
    assert_eq!(
        bench.arrives(first_req),
        Route::Client(B),
        "nothing is known of the old connection"
    );
}

/// The literal messages of the router, with the frame's headers and transaction IDs.
#[test]
fn what_the_router_sends_for_a_client_that_is_gone() {
    let mut bench = Bench::connected_actively();
    let vlan_flow = FlowSpec { traffic_class: 0x68, udp_source_port: 0xd000, ..flow_to(PEER) };
    let again = mad(7, rtu(0x11, 0x91));
    bench.router.outgoing(A, &vlan_flow, &again, &|_| true, bench.now).unwrap();
    bench.router.client_gone(A, bench.now);
    let sent = bench.router.transmit().unwrap();
    let transaction = 0x5eed_0001_0000_0011;
    let expected = mad(transaction, dreq(0x11, 0x91, Qpn::masked(0x901)));
    assert_eq!(sent, RouterMad { flow: vlan_flow, mad: expected }, "as the client's last frame");
    assert_eq!(bench.router.transmit(), None);
    bench.advance(200);
    assert_eq!(bench.router.transmit(), Some(sent));
    assert_eq!(bench.arrives(drep(0x91, 0x11)), Route::Dropped);
    bench.advance(50_000);
    assert_eq!(bench.router.transmit(), None);

    let mut bench = Bench::new();
    bench.sends(A, req(0x11, A_QP, LOCAL, PEER)).unwrap();
    bench.router.client_gone(A, bench.now);
    let mut late = Rej { info_length: 8, ..rej(0x11, 0, 2, RejectReason::TIMEOUT) };
    late.info[..8].copy_from_slice(&GUID.to_be_bytes());
    let expected = RouterMad { flow: flow_to(PEER), mad: mad(7, late) };
    assert_eq!(bench.router.transmit(), Some(expected), "with the transaction of the REQ");
    for _ in 0..2 {
        let answer = rep(0x91, 0x11, Qpn::masked(0x901), PEER_GUID);
        assert_eq!(bench.arrives(answer), Route::Answered);
        assert_eq!(bench.sent(), [rej(0x11, 0x91, 1, RejectReason::CONSUMER).into()]);
    }
}
