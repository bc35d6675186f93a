//! Common topologies by their dimensions. Hosts are called `h1`, `h2` and so on; switches are named
//! after their layer.

use super::config::{Link, Network};
use super::error_model::ErrorModel;
use super::time::{LinkRate, Time};

/// Properties of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSpec {
    /// Rate.
    pub rate: LinkRate,
    /// Propagation delay.
    pub delay: Time,
}

/// Builds a network from nodes and links.
#[derive(Debug, Default)]
struct Builder {
    network: Network,
}

impl Builder {
    fn new(hosts: usize) -> Self {
        let hosts = (1..=hosts).map(|n| format!("h{n}")).collect();
        Self { network: Network { hosts, ..Network::default() } }
    }

    /// Adds a switch and returns its number.
    fn switch(&mut self, name: String) -> usize {
        self.network.switches.push(name);
        self.network.hosts.len() + self.network.switches.len() - 1
    }

    fn link(&mut self, a: usize, b: usize, link: LinkSpec) {
        let LinkSpec { rate, delay } = link;
        let (loss, corruption) = (ErrorModel::None, ErrorModel::None);
        self.network.links.push(Link { a, b, rate, delay, loss, corruption });
    }
}

/// One switch, `s1`.
pub fn single(hosts: usize, link: LinkSpec) -> Network {
    chain(&[hosts], link, link)
}

/// Two switches, `s1` and `s2`, with `left` and `right` hosts.
pub fn dumbbell(left: usize, right: usize, host: LinkSpec, trunk: LinkSpec) -> Network {
    chain(&[left, right], host, trunk)
}

/// A parking lot: switches `s1`, `s2` and so on in a row, each with the given number of hosts.
pub fn chain(hosts: &[usize], host: LinkSpec, trunk: LinkSpec) -> Network {
    let mut builder = Builder::new(hosts.iter().sum());
    let mut next = 0;
    for (number, count) in hosts.iter().enumerate() {
        let switch = builder.switch(format!("s{}", number + 1));
        for _ in 0..*count {
            builder.link(next, switch, host);
            next += 1;
        }
        if number > 0 {
            builder.link(switch - 1, switch, trunk);
        }
    }
    builder.network
}

/// Leaf-spine: leaves `leaf1` and so on with `hosts` hosts each; every leaf is connected to every
/// spine `spine1` and so on.
pub fn two_tier(
    leaves: usize,
    hosts: usize,
    spines: usize,
    host: LinkSpec,
    trunk: LinkSpec,
) -> Network {
    let mut builder = Builder::new(leaves * hosts);
    let leaf: Vec<usize> = (1..=leaves).map(|n| builder.switch(format!("leaf{n}"))).collect();
    let spine: Vec<usize> = (1..=spines).map(|n| builder.switch(format!("spine{n}"))).collect();
    for (number, &leaf) in leaf.iter().enumerate() {
        for n in 0..hosts {
            builder.link(number * hosts + n, leaf, host);
        }
        for &spine in &spine {
            builder.link(leaf, spine, trunk);
        }
    }
    builder.network
}

/// Dimensions of a three-tier Clos network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clos {
    /// Number of pods.
    pub pods: usize,
    /// ToR switches per pod, called `t1` and so on.
    pub tors: usize,
    /// Leaf switches per pod, called `l1` and so on, each connected to every ToR of the pod.
    pub leaves: usize,
    /// Spine switches, called `s1` and so on.
    pub spines: usize,
    /// Hosts per ToR.
    pub hosts: usize,
    /// If true, the spines are divided among the leaves of a pod, as in a fat-tree; otherwise every
    /// leaf is connected to every spine.
    pub planes: bool,
}

impl Clos {
    /// Upper bound on the number of links.
    pub const fn links(&self) -> usize {
        let Self { pods, tors, leaves, spines, hosts, .. } = *self;
        let of_tors = tors.saturating_mul(hosts.saturating_add(leaves));
        pods.saturating_mul(of_tors.saturating_add(leaves.saturating_mul(spines)))
    }

    /// Number of switches.
    pub const fn switches(&self) -> usize {
        let Self { pods, tors, leaves, spines, .. } = *self;
        pods.saturating_mul(tors.saturating_add(leaves)).saturating_add(spines)
    }
}

