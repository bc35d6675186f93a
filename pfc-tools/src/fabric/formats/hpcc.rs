//! Topology and flow files of HPCC's ns-3 simulator (alibaba-edu/High-Precision-Congestion-Control)
//! and of those that are made from it.
//!
//! A topology: the numbers of nodes, switches and links; the switches; then `src dst rate delay
//! error` for each link. Flows: their number; then `src dst pg dport bytes start` for each flow,
//! the start in seconds. As in ns-3, whatever follows is ignored, and so is `dport`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{FileFlow, FormatError, SECOND, Words, decimal_time, seconds};
use crate::fabric::config::{FlowConfig, Link, Network, Routing};
use crate::fabric::error_model::ErrorModel;
use crate::fabric::time::{LinkRate, Time};

/// Maximum number of nodes and of links.
const MAX: u32 = 20_000;

/// Parses a topology. Hosts and switches are called `h` and `s` and their number in the file.
///
/// # Errors
/// The line at fault.
pub fn topology(file: &str, text: &str) -> Result<Network, FormatError> {
    let mut words = Words::new(file, text);
    let mut count = |what: &str| {
        let expected = format!("an integer up to {MAX}");
        words.word(what, &expected, |text| text.parse().ok().filter(|count| *count <= MAX))
    };
    let (nodes, switches) = (count("the number of nodes")?, count("the number of switches")?);
    let links = count("the number of links")?;
    let mut is_switch = vec![false; nodes as usize];
    for _ in 0..switches {
        let expected = format!("the number of a node below {nodes}, once");
        let switch = words.word("a switch", &expected, |text| {
            text.parse::<usize>().ok().filter(|&node| is_switch.get(node) == Some(&false))
        })?;
        is_switch[switch] = true;
    }
    let mut network = Network::default();
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for (number, &is_switch) in (0..nodes).zip(&is_switch) {
        let list = if is_switch { &mut others } else { &mut own };
        list.push(number);
    }
    network.hosts = own.iter().map(|number| format!("h{number}")).collect();
    network.switches = others.iter().map(|number| format!("s{number}")).collect();
    let places: BTreeMap<u32, usize> = own.iter().chain(&others).copied().zip(0..).collect();
    let mut links_of = vec![0; own.len()];
    for _ in 0..links {
        let line = words.line();
        let link = link(&mut words, &places)?;
        for end in [link.a, link.b] {
            if let Some(count) = links_of.get_mut(end) {
                *count += 1;
                if *count > 1 {
                    let message = format!("{} has a second link", network.hosts[end]);
                    return Err(words.error(line, message));
                }
            }
        }
        network.links.push(link);
    }
    network.ids = own;
    Ok(network)
}

fn link(words: &mut Words<'_>, places: &BTreeMap<u32, usize>) -> Result<Link, FormatError> {
    let expected = format!("the number of a node below {}", places.len());
    let node = |text: &str| places.get(&text.parse().ok()?).copied();
    let line = words.line();
    let a = words.word("an end of a link", &expected, node)?;
    let b = words.word("an end of a link", &expected, node)?;
    if a == b {
        return Err(words.error(line, "a link joins a node to itself".to_owned()));
    }
    let rate = words.word("a rate", "a rate such as 100Gbps", rate)?;
    let delay = words.word("a delay", "a delay such as 1000ns", delay)?;
    let expected = "the part of the packets that are lost, from 0 to 1";
    let loss = words.word("an error rate", expected, loss)?;
    Ok(Link { a, b, rate, delay, loss, corruption: ErrorModel::None })
}

/// Parses a rate as ns-3 writes it: `100Gbps`, `400Gb/s`, `2.5Gbps`.
fn rate(text: &str) -> Option<LinkRate> {
    let text = text.strip_suffix("bps").or_else(|| text.strip_suffix("b/s"))?;
    let units = [('G', 1_000_000_000), ('M', 1_000_000), ('K', 1000), ('k', 1000)];
    let unit = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(*name)?, *unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    // A decimal number of units, like a time.
    let rate = decimal_time(number, unit)?.0;
    (LinkRate::SLOWEST..=LinkRate::FASTEST).contains(&rate).then(|| LinkRate::new(rate))
}

