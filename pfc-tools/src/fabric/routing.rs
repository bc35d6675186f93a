//! Which way packets go: shortest paths, and a seeded hash where there are several (ECMP).

use std::collections::VecDeque;

/// A switch's way to every host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    /// Where the choices for a host begin; one more entry ends the last.
    begin: Vec<u32>,
    choices: Vec<u16>,
    salt: u32,
}

impl Routes {
    /// The local port through which a packet to host `to` leaves; `None` if no way leads there.
    #[inline]
    pub fn port(&self, to: u32, entropy: u32) -> Option<u16> {
        let (from, end) = (self.begin[to as usize] as usize, self.begin[to as usize + 1] as usize);
        match end - from {
            0 => None,
            1 => Some(self.choices[from]),
            several => {
                let hash = u64::from(mix(entropy ^ self.salt));
                // The hash scaled to the number of choices.
                let choice = (hash * several as u64) >> 32;
                #[allow(clippy::cast_possible_truncation)] // Below `several`.
                Some(self.choices[from + choice as usize])
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

/// Routes of all switches. `neighbours` has for each node, hosts first, the nodes at its ports in order.
pub(crate) fn routes(neighbours: &[Vec<usize>], hosts: usize, seed: u32) -> Vec<Routes> {
    let switches = neighbours.len() - hosts;
    let mut all: Vec<Routes> = (0..switches)
        .map(|switch| {
            let number = u32::try_from(switch).unwrap_or(u32::MAX);
            Routes {
                begin: vec![0],
                choices: Vec::new(),
                salt: mix(seed.wrapping_add(mix(number + 1))),
            }
        })
        .collect();
    for host in 0..hosts {
        let distance = distances(neighbours, hosts, host);
        for (switch, routes) in all.iter_mut().enumerate() {
            let node = hosts + switch;
            for (port, &next) in neighbours[node].iter().enumerate() {
                let nearer = distance[next].is_some_and(|d| Some(d + 1) == distance[node]);
                if nearer && (next >= hosts || next == host) {
                    routes.choices.push(u16::try_from(port).expect("ports fit 16 bits"));
                }
            }
            routes.begin.push(u32::try_from(routes.choices.len()).expect("routes fit 32 bits"));
        }
    }
    all
}

/// How many lines lie between each node and `host`. Packets pass through switches only.
fn distances(neighbours: &[Vec<usize>], hosts: usize, host: usize) -> Vec<Option<u32>> {
    let mut distance = vec![None; neighbours.len()];
    distance[host] = Some(0);
    let mut queue = VecDeque::from([(host, 0)]);
    while let Some((node, far)) = queue.pop_front() {
        for &next in &neighbours[node] {
            if distance[next].is_none() && (next >= hosts) {
                distance[next] = Some(far + 1);
                queue.push_back((next, far + 1));
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_take_all_shortest_paths_and_a_flow_takes_one() {
        // Hosts 0 and 1 at leaves 2 and 3; spines 4 and 5, and a way round through 6 and 7.
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
        let routes = routes(&neighbours, 2, 1);
        let mut used = [0; 4];
        for entropy in 0..1000 {
            let port = routes[0].port(1, entropy).unwrap();
            assert_eq!(routes[0].port(1, entropy), Some(port));
            used[usize::from(port)] += 1;
        }
        assert_eq!((used[0], used[3]), (0, 0));
        assert!((400..600).contains(&used[1]), "{used:?}");
        assert_eq!(routes[0].port(0, 7), Some(0));
    }

    #[test]
    fn hosts_forward_nothing() {
        // 0 and 2 are hosts of switches 3 and 4, which only host 1 connects.
        let neighbours = [vec![3], vec![3, 4], vec![4], vec![0, 1], vec![1, 2]];
        let routes = routes(&neighbours, 3, 1);
        assert_eq!(routes[0].port(2, 0), None);
        assert_eq!(routes[0].port(1, 0), Some(1));
    }
}
