//! The options of `replay --live`.

use std::net::IpAddr;
use std::time::Duration;

use super::host::Host;
use super::needs::Endpoint;
use super::translation::{Ends, Names, keys};
use super::{LiveError, PeerPath, Responder, dry_run, play};
use crate::endpoint::end::RealPace;
use crate::failure::Failure;
use crate::inject::live::{Open, Stack};
use crate::inject::relay::within;
use crate::party::Party;
use crate::replay::copies::without_copies;
use crate::replay::lanes::{self, Captured, Lane};
use crate::replay::rewrite::{Map, Rewrite};
use crate::replay::{Difference, Outcome, Played, Replay, Role};
use feroce_congestion::params::Kind;

/// Options of a live replay.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Play the requester to a real endpoint over this interface, and compare the responses
    #[arg(long, value_name = "IFACE", requires = "peer", conflicts_with = "role")]
    live: Option<String>,
    /// IP address of the endpoint
    #[arg(long, value_name = "ADDR", requires = "live")]
    peer: Option<IpAddr>,
    /// Network namespace of the interface
    #[arg(long, value_name = "NAME", requires = "live")]
    namespace: Option<String>,
    /// The endpoint, if this program prepares it: feroce:NAMESPACE:INTERFACE:PORT, or rxe:NAMESPACE
    /// for the agent of scripts/rxe.sh, reached from this namespace
    #[arg(long, value_name = "STACK", requires = "live")]
    responder: Option<Stack>,
    /// The endpoint's name for a captured one: qpn:OLD=NEW, rkey:OLD=NEW, va:RKEY=+N, psn:QPN=+N.
    /// With --responder only psn is allowed
    #[arg(long = "map", value_name = "KIND:OLD=NEW", requires = "live")]
    maps: Vec<Map>,
    /// How long to wait for a response
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    response_timeout: Duration,
    /// Print what each responder in the capture needs, and play nothing; with --json, with all
    /// bytes of its memory
    #[arg(long, conflicts_with_all = ["live", "role"])]
    needs: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    let nanos = Kind::Time.parse(text).filter(|&nanos| nanos > 0);
    nanos.map(Duration::from_nanos).ok_or_else(|| "expected a time, such as 1s".to_owned())
}

fn unusable(why: impl std::fmt::Display) -> Failure {
    Failure::Unusable(why.to_string())
}

/// A live replay.
struct Live<'a> {
    options: &'a Options,
    maps: Rewrite,
    host: Host,
    stack: Option<Open>,
}

impl Options {
    /// Returns true if a real endpoint is used.
    pub const fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Returns true if only the needs are printed.
    pub const fn prints_needs(&self) -> bool {
        self.needs
    }

    /// Returns the needs of each responder of the capture.
    ///
    /// # Errors
    /// If none can be played to.
    pub fn needs(&self, frames: Vec<Captured>) -> Result<Vec<Endpoint>, Failure> {
        let (frames, _) = lanes::roce_frames(frames);
        let (frames, _) = without_copies(frames);
        let (lanes, _) = lanes::lanes(&frames);
        let needs: Vec<_> = lanes.iter().map(|lane| Endpoint::of(lane, &frames)).collect();
        let first = needs.first();
        match first.ok_or_else(|| nothing_to_play("it has no RC packets"))? {
            Endpoint::Not(why) if needs.iter().all(|one| matches!(one, Endpoint::Not(_))) => {
                Err(nothing_to_play(&why.not_played))
            }
            _ => Ok(needs),
        }
    }

    /// Plays the requester of a capture.
    ///
    /// # Errors
    /// If there is nothing to play, or the peer cannot be reached.
    pub fn play(&self, frames: Vec<Captured>) -> Result<Replay, Failure> {
        let (frames, not_roce) = lanes::roce_frames(frames);
        let (frames, copies) = without_copies(frames);
        let (lanes, others) = lanes::lanes(&frames);
        let run_dry = |lane: &Lane| dry_run(lane, &frames).map(drop);
        if let Some(why) = lanes.iter().map(run_dry).reduce(Result::or) {
            why.map_err(nothing_to_play)?;
        } else {
            return Err(nothing_to_play("it has no RC packets"));
        }
        let mut live = self.open(&lanes)?;
        let (played, conversations) = (live.play_all(lanes, &frames)?, Vec::new());
        Ok(Replay { played, conversations, not_roce, copies, others })
    }