fn delay(text: &str) -> Option<Time> {
    let units = [("ns", 1000), ("us", 1_000_000), ("ms", 1_000_000_000), ("s", SECOND)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    decimal_time(number, unit).filter(|delay| delay.0 <= SECOND)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // At most 2^32 - 1.
fn loss(text: &str) -> Option<ErrorModel> {
    let part: f64 = text.parse().ok()?;
    match (part * 4_294_967_296.0).round() {
        _ if !(0.0..=1.0).contains(&part) => None,
        0.0 => Some(ErrorModel::None),
        part => Some(ErrorModel::Rate(part.min(f64::from(u32::MAX)) as u32)),
    }
}

/// Parses flows.
///
/// # Errors
/// The line at fault.
pub fn flows(file: &str, text: &str) -> Result<Vec<FileFlow>, FormatError> {
    let mut words = Words::new(file, text);
    let count = words.number("the number of flows")?;
    let mut flows = Vec::new();
    for number in 1..=count {
        let line = words.line();
        if words.words.get(words.next).is_none() {
            let message = format!("ends after {} of {count} flows", number - 1);
            return Err(words.error(line, message));
        }
        let from = words.number("the sender")?;
        let to = words.number("the receiver")?;
        let priority = |text: &str| text.parse().ok().filter(|&pg: &u8| pg < 8);
        let priority = Some(words.word("pg", "a priority from 0 to 7", priority)?);
        words.number("the port")?;
        let bytes = |text: &str| text.parse().ok().filter(|&bytes| bytes > 0);
        let bytes = words.word("the size", "at least one byte", bytes)?;
        let start = |text: &str| decimal_time(text, SECOND);
        let start = words.word("the start", "a time in seconds", start)?;
        flows.push(FileFlow { from, to, priority, bytes, start, line });
    }
    Ok(flows)
}

/// A network as a topology file. Hosts are numbered first, then switches.
///
/// # Errors
/// What the format cannot hold.
pub fn write_topology(network: &Network) -> Result<String, String> {
    let Network { hosts, switches, links, routing, .. } = network;
    if *routing != Routing::default() {
        return Err("HPCC's files have no routes: [[route]] or [routing] changes them".to_owned());
    }
    let nodes = hosts.len() + switches.len();
    let mut text = format!("{nodes} {} {}\n", switches.len(), links.len());
    let numbers: Vec<String> = (hosts.len()..nodes).map(|node| node.to_string()).collect();
    let _ = writeln!(text, "{}", numbers.join(" "));
    for Link { a, b, rate, delay, loss, corruption } in links {
        let loss = match (loss, corruption) {
            (ErrorModel::None, ErrorModel::None) => 0.0,
            (ErrorModel::Rate(part), ErrorModel::None) => f64::from(*part) / 4_294_967_296.0,
            _ => {
                let names = [network.name(*a), network.name(*b)].join(" - ");
                return Err(format!(
                    "the link {names} loses every n-th packet or corrupts some; HPCC's files have \
                     random losses only"
                ));
            }
        };
        // As many digits as a small rate needs.
        let loss = if loss == 0.0 { "0.000000".to_owned() } else { loss.to_string() };
        let (rate, delay) = (rate.bits_per_second(), nanoseconds(*delay));
        let _ = match rate.is_multiple_of(1_000_000_000) {
            true => writeln!(text, "{a} {b} {}Gbps {delay}ns {loss}", rate / 1_000_000_000),
            false => writeln!(text, "{a} {b} {rate}bps {delay}ns {loss}"),
        };
    }
    Ok(text)
}

fn nanoseconds(time: Time) -> String {
    let text = format!("{}.{:03}", time.0 / 1000, time.0 % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Flows as a flow file, ordered by their starts as HPCC expects.
///
/// # Errors
/// What the format cannot hold.
pub fn write_flows(flows: &[FlowConfig]) -> Result<String, String> {
    let mut ordered: Vec<&FlowConfig> = flows.iter().collect();
    ordered.sort_by_key(|flow| flow.start);
    let mut text = format!("{}\n", flows.len());
    for flow in ordered {
        let FlowConfig { from, to, priority, message, start, .. } = flow;
        if flow.is_held || flow.released.is_some() || flow.chain.is_some() {
            return Err("a flow waits for others; in HPCC's files every flow has a start".into());
        }
        if flow.stop < Time::FAR {
            return Err("a flow is stopped; in HPCC's files every flow ends by its size".into());
        }
        let Some(messages) = flow.messages else {
            return Err(
                "a flow has no end (`messages`); in HPCC's files every flow has a size".to_owned()
            );
        };
        let bytes = message.saturating_mul(u64::from(messages));
        let start = seconds(*start);
        let _ = writeln!(text, "{from} {to} {priority} 100 {bytes} {start}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGY: &str = "5 2 4\n3 4\n0 3 100Gbps 1000ns 0.000000\n1 3 2.5Gbps 1us 0\n\
        2 4 400Gb/s 0.001ms 0.5\n3 4 1Gbps 5ns 0\n\nA text that ns-3 does not read.\n";

    #[test]
    fn a_topology_has_hosts_switches_and_links() {
        let network = topology("t", TOPOLOGY).unwrap();
        assert_eq!(network.hosts, ["h0", "h1", "h2"]);
        assert_eq!(network.switches, ["s3", "s4"]);
        let links = network.links.iter();
        let rates: Vec<u64> = links.map(|link| link.rate.bits_per_second() / 1_000_000).collect();
        assert_eq!(rates, [100_000, 2500, 400_000, 1000]);
        assert!(network.links[..3].iter().all(|link| link.delay == Time::from_micros(1)));
        assert_eq!(network.links[2].loss, ErrorModel::Rate(1 << 31));
        let written = write_topology(&network).unwrap();
        assert_eq!(topology("again", &written).unwrap(), network);
    }

    #[test]
    fn errors_name_the_line() {
        for (from, to, due) in [
            ("5 2 4", "x 2 4", "t:1: the number of nodes is `x`, expected an integer up to 20000"),
            (
                "3 4\n0",
                "3 5\n0",
                "t:2: a switch is `5`, expected the number of a node below 5, once",
            ),
            (
                "3 4\n0",
                "3 3\n0",
                "t:2: a switch is `3`, expected the number of a node below 5, once",
            ),
            ("1 3 2.5", "9 3 2.5", "t:4: an end of a link is `9`, expected the number of a node"),
            ("2.5Gbps", "2.5", "t:4: a rate is `2.5`, expected a rate such as 100Gbps"),
            ("0.001ms", "1", "t:5: a delay is `1`, expected a delay such as 1000ns"),
            ("0.5", "2", "t:5: an error rate is `2`, expected the part of the packets"),
            ("3 4 1Gbps", "2 4 1Gbps", "t:6: h2 has a second link"),
            ("3 4 1Gbps", "3 3 1Gbps", "t:6: a link joins a node to itself"),
            ("5 2 4", "5 2 5", "t:8: an end of a link is `A`, expected the number of a node"),
        ] {
            let text = TOPOLOGY.replace(from, to);
            assert_ne!(text, TOPOLOGY);
            let error = topology("t", &text).expect_err(to).to_string();
            assert!(error.starts_with(due), "{error}");
        }
        for (text, due) in [
            ("2\n0 1 3 100 5 2\n", "f:2: ends after 1 of 2 flows"),
            ("1\n0 1 8 100 5 2", "f:2: pg is `8`, expected a priority from 0 to 7"),
            ("1\n\n0 1 3 100 0 2", "f:3: the size is `0`, expected at least one byte"),
            ("1\n0 1 3 100 7 -2", "f:2: the start is `-2`, expected a time in seconds"),
            ("1\n0 1 3 100", "f:2: ends before the size, expected at least one byte"),
            ("", "f:1: ends before the number of flows, expected an integer"),
        ] {
            assert_eq!(flows("f", text).expect_err(text).to_string(), due);
        }
    }

    #[test]
    fn as_in_ns_3_only_the_first_flows_count() {
        let text = "1\n2 1 3 100 200000000 2\n3 1 3 100 5 2\n\nFirst line: # of flows\n";
        let due = FileFlow {
            from: 2,
            to: 1,
            priority: Some(3),
            bytes: 200_000_000,
            start: Time(2 * SECOND),
            line: 2,
        };
        assert_eq!(flows("f", text).unwrap(), [due]);
    }
}
