//! The fabric in real time: real interfaces replace hosts, so that endpoints behind them see the
//! same switches, queues, marks and pauses as in virtual time.
//!
//! One thread reads the clock once per iteration, processes all due events, sends the frames that
//! have reached the end of their link, and receives frames from the interfaces. A link keeps its
//! rate exactly over time: each frame starts when the previous one has ended, not when the thread
//! notices. A late frame leaves at the next iteration. The time between iterations is measured and
//! reported; it shows a machine that is too slow or too busy for the rates.

pub mod command;
pub mod report;
pub mod table;

use std::io::{self, ErrorKind};

use feroce_engine::port::packet::{Offload, PacketError, Tap};
use feroce_wire::{Ecn, MacAddr};

use crate::fabric::Fabric;
use crate::fabric::config::FabricConfig;
use crate::fabric::external::{Departure, ExternalConfig, ExternalFrame, LinkReport};
use crate::fabric::measure::histogram::TimeHistogram;
use crate::fabric::time::Time;
use crate::frame::{self, Pause, Seen, mark};
use table::MacTable;

/// Receive buffer of each interface in the kernel, in bytes.
const RX_BYTES: u32 = 8 << 20;

/// An iteration that starts this much late causes a warning.
const LATE_WARNING: Time = Time::from_millis(10);

/// Settings in addition to the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveConfig {
    /// Mark packets of endpoints that do not announce ECN.
    pub mark_not_ect: bool,
    /// NIC model of the endpoints.
    pub external: ExternalConfig,
}

/// Why a live run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The scenario has no host of that name.
    #[error("--port {host}={interface}: the scenario has no host `{host}`; its hosts: {known}")]
    NoHost {
        /// As given.
        host: String,
        /// The interface given for the host.
        interface: String,
        /// The hosts of the scenario.
        known: String,
    },
    /// A host or an interface was given twice.
    #[error("--port: `{0}` is given twice")]
    Twice(String),
    /// Parts of the scenario do not fit together.
    #[error("{0}")]
    Config(String),
    /// An interface cannot be opened.
    #[error("{host}: {source}")]
    Open {
        /// Its host.
        host: String,
        /// The port's error.
        #[source]
        source: PacketError,
    },
    /// An interface is down or gone.
    #[error("cannot receive from {interface}: {source}")]
    Receive {
        /// The interface.
        interface: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// Counters of an interface, in addition to those of its link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeCounts {
    /// Frames received from the endpoint.
    pub frames: u64,
    /// Bytes received, without FCS.
    pub bytes: u64,
    /// Frames sent to the endpoint.
    pub frames_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Frames lost because the endpoint sent faster than its link rate and filled its NIC buffer.
    pub overrun: u64,
    /// Super-frames of segmentation offload, other than RoCE's.
    pub too_long: u64,
    /// Frames that are not forwarded: too short, link-local, or destined to the host they came
    /// from.
    pub unroutable: u64,
    /// Frames dropped by the kernel because this program was too slow.
    pub missed: u64,
    /// Frames refused by the interface.
    pub refused: u64,
    /// PFC and PAUSE frames received from the endpoint.
    pub pauses_in: u64,
    /// PFC frames sent to the endpoint that pause at least one priority.
    pub pauses_out: u64,
}

/// An interface and the host that it stands for.
#[derive(Debug)]
struct Edge {
    host: u32,
    name: String,
    tap: Tap,
    counts: EdgeCounts,
    has_warned: bool,
}

/// A frame inside the fabric.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    offload: Offload,
}

/// Statistics of one interface.
#[derive(Debug, Clone)]
pub struct EdgeReport {
    /// The host's name in the scenario.
    pub host: String,
    /// The interface's name.
    pub interface: String,
    /// Counters of the interface.
    pub counts: EdgeCounts,
    /// Statistics of the link.
    pub link: LinkReport,
}

/// A network with external hosts.
#[derive(Debug)]
pub struct Live {
    fabric: Fabric,
    edges: Vec<Edge>,
    /// Index in `edges` of each host.
    places: Vec<Option<usize>>,
    table: MacTable,
    /// Frames inside the fabric, indexed by the fabric's frame number.
    held: Vec<Held>,
    departures: Vec<Departure>,
    config: LiveConfig,
    last_turn: Time,
    gaps: TimeHistogram,
    has_warned_late: bool,
    has_warned_route: bool,
}