    /// Opens the interface to the peer, and the peer's stack.
    fn open(&self, lanes: &[Lane]) -> Result<Live<'_>, Failure> {
        let (Some(interface), Some(peer)) = (&self.live, self.peer) else {
            return Err(unusable("--live needs --peer"));
        };
        let maps: Rewrite = self.maps.iter().copied().collect();
        if !maps.macs.is_empty() || !maps.ips.is_empty() {
            return Err(unusable(
                "--live and --peer determine the addresses: --map mac: and ip: are not allowed",
            ));
        }
        let is_v4 = |lane: &Lane| lane.responder.ip.is_ipv4();
        if lanes.iter().all(|lane| is_v4(lane) != peer.is_ipv4()) {
            let family = if peer.is_ipv4() { "IPv6" } else { "IPv4" };
            let why = format!("the capture is {family}, but the peer's address is {peer}");
            return Err(nothing_to_play(why));
        }
        let names_memory = !maps.keys.is_empty() || !maps.addresses.is_empty();
        let is_mapped = |lane: &Lane| maps.qpns.contains_key(&lane.responder.qpn);
        match &self.responder {
            Some(_) if names_memory || lanes.iter().any(is_mapped) => {
                let why = "--responder determines QPs, keys and addresses: no --map for them";
                return Err(unusable(why));
            }
            None if !lanes.iter().any(is_mapped) => {
                let qps: Vec<_> =
                    lanes.iter().map(|lane| format!("{:#x}", lane.responder.qpn)).collect();
                return Err(unusable(format!(
                    "which QP of {peer} responds? Map one of the captured QPs ({}) with --map \
                     qpn:OLD=NEW (--needs prints what the QP needs), or prepare an endpoint with \
                     --responder",
                    qps.join(", ")
                )));
            }
            _ => {}
        }
        let host = within(self.namespace.as_deref(), || Host::open(interface, peer));
        let stack = self.responder.as_ref().map(|stack| Open::new(stack, None)).transpose();
        Ok(Live {
            options: self,
            maps,
            host: host.map_err(unusable)?,
            stack: stack.map_err(unusable)?,
        })
    }
}

fn nothing_to_play(why: impl std::fmt::Display) -> Failure {
    Failure::Unusable(format!("nothing in the capture can be played: {why}"))
}

/// Plays the lanes and collects the results. A peer without responses is a difference; the other
/// lanes are still reported.
fn collect(
    lanes: Vec<Lane>,
    mut play: impl FnMut(&Lane) -> Result<Outcome, LiveError>,
) -> Result<Vec<Played>, Failure> {
    let mut played = Vec::new();
    let (mut has_response, mut unplayable, mut silent) = (false, None, None);
    for lane in lanes {
        let result = match play(&lane) {
            Ok(outcome) => {
                has_response = true;
                Ok(outcome)
            }
            Err(LiveError::Unplayable(why)) => Err(unplayable.insert(why.to_string()).clone()),
            Err(LiveError::Silent { why, fed }) => {
                silent.get_or_insert_with(|| why.clone());
                let differences = vec![Difference { packet: None, sentence: why }];
                Ok(Outcome { fed, differences, ..Outcome::default() })
            }
            // Not a wrong response of the peer.
            Err(LiveError::Broken(why)) => return Err(unusable(why)),
        };
        played.push(Played { lane, role: Role::Requester, result });
    }
    match (has_response, silent, unplayable) {
        (false, Some(why), _) => Err(unusable(why)),
        (false, None, Some(why)) => Err(nothing_to_play(why)),
        _ => Ok(played),
    }
}

