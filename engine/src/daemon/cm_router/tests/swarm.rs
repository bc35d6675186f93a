//! Four clients on two hosts connect, accept, reject, disconnect and die in any order, while
//! messages are lost, duplicated and delayed.
//!
//! The routers refuse no message of an endpoint. When all messages arrive again and time has
//! passed, no connection with a client that has died is left, and nothing is left of it in the
//! routers.

use std::collections::{BTreeMap, BTreeSet};

use feroce_wire::cm::RejectReason;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::sim::{Client, Net};
use super::*;
use crate::cm::{CmId, Event, EventKind, State};

/// Hosts of the clients.
const HOSTS: [usize; 4] = [0, 0, 1, 1];
const SCENARIOS: u64 = 300;

fn random(seed: u64) -> TestRng {
    let seed = [seed.to_le_bytes(), (!seed).to_le_bytes()].concat();
    TestRng::from_seed(RngAlgorithm::XorShift, &seed)
}

struct Swarm {
    net: Net,
    rng: TestRng,
    /// Identifiers of connections that the program of a client has not destroyed, and whether it
    /// has seen the end of the connection.
    ids: [BTreeMap<CmId, bool>; 4],
    qpns: u32,
    /// Clients that listen, as one client per host may.
    servers: [usize; 2],
}

impl Swarm {
    fn new(seed: u64) -> Self {
        let mut net = Net::new(&HOSTS);
        let servers = [0, 2];
        for server in servers {
            net.listen(server, PortSpace::Tcp);
            net.listen(server, PortSpace::Udp);
        }
        let mut faults = random(seed << 1);
        net.delivery = Box::new(move |_, _| {
            let copies = match faults.next_u32() % 10 {
                0 | 1 => 0,
                2 => 2,
                _ => 1,
            };
            let mut delay = || Duration::from_millis(u64::from(faults.next_u32() % 40).pow(2));
            (0..copies).map(|_| delay()).collect()
        });
        let rng = random(seed << 1 | 1);
        Self { net, rng, ids: Default::default(), qpns: 0, servers }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.rng.next_u32() % limit
    }

    fn alive(&self) -> Vec<usize> {
        (0..4).filter(|client| self.net.clients[*client].is_alive).collect()
    }

    fn connect(&mut self, client: usize) {
        let server = self.servers[self.below(2) as usize];
        let space = if self.below(4) == 0 { PortSpace::Udp } else { PortSpace::Tcp };
        self.qpns += 1;
        let id = self.net.connect(client, server, space, self.qpns);
        self.ids[client].insert(id, false);
    }

    fn destroy(&mut self, client: usize, id: CmId) {
        let now = self.net.now;
        self.net.clients[client].endpoint.destroy(id, now).expect("not destroyed before");
        self.ids[client].remove(&id);
        self.net.flush();
    }

    /// The program's reaction to an event: usually the right one.
    fn react(&mut self, client: usize, event: &Event) {
        let (id, now, draw) = (event.id, self.net.now, self.below(10));
        self.qpns += 1;
        let qpn = self.qpns;
        let endpoint = &mut self.net.clients[client].endpoint;
        match event.kind {
            EventKind::ConnectRequest => {
                self.ids[client].insert(id, false);
                endpoint.take_request(id).expect("it is new");
                match draw {
                    0 => endpoint.reject(id, RejectReason::CONSUMER, b"", now).unwrap_or(()),
                    1 => return self.destroy(client, id),
                    2 => {}
                    _ if endpoint.state(id) == Ok(State::Idle) => {} // the peer has given up
                    _ => self.net.accept(client, id, qpn),
                }
            }
            EventKind::ConnectResponse if draw == 0 => return self.destroy(client, id),
            EventKind::ConnectResponse if draw == 1 => {
                let _ = endpoint.reject(id, RejectReason::CONSUMER, b"", now);
            }
            EventKind::ConnectResponse => endpoint.establish(id, b"").unwrap_or(()),
            EventKind::Established if draw == 0 => endpoint.disconnect(id, now).unwrap_or(()),
            EventKind::Disconnected | EventKind::Rejected | EventKind::Unreachable => {
                self.ids[client].insert(id, true);
                let _ = endpoint.disconnect(id, now);
            }
            _ => {}
        }
        self.net.flush();
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(10) {
            self.net.run(10);
            for client in self.alive() {
                let events = std::mem::take(&mut self.net.clients[client].events);
                for (_, event) in events {
                    let is_known = self.ids[client].contains_key(&event.id);
                    if is_known || event.kind == EventKind::ConnectRequest {
                        self.react(client, &event);
                    }
                }
            }
        }
    }

    /// Kills a client. If it is a server, another client of its host takes its place.
    fn kill(&mut self, client: usize) {
        self.net.kill(client);
        let host = HOSTS[client];
        let successor = self.alive().into_iter().find(|other| HOSTS[*other] == host);
        if let Some(successor) = successor.filter(|_| self.servers[host] == client) {
            self.servers[host] = successor;
            self.net.listen(successor, PortSpace::Tcp);
            self.net.listen(successor, PortSpace::Udp);
        }
    }

    fn act(&mut self) {
        let alive = self.alive();
        let client = alive[self.below(4) as usize % alive.len()];
        match self.below(10) {
            0..=5 => self.connect(client),
            6 if alive.len() > 2 && self.below(4) == 0 => self.kill(client),
            _ => {
                let ids: Vec<_> = self.ids[client].keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[self.below(64) as usize % ids.len()];
                    self.destroy(client, id);
                }
            }
        }
        let pause = u64::from(self.below(40)).pow(2);
        self.run(pause);
    }

    /// Connections of living clients that are established.
    fn established(&self) -> usize {
        let established = |client: &usize| {
            let Client { endpoint, .. } = &self.net.clients[*client];
            let ids = self.ids[*client].keys();
            ids.filter(|id| endpoint.state(**id) == Ok(State::Established)).count()
        };
        self.alive().iter().map(established).sum()
    }
}

#[test]
fn endpoints_talk_through_routers_under_faults() {
    let (mut killed, mut established) = (0, 0);
    for seed in 0..SCENARIOS {
        let mut swarm = Swarm::new(seed);
        for _ in 0..30 {
            swarm.act();
        }
        swarm.net.delivery = Box::new(|_, _| vec![Duration::from_millis(1)]);
        swarm.run(100_000);
        assert_eq!(swarm.net.refused, [], "seed {seed}");
        established += swarm.established();
        // Each connection that is established has two living ends.
        let kinds: BTreeSet<_> = swarm.alive().into_iter().collect();
        killed += 4 - kinds.len();
        assert!(swarm.established().is_multiple_of(2), "seed {seed}");
        for client in swarm.alive() {
            swarm.net.kill(client);
        }
        swarm.net.run(1_000_000);
        let left = swarm.net.routers.each_ref().map(|router| router.table.len());
        assert_eq!(left, [0, 0], "seed {seed}");
    }
    assert!(killed > 50 && established > 500, "{killed} killed, {established} established");
}