impl Live {
    /// Connects the interfaces of `ports`, pairs of a host and an interface, to the network of
    /// `network`.
    ///
    /// # Errors
    /// See [`LiveError`].
    pub fn open(
        network: &FabricConfig,
        ports: &[(String, String)],
        config: LiveConfig,
    ) -> Result<Self, LiveError> {
        let names = &network.network.hosts;
        let mut edges: Vec<Edge> = Vec::new();
        let mut places = vec![None; names.len()];
        for (host, interface) in ports {
            let number = names.iter().position(|name| name == host);
            let number = number.ok_or_else(|| LiveError::NoHost {
                host: host.clone(),
                interface: interface.clone(),
                known: names.join(", "),
            })?;
            if places[number].is_some() {
                return Err(LiveError::Twice(host.clone()));
            }
            if edges.iter().any(|edge| edge.tap.name() == interface) {
                return Err(LiveError::Twice(interface.clone()));
            }
            places[number] = Some(edges.len());
            let tap = Tap::open(interface, RX_BYTES)
                .map_err(|source| LiveError::Open { host: host.clone(), source })?;
            edges.push(Edge {
                host: u32::try_from(number).unwrap_or(u32::MAX),
                name: host.clone(),
                tap,
                counts: EdgeCounts::default(),
                has_warned: false,
            });
        }
        // Measurements start immediately: a warm-up makes sense only for the scenario's own
        // traffic.
        let network = FabricConfig { warmup: Time::ZERO, ..network.clone() };
        let mut fabric =
            Fabric::new(&network).map_err(|error| LiveError::Config(error.to_string()))?;
        let hosts: Vec<u32> = edges.iter().map(|edge| edge.host).collect();
        fabric.open(&hosts, config.external);
        Ok(Self {
            fabric,
            edges,
            places,
            table: MacTable::default(),
            held: Vec::new(),
            departures: Vec::new(),
            config,
            last_turn: Time::ZERO,
            gaps: TimeHistogram::default(),
            has_warned_late: false,
            has_warned_route: false,
        })
    }

    /// Processes everything due at `now`.
    ///
    /// # Errors
    /// [`LiveError::Receive`] if an interface is down or gone.
    pub fn turn(&mut self, now: Time) -> Result<(), LiveError> {
        let gap = now - self.last_turn;
        self.gaps.add(gap.0 / 1000, gap);
        self.last_turn = now;
        self.fabric.run_until(now, &mut self.departures);
        self.send_departures();
        for place in 0..self.edges.len() {
            self.receive_frames(place)?;
        }
        Ok(())
    }

    /// Sends the frames that have left the fabric to their interfaces.
    fn send_departures(&mut self) {
        for departure in self.departures.drain(..) {
            let (Departure::Frame { host, .. } | Departure::Pause { host, .. }) = departure;
            let Some(place) = self.places[host as usize] else { continue };
            let edge = &mut self.edges[place];
            let sent = match departure {
                Departure::Frame { frame, marked, corrupted, .. } => {
                    let Held { bytes, offload } = &mut self.held[frame];
                    if marked {
                        mark(bytes);
                    }
                    if corrupted {
                        // Complete the checksum of the original bytes first; otherwise the device
                        // would compute one over the damaged bytes.
                        *offload = offload.complete(bytes);
                        frame::damage(bytes);
                    }
                    edge.counts.bytes_out += bytes.len() as u64;
                    edge.counts.frames_out += 1;
                    edge.tap.send(bytes, *offload)
                }
                Departure::Pause { enabled, paused, quanta, .. } => {
                    edge.counts.pauses_out += u64::from(paused != 0);
                    let frame = Pause::new(enabled, paused, quanta).to_bytes(SWITCH);
                    edge.tap.send(&frame, Offload::default())
                }
            };
            edge.counts.refused += u64::from(sent.is_err());
        }
    }

    /// Receives the frames of an interface.
    fn receive_frames(&mut self, place: usize) -> Result<(), LiveError> {
        let edge = &mut self.edges[place];
        let count = match edge.tap.receive() {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(source) => {
                return Err(LiveError::Receive { interface: edge.tap.name().to_owned(), source });
            }
        };
        for index in 0..count {
            self.take_frame(place, index);
        }
        Ok(())
    }

