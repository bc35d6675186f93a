//! A network in virtual time: hosts, links and switches exchange packets in the order of (time,
//! sequence number).
//!
//! A run is a function of its configuration: it reads no clock, uses no floating point before the
//! final statistics, and derives every random number from the seed. Each component has its own
//! generator.
//!
//! [`Fabric`] is one state machine over all components. Its methods are in the modules of their
//! topics (`switch`, `host`, `engine`, `external`, `deadlock`, `measure`), which therefore import
//! this module.

mod ahead;
mod build;
pub mod config;
pub mod deadlock;
mod engine;
pub mod error_model;
mod events;
pub mod external;
pub mod formats;
mod host;
pub mod measure;
mod packet;
pub(crate) mod pause;
pub mod port;
pub(crate) mod routing;
pub mod scenario;
pub mod scheduler;
mod standalone;
pub mod steps;
mod switch;
mod telemetry;
pub mod time;
pub mod topology;
pub mod traffic;

use feroce_congestion::Params;

use config::{HostConfig, PacketConfig};
use deadlock::Detector;
use engine::Engines;
use error_model::Delivery;
use events::{Event, Events};
use external::{Departure, ExternalConfig};
use host::receiver::Notifier;
use host::{Flow, Host};
use measure::Samples;
use packet::{Flags, Kind, PacketId, Packets};
use port::{Node, Port};
use steps::Steps;
use switch::Switch;
use telemetry::Telemetry;
use time::Time;

pub use host::sender::SenderCounts;
pub use switch::buffer;

/// A network and its state at the current virtual time.
#[derive(Debug)]
pub struct Fabric {
    now: Time,
    events: Events,
    packets: Packets,
    telemetry: Telemetry,
    ports: Vec<Port>,
    switches: Vec<Switch>,
    hosts: Vec<Host>,
    flows: Vec<Flow>,
    notifiers: Vec<Notifier>,
    packet: PacketConfig,
    host: HostConfig,
    congestion: Params,
    cnp_priority: u8,
    pause_response: Time,
    duration: Time,
    warmup: Time,
    finished: usize,
    /// Events processed.
    processed: u64,
    /// Frames that reached the end of a link.
    hops: u64,
    samples: Samples,
    detector: Detector,
    external: ExternalConfig,
    departures: Vec<Departure>,
    engines: Engines,
    steps: Steps,
}

impl Fabric {
    /// Current virtual time.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Virtual time at which the run ends.
    pub const fn duration(&self) -> Time {
        self.duration
    }

    /// Number of events processed.
    pub const fn events(&self) -> u64 {
        self.processed
    }

    /// Number of frames that reached the end of a link.
    pub const fn hops(&self) -> u64 {
        self.hops
    }