impl Live<'_> {
    /// Plays the selected lanes.
    fn play_all(
        &mut self,
        mut lanes: Vec<Lane>,
        frames: &[Captured],
    ) -> Result<Vec<Played>, Failure> {
        if self.stack.is_none() {
            lanes.retain(|lane| self.maps.qpns.contains_key(&lane.responder.qpn));
        }
        collect(lanes, |lane| self.play(lane, frames))
    }

    fn play(&mut self, lane: &Lane, frames: &[Captured]) -> Result<Outcome, LiveError> {
        let qpn = |captured: u32| self.maps.qpns.get(&captured).copied().unwrap_or(captured);
        let responder = match &self.stack {
            Some(stack) => Responder::Controlled(stack.end()?),
            None => Responder::Ready(self.mapped_names(lane, frames)),
        };
        let ends = Ends {
            own: Party { qpn: qpn(lane.requester.qpn), ..self.host.own },
            peer: Party { qpn: qpn(lane.responder.qpn), ..self.host.peer },
        };
        let path = PeerPath {
            port: &mut self.host.port,
            pace: &mut RealPace::start(),
            ends,
            psn: self.maps.psns.get(&lane.responder.qpn).copied().unwrap_or(0),
            response_timeout: self.options.response_timeout,
        };
        play(lane, frames, path, responder)
    }

    /// Returns the keys and addresses given on the command line.
    fn mapped_names(&self, lane: &Lane, frames: &[Captured]) -> Names {
        let mut names = Names::default();
        for key in keys(lane, frames) {
            names.keys.extend(self.maps.keys.get(&key).map(|&new| (key, new)));
            names.addresses.extend(self.maps.addresses.get(&key).map(|&shift| (key, shift)));
        }
        names
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::replay::options;
    use crate::replay::rig::Unplayable;

    /// Returns the lanes of a capture with several QPs.
    fn several() -> Vec<Lane> {
        let file = crate::test_captures::path("rxe/write_bw_qp4_bidir.pcap.zst");
        let (frames, _) = lanes::roce_frames(options::read(file).expect("a capture"));
        let (lanes, _) = lanes::lanes(&frames);
        assert!(lanes.len() > 2, "{}", lanes.len());
        lanes
    }

    /// Plays the lanes with the given `results` in turn.
    fn collect_results(
        results: &[fn() -> Result<Outcome, LiveError>],
    ) -> Result<Vec<Played>, Failure> {
        let mut results = results.iter().cycle();
        collect(several(), |_| results.next().expect("the iterator is endless")())
    }

    fn responds() -> Result<Outcome, LiveError> {
        Ok(Outcome { fed: 3, ..Outcome::default() })
    }

    fn silent() -> Result<Outcome, LiveError> {
        Err(LiveError::Silent { why: "no response".to_owned(), fed: 1 })
    }

    fn unplayable() -> Result<Outcome, LiveError> {
        Err(Unplayable("no receives".to_owned()).into())
    }

    fn broken() -> Result<Outcome, LiveError> {
        Err(LiveError::Broken("the cable".to_owned()))
    }

    #[test]
    fn a_silent_peer_is_a_difference_and_other_lanes_are_reported() {
        let played = collect_results(&[silent, responds, unplayable]).expect("one peer responds");
        let outcomes: Vec<_> = played.iter().map(|one| one.result.as_ref().ok()).collect();
        let silent = outcomes[0].expect("played");
        assert_eq!((silent.fed, &*silent.differences[0].sentence), (1, "no response"));
        let responds = outcomes[1].expect("played");
        assert_eq!((responds.fed, responds.differences.len()), (3, 0));
        assert!(outcomes[2].is_none());
    }

    #[test]
    fn without_any_response_or_with_a_broken_path_the_replay_fails() {
        let message_of = |results: &[fn() -> Result<Outcome, LiveError>]| {
            collect_results(results).expect_err("no result").to_string()
        };
        assert_eq!(message_of(&[silent, unplayable]), "no response");
        assert!(message_of(&[unplayable]).ends_with("no receives"));
        assert_eq!(message_of(&[responds, broken]), "the cable");
    }
}