    fn take_frame(&mut self, place: usize, index: usize) {
        let edge = &mut self.edges[place];
        let frame = edge.tap.frame(index);
        let bytes = frame.bytes;
        edge.counts.frames += 1;
        edge.counts.bytes += bytes.len() as u64;
        if frame.offload.is_super_frame() {
            edge.counts.too_long += 1;
            return;
        }
        match Pause::parse(bytes) {
            None => {}
            Some(None) => {
                edge.counts.unroutable += 1;
                return;
            }
            Some(Some(pause)) => {
                edge.counts.pauses_in += 1;
                for (group, quanta) in pause.groups() {
                    let paused = if quanta > 0 { group } else { 0 };
                    self.fabric.inject_pause(edge.host, group, paused, quanta);
                }
                return;
            }
        }
        let Some(seen) = Seen::new(bytes) else {
            edge.counts.unroutable += 1;
            return;
        };
        self.table.learn(seen.from, edge.host);
        let from = edge.host;
        match self.table.host(seen.to) {
            _ if seen.is_link_local() => edge.counts.unroutable += 1,
            Some(to) if to == from => edge.counts.unroutable += 1,
            Some(to) => self.inject(place, index, &seen, to),
            None => {
                for other in 0..self.edges.len() {
                    if other != place {
                        let to = self.edges[other].host;
                        self.inject(place, index, &seen, to);
                    }
                }
            }
        }
    }

    /// Queues a frame on the link of its sending host.
    fn inject(&mut self, place: usize, index: usize, seen: &Seen, to: u32) {
        let edge = &mut self.edges[place];
        let frame = edge.tap.frame(index);
        let marked = seen.ecn == Some(Ecn::Ce);
        let external = ExternalFrame {
            to,
            size: frame::size_on_link(frame.bytes.len()),
            priority: seen.priority,
            entropy: seen.entropy,
            ecn_capable: match seen.ecn {
                None => false,
                Some(Ecn::NotEct) => self.config.mark_not_ect,
                Some(_) => true,
            },
            marked,
        };
        let Some(number) = self.fabric.inject(edge.host, external) else {
            edge.counts.overrun += 1;
            return;
        };
        if self.held.len() <= number {
            self.held.resize_with(number + 1, Held::default);
        }
        let held = &mut self.held[number];
        held.bytes.clear();
        held.bytes.extend_from_slice(frame.bytes);
        held.offload = frame.offload;
    }

    /// New warnings, each reported once.
    pub fn warnings(&mut self) -> Vec<String> {
        let mut message = Vec::new();
        if !self.has_warned_late && self.gaps.max() > LATE_WARNING.0 / 1000 {
            self.has_warned_late = true;
            message.push(format!(
                "{} ms late at {:.1} s: frames leave in bursts caused by this machine. The \
                 program needs a CPU of its own, or lower rates",
                self.gaps.max() / 1_000_000,
                self.last_turn.seconds()
            ));
        }
        if !self.has_warned_route && self.fabric.unroutable() > 0 {
            self.has_warned_route = true;
            message.push("frames without a route are lost".to_owned());
        }
        for edge in &mut self.edges {
            if edge.counts.too_long + edge.tap.truncated() > 0 && !edge.has_warned {
                edge.has_warned = true;
                message.push(format!(
                    "{}: super-frames of segmentation offload are lost. Turn the offload off at \
                     the sender: `ethtool -K PEER tso off gso off`, where PEER is {1}'s peer",
                    edge.name,
                    edge.tap.name()
                ));
            }
        }
        message
    }

    /// Nanoseconds between iterations, weighted by time: an event due in such a gap was late by up
    /// to the gap's length.
    pub const fn gaps(&self) -> &TimeHistogram {
        &self.gaps
    }

    /// Statistics of all interfaces.
    pub fn report(&mut self) -> Vec<EdgeReport> {
        let fabric = &mut self.fabric;
        let report = |edge: &mut Edge| EdgeReport {
            host: edge.name.clone(),
            interface: edge.tap.name().to_owned(),
            counts: EdgeCounts {
                too_long: edge.counts.too_long + edge.tap.truncated(),
                missed: edge.tap.drops(),
                ..edge.counts
            },
            link: fabric.link_report(edge.host),
        };
        self.edges.iter_mut().map(report).collect()
    }
}

/// Source address of PFC frames: locally administered.
const SWITCH: MacAddr = MacAddr([0x02, 0xfe, 0x20, 0xce, 0, 1]);
