//! Conversations of real endpoints through the routers of one host and of two.

use feroce_wire::cm::RejectReason;

use super::sim::Net;
use super::*;
use crate::cm::{EventKind, State, Status};

/// Hosts of the active client, of the passive client and of an uninvolved one.
const HOSTS: [[usize; 3]; 2] = [[0, 1, 1], [0, 0, 0]];

/// Client 0 connects to client 1, which accepts.
fn connected(hosts: &[usize]) -> (Net, crate::cm::CmId, crate::cm::CmId) {
    let mut net = Net::new(hosts);
    net.listen(1, PortSpace::Tcp);
    let active = net.connect(0, 1, PortSpace::Tcp, 1);
    net.run(5);
    let passive = net.expect(1, EventKind::ConnectRequest).id;
    net.accept(1, passive, 2);
    net.run(5);
    net.expect(0, EventKind::ConnectResponse);
    net.establish(0, active);
    net.run(5);
    net.expect(1, EventKind::Established);
    (net, active, passive)
}

#[test]
fn clients_connect_and_disconnect() {
    for hosts in HOSTS {
        let (mut net, active, passive) = connected(&hosts);
        assert_eq!(net.clients[0].endpoint.state(active), Ok(State::Established));
        let counts = |net: &Net| {
            [0, 1, 2].map(|client: usize| {
                let client = &net.clients[client];
                net.routers[client.host].connections(client.id)
            })
        };
        assert_eq!(counts(&net), [1, 1, 0]);
        net.disconnect(1, passive);
        net.run(5);
        net.expect(0, EventKind::Disconnected);
        net.disconnect(0, active);
        net.run(5);
        net.expect(1, EventKind::Disconnected);
        assert_eq!(counts(&net), [0, 0, 0]);
        assert_eq!((net.refused.clone(), net.router_trace()), (vec![], vec![]));
        net.run(200_000);
        assert_eq!(net.routers.each_ref().map(|router| router.table.len()), [0, 0]);
    }
}

#[test]
fn requests_are_rejected_by_the_program_and_without_a_listener() {
    for hosts in HOSTS {
        let mut net = Net::new(&hosts);
        let active = net.connect(0, 1, PortSpace::Tcp, 1);
        net.run(5);
        let event = net.expect(0, EventKind::Rejected);
        assert_eq!(event.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
        assert_eq!(net.router_trace(), [(1, hosts[1], "Rej")]);
        net.clients[0].endpoint.destroy(active, net.now).unwrap();

        net.listen(1, PortSpace::Tcp);
        net.connect(0, 1, PortSpace::Tcp, 1);
        net.run(5);
        let passive = net.expect(1, EventKind::ConnectRequest).id;
        let now = net.now;
        let endpoint = &mut net.clients[1].endpoint;
        endpoint.reject(passive, RejectReason::CONSUMER, b"no", now).unwrap();
        net.flush();
        net.run(5);
        let event = net.expect(0, EventKind::Rejected);
        assert_eq!(event.private_data[..2], *b"no");
        assert_eq!((net.refused.clone(), net.router_trace()), (vec![], vec![]));
    }
}

#[test]
fn datagram_services_are_resolved() {
    for hosts in HOSTS {
        let mut net = Net::new(&hosts);
        net.listen(1, PortSpace::Udp);
        net.connect(0, 1, PortSpace::Udp, 1);
        net.run(5);
        let passive = net.expect(1, EventKind::ConnectRequest).id;
        net.accept(1, passive, 2);
        net.run(5);
        let event = net.expect(0, EventKind::Established);
        assert_eq!(event.parameters.qpn, Net::qpn(1, 2));
        assert_eq!((net.refused.clone(), net.router_trace()), (vec![], vec![]));
    }
}

/// Client 0 connects to client 1 and client 1 to client 0, on one host.
#[test]
fn clients_connect_to_each_other_in_both_directions() {
    let mut net = Net::new(&[0, 0]);
    net.listen(1, PortSpace::Tcp);
    net.listen(0, PortSpace::Udp);
    let active = net.connect(0, 1, PortSpace::Tcp, 1);
    net.connect(1, 0, PortSpace::Udp, 3);
    net.run(5);
    let passive = net.expect(1, EventKind::ConnectRequest).id;
    let resolution = net.expect(0, EventKind::ConnectRequest).id;
    net.accept(1, passive, 2);
    net.accept(0, resolution, 4);
    net.run(5);
    net.expect(0, EventKind::ConnectResponse);
    net.establish(0, active);
    assert_eq!(net.expect(1, EventKind::Established).parameters.qpn, Net::qpn(0, 4));
    net.run(5);
    net.expect(1, EventKind::Established);
    assert_eq!((net.refused.clone(), net.router_trace()), (vec![], vec![]));
}

/// Every message is lost twice; the endpoints repeat them through the routers.
#[test]
fn lost_messages_are_repeated() {
    for hosts in HOSTS {
        let mut net = Net::new(&hosts);
        let mut lost = std::collections::BTreeMap::new();
        net.lose(move |message| {
            let count: &mut u32 = lost.entry(message.name()).or_default();
            *count += 1;
            *count <= 2
        });
        net.listen(1, PortSpace::Tcp);
        let active = net.connect(0, 1, PortSpace::Tcp, 1);
        net.run(10_000);
        let passive = net.expect(1, EventKind::ConnectRequest).id;
        net.accept(1, passive, 2);
        net.run(10_000);
        net.expect(0, EventKind::ConnectResponse);
        net.establish(0, active);
        net.run(300_000); // the MRA asks the peer to repeat its REP every 66 s
        net.expect(1, EventKind::Established);
        net.disconnect(0, active);
        net.run(20_000);
        net.expect(1, EventKind::Disconnected);
        net.disconnect(1, passive);
        net.run(20_000);
        net.expect(0, EventKind::Disconnected);
        assert_eq!((net.refused.clone(), net.router_trace()), (vec![], vec![]));
    }
}

/// A program that takes three minutes to accept; the peer's copies get MRAs.
#[test]
fn a_program_may_take_its_time_to_accept() {
    for hosts in HOSTS {
        let mut net = Net::new(&hosts);
        net.listen(1, PortSpace::Tcp);
        net.connect(0, 1, PortSpace::Tcp, 1);
        net.run(180_000);
        let passive = net.expect(1, EventKind::ConnectRequest).id;
        net.accept(1, passive, 2);
        net.run(5);
        net.expect(0, EventKind::ConnectResponse);
        assert_eq!(net.refused, []);
    }
}
