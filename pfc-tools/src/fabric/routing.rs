//! Routing: shortest paths without forbidden turns, and a seeded hash among equal paths (ECMP).

use std::collections::VecDeque;

use feroce_engine::memory::ahead::fetch_element;

use super::config::{Network, Routing};

/// For each node (hosts first) and port: the node at the other end of the link, and the port there.
pub(crate) type Wiring = Vec<Vec<(usize, usize)>>;

/// The wiring of `network`. Ports are numbered in the order of the links.
pub(crate) fn wiring(network: &Network) -> Wiring {
    let mut wiring = vec![Vec::new(); network.hosts.len() + network.switches.len()];
    for link in &network.links {
        let (a, b) = (wiring[link.a].len(), wiring[link.b].len());
        wiring[link.a].push((link.b, b));
        wiring[link.b].push((link.a, a));
    }
    wiring
}

/// Routing table of a switch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    /// For each host and ingress port, the number of its list of choices. Most hosts share a list
    /// with others, so the table fits the processor's cache.
    lists: Vec<u16>,
    /// The different lists: the index of the first choice of each; a last entry marks the end.
    begin: Vec<u32>,
    choices: Vec<u16>,
    salt: u32,
    /// Entries for each host: the number of ports if the ingress port matters, else one.
    stride: usize,
}

impl Routes {
    /// The egress ports (local numbers) of a packet to host `to` that arrived at `ingress`.
    #[inline]
    pub fn choices(&self, ingress: u16, to: u32) -> &[u16] {
        self.list(usize::from(self.lists[self.index(ingress, to)]))
    }

    /// Fetches what [`Self::port`] needs into the processor's cache.
    #[inline]
    pub fn prepare(&self, ingress: u16, to: u32) {
        fetch_element(&self.lists, self.index(ingress, to), size_of::<u16>());
    }

    #[inline]
    fn index(&self, ingress: u16, to: u32) -> usize {
        to as usize * self.stride + usize::from(ingress).min(self.stride - 1)
    }

    #[inline]
    fn list(&self, number: usize) -> &[u16] {
        &self.choices[self.begin[number] as usize..self.begin[number + 1] as usize]
    }

    /// Appends the choices of the next host and ingress port.
    fn push(&mut self, choices: &[u16]) {
        let known = (0..self.begin.len() - 1).rev().find(|&number| self.list(number) == choices);
        let number = known.unwrap_or_else(|| {
            self.choices.extend(choices);
            self.begin.push(u32::try_from(self.choices.len()).expect("32 bits"));
            self.begin.len() - 2
        });
        self.lists.push(u16::try_from(number).expect("fewer lists than hosts"));
    }

    /// The egress port that a packet takes; `None` if there is no route.
    #[inline]
    pub fn port(&self, ingress: u16, to: u32, entropy: u32) -> Option<u16> {
        match self.choices(ingress, to) {
            [] => None,
            [one] => Some(*one),
            several => {
                let hash = u64::from(mix(entropy ^ self.salt));
                // The hash scaled to the number of choices.
                let choice = (hash * several.len() as u64) >> 32;
                #[allow(clippy::cast_possible_truncation)] // Below the number of choices.
                Some(several[choice as usize])
            }
        }
    }
}

/// Mixes all bits of `x` (the finaliser of MurmurHash3).
pub(crate) const fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

/// Computes the routing tables of all switches.
pub(crate) fn routes(wiring: &Wiring, hosts: usize, seed: u32, rules: &Routing) -> Vec<Routes> {
    let mut all: Vec<Routes> = (0_u32..)
        .zip(&wiring[hosts..])
        .map(|(number, ports)| Routes {
            lists: Vec::new(),
            begin: vec![0],
            choices: Vec::new(),
            salt: mix(seed.wrapping_add(mix(number + 1))),
            stride: if rules.forbidden.is_empty() { 1 } else { ports.len().max(1) },
        })
        .collect();
    for host in 0..hosts {
        let paths = ShortestPaths::to(host, wiring, hosts, rules);
        for (switch, routes) in all.iter_mut().enumerate() {
            for ingress in 0..routes.stride {
                let ports = paths.choices(hosts + switch, ingress);
                let ports = ports.map(|port| u16::try_from(port).expect("16 bits"));
                routes.push(&ports.collect::<Vec<_>>());
            }
        }
    }
    all
}