/// A three-tier Clos network.
///
/// # Errors
/// If `planes` is set and the number of spines is not a multiple of the number of leaves.
pub fn clos(measures: Clos, host: LinkSpec, trunk: LinkSpec) -> Result<Network, String> {
    let Clos { pods, tors, leaves, spines, hosts, planes } = measures;
    if planes && (leaves == 0 || spines % leaves != 0) {
        return Err(format!(
            "{spines} spines cannot be divided evenly among {leaves} leaves per pod"
        ));
    }
    let mut builder = Builder::new(pods * tors * hosts);
    let tor: Vec<usize> = (1..=pods * tors).map(|n| builder.switch(format!("t{n}"))).collect();
    let leaf: Vec<usize> = (1..=pods * leaves).map(|n| builder.switch(format!("l{n}"))).collect();
    let spine: Vec<usize> = (1..=spines).map(|n| builder.switch(format!("s{n}"))).collect();
    for (number, &tor) in tor.iter().enumerate() {
        for n in 0..hosts {
            builder.link(number * hosts + n, tor, host);
        }
        let pod = number / tors;
        for &leaf in &leaf[pod * leaves..(pod + 1) * leaves] {
            builder.link(tor, leaf, trunk);
        }
    }
    for (number, &leaf) in leaf.iter().enumerate() {
        let plane = number % leaves;
        for (place, &spine) in spine.iter().enumerate() {
            if !planes || place / (spines / leaves) == plane {
                builder.link(leaf, spine, trunk);
            }
        }
    }
    Ok(builder.network)
}

/// A fat-tree of `k`-port switches: k pods of k/2 ToRs and k/2 leaves, (k/2)^2 spines, k/2 hosts
/// per ToR.
///
/// # Errors
/// If `k` is odd or less than 2.
pub fn fat_tree(k: usize, host: LinkSpec, trunk: LinkSpec) -> Result<Network, String> {
    if k < 2 || k % 2 == 1 {
        return Err(format!(
            "a fat-tree of {k}-port switches: the number must be even and at least 2"
        ));
    }
    let half = k / 2;
    clos(
        Clos { pods: k, tors: half, leaves: half, spines: half * half, hosts: half, planes: true },
        host,
        trunk,
    )
}

/// A network from lists of nodes and links.
///
/// # Errors
/// If a name is unknown.
pub fn explicit(
    hosts: Vec<String>,
    switches: Vec<String>,
    links: &[(String, String, LinkSpec)],
) -> Result<Network, String> {
    let mut builder = Builder { network: Network { hosts, switches, ..Network::default() } };
    for (a, b, link) in links {
        let find = |name: &String| {
            builder.network.node(name).ok_or_else(|| format!("there is no node `{name}`"))
        };
        let (a, b) = (find(a)?, find(b)?);
        builder.link(a, b, *link);
    }
    Ok(builder.network)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkSpec = LinkSpec { rate: LinkRate::new(40_000_000_000), delay: Time(1_000_000) };

    fn measures(network: &Network) -> (usize, usize, usize) {
        (network.hosts.len(), network.switches.len(), network.links.len())
    }

    #[test]
    fn topologies_have_their_dimensions() {
        assert_eq!(measures(&single(5, LINK)), (5, 1, 5));
        assert_eq!(measures(&dumbbell(3, 2, LINK, LINK)), (5, 2, 6));
        assert_eq!(measures(&chain(&[2, 1, 1], LINK, LINK)), (4, 3, 6));
        assert_eq!(measures(&two_tier(4, 8, 2, LINK, LINK)), (32, 6, 40));
        assert_eq!(measures(&fat_tree(4, LINK, LINK).unwrap()), (16, 20, 48));
        let hpcc = Clos { pods: 5, tors: 4, leaves: 4, spines: 16, hosts: 16, planes: true };
        assert_eq!(measures(&clos(hpcc, LINK, LINK).unwrap()), (320, 56, 320 + 80 + 80));
        let testbed = Clos { pods: 2, tors: 2, leaves: 2, spines: 2, hosts: 5, planes: false };
        assert_eq!(measures(&clos(testbed, LINK, LINK).unwrap()), (20, 10, 20 + 8 + 8));
    }

    #[test]
    fn impossible_topologies_are_refused() {
        assert!(fat_tree(3, LINK, LINK).is_err());
        let links = [("a".to_owned(), "x".to_owned(), LINK)];
        let error = explicit(vec!["a".to_owned()], vec!["b".to_owned()], &links).expect_err("no x");
        assert_eq!(error, "there is no node `x`");
    }
}