    /// Processes up to `max_events` events. Returns true if the run is over: the configured time is
    /// reached, or all flows and steps have ended.
    pub fn run(&mut self, max_events: u64) -> bool {
        for _ in 0..max_events {
            if self.finished == self.flows.len()
                && self.packets.live() == 0
                && self.steps.are_done()
            {
                return true;
            }
            match self.events.pop() {
                Some((at, event)) if at <= self.duration => {
                    debug_assert!(at >= self.now, "virtual time never decreases");
                    self.now = at;
                    self.processed += 1;
                    self.look_ahead();
                    self.handle(event);
                }
                _ => {
                    self.now = self.duration;
                    return true;
                }
            }
        }
        false
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { at, packet } => self.arrive(at, packet),
            Event::Wake { port } => {
                let wakes = &mut self.ports[port as usize].wake_at;
                if *wakes == self.now {
                    *wakes = Time::FAR;
                    self.try_transmit(port);
                }
            }
            Event::Refresh { port, priority } => {
                if let Node::Switch(number) = self.ports[port as usize].node {
                    self.refresh(number, port, priority);
                }
            }
            Event::Response { host, packet } => self.enqueue_response(host, packet),
            Event::Start { flow } => self.start(flow),
            Event::Stop { flow } => self.stop(flow),
            Event::Timeout { flow } => self.timeout(flow),
            Event::Notify { point } => self.notify(point),
            Event::Sample => self.sample(),
            Event::WarmupEnd => self.end_warmup(),
            Event::Engine { host } => self.wake_engine(host),
            Event::StepDone { step } => self.step_done(step),
        }
    }

    /// Handles a frame that arrives at the port `at`.
    #[inline]
    fn arrive(&mut self, at: u32, id: PacketId) {
        self.hops += 1;
        if let Kind::Pfc { enabled, paused, quanta } = self.packets.get(id).kind() {
            self.packets.remove(id);
            let to = &mut self.ports[at as usize];
            if let Node::External(host) = to.node {
                self.departures.push(Departure::Pause { host, enabled, paused, quanta });
                if !self.external.nics_obey {
                    return;
                }
            }
            to.counts.pauses_received += u64::from(paused != 0);
            to.pauses.take(enabled, paused, quanta, to.rate, self.now);
            self.try_transmit(at);
            return;
        }
        match self.ports[at as usize].node {
            Node::Switch(number) => self.switch_receives(number, at, id),
            Node::Host(number) => self.host_receives(number, id),
            Node::External(number) => self.external_receives(number, id),
            Node::Engine(number) => self.engine_receives(number, id),
        }
    }

    /// Transmits the next frame of `port` if its link is free, and schedules the next attempt.
    fn try_transmit(&mut self, port: u32) {
        let out = &mut self.ports[port as usize];
        if self.now < out.free_at {
            let at = out.free_at;
            self.wake(port, at);
            return;
        }
        let node = out.node;
        let sent = match out.control.pop(&mut self.packets) {
            Some(id) => {
                self.transmit(port, id);
                true
            }
            None => match node {
                Node::Switch(number) => self.switch_sends(number, port),
                Node::Host(number) => self.host_sends(number, port),
                Node::External(_) => self.external_sends(port),
                Node::Engine(number) => self.engine_sends(number, port),
            },
        };
        let out = &mut self.ports[port as usize];
        let next = match node {
            _ if sent && !out.control.is_empty() => out.free_at,
            Node::Host(number) => self.host_next(number, port),
            _ if out.backlog() == 0 => return,
            _ if sent => out.free_at,
            _ => out.next_release(self.now).unwrap_or(Time::FAR),
        };
        let free_at = self.ports[port as usize].free_at;
        self.wake(port, next.max(free_at));
    }

    /// Schedules a transmission attempt of `port` at `at`, unless an earlier one is scheduled.
    #[inline]
    fn wake(&mut self, port: u32, at: Time) {
        let wakes = &mut self.ports[port as usize].wake_at;
        if at < *wakes {
            *wakes = at;
            self.events.push(at, Event::Wake { port });
        }
    }

    /// Starts the transmission of a frame.
    #[inline]
    fn transmit(&mut self, port: u32, id: PacketId) {
        let packet = self.packets.get_mut(id);
        let bytes = packet.size + self.packet.gap;
        let out = &mut self.ports[port as usize];
        out.free_at = self.now + out.rate.time_of(bytes);
        out.counts.frames += 1;
        out.counts.wire_bytes += u64::from(bytes);
        let mut arrives = out.free_at + out.delay;
        match packet.kind() {
            Kind::Pfc { .. } => arrives = arrives + self.pause_response,
            Kind::Data { .. } | Kind::Frame => {
                let fate = out.faults.as_mut().map_or(Delivery::Intact, |faults| faults.next());
                match fate {
                    Delivery::Intact => {}
                    Delivery::Corrupted => {
                        packet.flags |= Flags::CORRUPTED;
                        out.counts.corrupted += 1;
                    }
                    Delivery::Lost => {
                        out.counts.lost += 1;
                        self.packets.remove(id);
                        return;
                    }
                }
            }
            _ => {}
        }
        self.events.push(arrives, Event::Arrive { at: out.peer, packet: id });
    }
}