/// The shortest paths to one host.
struct ShortestPaths<'a> {
    host: usize,
    hosts: usize,
    wiring: &'a Wiring,
    rules: &'a Routing,
    distances: Distances,
}

/// Distances to the host, in links.
enum Distances {
    /// From each node.
    Node(Vec<Option<u32>>),
    /// From each node and ingress port.
    Port(Vec<Vec<Option<u32>>>),
}

impl<'a> ShortestPaths<'a> {
    fn to(host: usize, wiring: &'a Wiring, hosts: usize, rules: &'a Routing) -> Self {
        let distances = match rules.forbidden.is_empty() {
            true => Distances::Node(distances(wiring, hosts, host)),
            false => Distances::Port(distances_by_port(wiring, hosts, host, rules)),
        };
        Self { host, hosts, wiring, rules, distances }
    }

    /// Returns true if a packet may take this turn.
    fn allows(&self, node: usize, ingress: usize, port: usize) -> bool {
        let (from, next) = (self.wiring[node][ingress].0, self.wiring[node][port].0);
        !self.rules.forbidden.contains(&(from, node, next))
    }

    /// The ports of `node` on a route to the host, in order.
    fn choices(&self, node: usize, ingress: usize) -> Box<dyn Iterator<Item = usize> + '_> {
        let ports = 0..self.wiring[node].len();
        if let Some(chosen) = self.rules.fixed.get(&(node, self.host)) {
            let is_chosen = move |port: &usize| {
                chosen.contains(&self.wiring[node][*port].0) && self.allows(node, ingress, *port)
            };
            if ports.clone().any(|port| is_chosen(&port)) {
                return Box::new(ports.filter(is_chosen));
            }
        }
        Box::new(ports.filter(move |&port| self.is_next_hop(node, ingress, port)))
    }

    fn is_next_hop(&self, node: usize, ingress: usize, port: usize) -> bool {
        let (next, there) = self.wiring[node][port];
        if next < self.hosts && next != self.host {
            return false;
        }
        let (ahead, here) = match &self.distances {
            Distances::Node(distances) => (distances[next], distances[node]),
            Distances::Port(distances) if self.allows(node, ingress, port) => {
                (distances[next][there], distances[node][ingress])
            }
            Distances::Port(_) => return false,
        };
        ahead.is_some_and(|ahead| Some(ahead + 1) == here)
    }
}

/// Distance to `host`, in links, for each node and ingress port, without forbidden turns and
/// without U-turns.
fn distances_by_port(
    wiring: &Wiring,
    hosts: usize,
    host: usize,
    rules: &Routing,
) -> Vec<Vec<Option<u32>>> {
    let mut distances: Vec<Vec<Option<u32>>> =
        wiring.iter().map(|ports| vec![None; ports.len()]).collect();
    distances[host].fill(Some(0));
    let mut queue: VecDeque<_> = (0..wiring[host].len()).map(|port| (host, port, 0)).collect();
    while let Some((node, port, ahead)) = queue.pop_front() {
        let (before, _) = wiring[node][port];
        if before < hosts {
            continue;
        }
        for (ingress, &(origin, _)) in wiring[before].iter().enumerate() {
            let may = origin != node && !rules.forbidden.contains(&(origin, before, node));
            if may && distances[before][ingress].is_none() {
                distances[before][ingress] = Some(ahead + 1);
                queue.push_back((before, ingress, ahead + 1));
            }
        }
    }
    distances
}

