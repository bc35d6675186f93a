//! Buffer dependency graph: which link must wait for which when PFC pauses them.
//!
//! Packets that a switch received on one link occupy a buffer of that link and leave on the next
//! link of their path. If the next link stays paused, the buffer fills and the first link is paused
//! too. A cycle of such dependencies can deadlock; without a cycle no deadlock is possible (Dally
//! and Seitz).

use std::collections::BTreeMap;

use crate::fabric::config::{Network, Turn};
use crate::fabric::routing::{Wiring, routes, wiring};

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectedLink {
    /// Sending node.
    pub from: usize,
    /// Port of the sending node, counted from 1 in the order of the links.
    pub port: usize,
    /// Receiving node.
    pub to: usize,
}

/// Packets of one link continue on another: if the second is paused, the first must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    /// Index of the link that may have to wait.
    pub link: usize,
    /// Index of the link it waits for.
    pub next: usize,
    /// Two hosts whose packets take both links.
    pub between: (u32, u32),
}

/// The pairs of hosts that exchange packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pairs {
    /// All of them.
    All,
    /// From one host to another.
    These(Vec<(u32, u32)>),
}

impl Pairs {
    fn to(&self, host: u32, hosts: u32) -> Vec<u32> {
        match self {
            Self::All => (0..hosts).filter(|&from| from != host).collect(),
            Self::These(pairs) => {
                pairs.iter().filter(|pair| pair.1 == host).map(|pair| pair.0).collect()
            }
        }
    }
}

/// All dependencies of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependencies {
    /// All links, each direction.
    pub links: Vec<DirectedLink>,
    /// The dependencies between them.
    pub all: Vec<Dependency>,
    /// Two hosts without a route.
    pub no_route: Option<(u32, u32)>,
}

impl Dependencies {
    /// The dependencies caused by packets between `pairs` of hosts on all their possible routes.
    pub fn of(network: &Network, pairs: &Pairs) -> Self {
        let (wiring, hosts) = (wiring(network), network.hosts.len());
        // All ECMP choices count, so the seed does not matter.
        let routes = routes(&wiring, hosts, 0, &network.routing);
        let (links, numbers) = links(&wiring);
        let count = u32::try_from(hosts).unwrap_or(u32::MAX);
        let (mut found, mut no_route) = (BTreeMap::new(), None);
        for to in 0..count {
            let mut visited = vec![false; links.len()];
            let sources = pairs.to(to, count).into_iter();
            let first = |from: u32| {
                wiring[from as usize].first().map(|_| (numbers[from as usize][0], from))
            };
            let mut ahead: Vec<(usize, u32)> = sources.filter_map(first).collect();
            while let Some((link, source)) = ahead.pop() {
                let (node, ingress) = wiring[links[link].from][links[link].port - 1];
                if node < hosts || std::mem::replace(&mut visited[link], true) {
                    continue;
                }
                let ingress = u16::try_from(ingress).unwrap_or(u16::MAX);
                let choices = routes[node - hosts].choices(ingress, to);
                if choices.is_empty() {
                    no_route = no_route.or(Some((source, to)));
                }
                for &port in choices {
                    let next = numbers[node][usize::from(port)];
                    ahead.push((next, source));
                    if links[link].from >= hosts && links[next].to >= hosts {
                        found.entry((link, next)).or_insert((source, to));
                    }
                }
            }
        }
        let all = found.into_iter();
        let all = all.map(|((link, next), between)| Dependency { link, next, between }).collect();
        Self { links, all, no_route }
    }

    /// The turn of packets that causes a dependency.
    pub fn turn(&self, dependency: &Dependency) -> Turn {
        let (first, next) = (&self.links[dependency.link], &self.links[dependency.next]);
        (first.from, first.to, next.to)
    }

    /// Number of links that are part of a dependency.
    pub fn links_used(&self) -> usize {
        let mut used = vec![false; self.links.len()];
        for dependency in &self.all {
            (used[dependency.link], used[dependency.next]) = (true, true);
        }
        used.iter().filter(|&&used| used).count()
    }
}

/// Every direction of every link, and its index by node and port.
fn links(wiring: &Wiring) -> (Vec<DirectedLink>, Vec<Vec<usize>>) {
    let mut links = Vec::new();
    let mut numbers = Vec::new();
    for (from, ports) in wiring.iter().enumerate() {
        let mut own = Vec::new();
        for (port, &(to, _)) in (1..).zip(ports) {
            own.push(links.len());
            links.push(DirectedLink { from, port, to });
        }
        numbers.push(own);
    }
    (links, numbers)
}