/// Distance of each node to `host`, in links. Only switches forward packets.
fn distances(wiring: &Wiring, hosts: usize, host: usize) -> Vec<Option<u32>> {
    let mut distance = vec![None; wiring.len()];
    distance[host] = Some(0);
    let mut queue = VecDeque::from([(host, 0)]);
    while let Some((node, distances)) = queue.pop_front() {
        for &(next, _) in &wiring[node] {
            if distance[next].is_none() && (next >= hosts) {
                distance[next] = Some(distances + 1);
                queue.push_back((next, distances + 1));
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wiring from lists of neighbours; two nodes share at most one link.
    fn wires(neighbours: &[Vec<usize>]) -> Wiring {
        let back = |from: usize, to: usize| {
            (to, neighbours[to].iter().position(|&other| other == from).expect("both paths"))
        };
        let all = neighbours.iter().enumerate();
        all.map(|(from, to)| to.iter().map(|&to| back(from, to)).collect()).collect()
    }

    #[test]
    fn packets_take_all_shortest_paths_and_a_flow_takes_one() {
        // Hosts 0 and 1 at leaves 2 and 3; spines 4 and 5, and a detour through 6 and 7.
        let neighbours = [
            vec![2],
            vec![3],
            vec![0, 4, 5, 6],
            vec![1, 4, 5, 7],
            vec![2, 3],
            vec![2, 3],
            vec![2, 7],
            vec![3, 6],
        ];
        let routes = routes(&wires(&neighbours), 2, 1, &Routing::default());
        let mut used = [0; 4];
        for entropy in 0..1000 {
            let port = routes[0].port(0, 1, entropy).unwrap();
            assert_eq!(routes[0].port(0, 1, entropy), Some(port));
            used[usize::from(port)] += 1;
        }
        assert_eq!((used[0], used[3]), (0, 0));
        assert!((400..600).contains(&used[1]), "{used:?}");
        assert_eq!(routes[0].port(0, 0, 7), Some(0));
    }

    #[test]
    fn hosts_do_not_forward() {
        // Hosts 0 and 2 at switches 3 and 4, which only host 1 connects.
        let neighbours = [vec![3], vec![3, 4], vec![4], vec![0, 1], vec![1, 2]];
        let routes = routes(&wires(&neighbours), 3, 1, &Routing::default());
        assert_eq!(routes[0].port(0, 2, 0), None);
        assert_eq!(routes[0].port(0, 1, 0), Some(1));
    }

    /// Hosts 0 to 4 at switches 5 to 9 in a ring.
    fn ring() -> Vec<Vec<usize>> {
        let host = |n: usize| vec![n + 5];
        let switch = |n: usize| vec![n, (n + 1) % 5 + 5, (n + 4) % 5 + 5];
        (0..5).map(host).chain((0..5).map(switch)).collect()
    }

    #[test]
    fn a_forbidden_turn_causes_a_detour() {
        let wiring = wires(&ring());
        let path = |rules: &Routing, from: usize, to: u32| {
            let routes = routes(&wiring, 5, 1, rules);
            let (mut nodes, (mut node, mut ingress)) = (Vec::new(), wiring[from][0]);
            while node >= 5 {
                nodes.push(node);
                let port = routes[node - 5].port(u16::try_from(ingress).unwrap(), to, 0).unwrap();
                (node, ingress) = wiring[node][usize::from(port)];
            }
            nodes
        };
        let rules = Routing { forbidden: [(5, 6, 7)].into(), ..Routing::default() };
        assert_eq!(path(&Routing::default(), 0, 2), [5, 6, 7]);
        assert_eq!(path(&rules, 0, 2), [5, 9, 8, 7]);
        assert_eq!(path(&rules, 1, 2), [6, 7], "the turn alone is forbidden, not the link");
        let fixed = Routing { fixed: [((5, 1), vec![9])].into(), ..Routing::default() };
        assert_eq!(
            routes(&wiring, 5, 1, &fixed)[0].choices(0, 1),
            [2],
            "as was said, not shortest"
        );
        let away = Routing { forbidden: [(5, 6, 7), (5, 9, 8)].into(), ..Routing::default() };
        assert!(routes(&wiring, 5, 1, &away)[0].choices(0, 2).is_empty());
    }
}
