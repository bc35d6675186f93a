//! One engine host: a manually driven device, its QPs, and the far end of its shm port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use feroce_engine::congestion::CongestionConfig;
use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Addressing, Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Driver, Endpoint,
    QpInit, QueuePair, StaticAddresses,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::Port;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::{QpAttributes, ack_timeout};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_wire::{MacAddr, PathMtu, Psn, Qpn};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::fabric::config::{Control, FabricConfig, FlowConfig, HostConfig, Recovery};
use crate::fabric::time::{LinkRate, Time};

/// Slots of the ring between core and NIC. Few, so that acknowledgements do not queue behind much
/// data.
const RING: usize = 4;
/// Number of the first QP; the following QPs count up from here.
const FIRST_QPN: u32 = 0x10;
/// An endless flow keeps at least this many bytes of WRITEs posted, in at most this many WRITEs.
const MIN_POSTED_BYTES: u64 = 4 << 20;
const MAX_POSTED: u64 = 1024;
/// Longest message: both ends allocate memory for a whole message.
pub(super) const MAX_MESSAGE: u64 = 64 << 20;
/// Arena size for work queues, rings and other parts of a device besides its buffer. Pages are only
/// allocated on use.
const ARENA: usize = 1 << 30;

/// The messages of a sending flow.
#[derive(Debug)]
struct Sending {
    message: u32,
    remote: RemoteAddr,
    /// Messages not posted yet; `None` for an endless flow.
    unposted: Option<u32>,
    posted: u32,
    depth: u32,
}

/// A QP: one end of a flow.
#[derive(Debug)]
pub(super) struct End {
    qp: QueuePair,
    psn: Psn,
    /// Number of the flow.
    pub flow: u32,
    sends: bool,
    sending: Option<Sending>,
    /// One past the highest PSN of data that was sent.
    pub sent_end: Psn,
}

impl End {
    /// Posts as many WRITEs as fit. Returns false if no WRITE is posted or left to post.
    fn post(&mut self, memory: &Buffer) -> bool {
        let Some(sending) = &mut self.sending else { return false };
        while sending.posted < sending.depth && sending.unposted != Some(0) {
            let sges = [memory.region().sge(0, sending.message)];
            let write = SendRequest {
                wr_id: 0,
                op: SendOp::Write(sending.remote),
                data: Data::Sges(&sges),
                flags: SendFlags::SIGNALED,
            };
            if self.qp.post_send(&write).is_err() {
                break; // The send queue is full, or the QP is in error.
            }
            sending.posted += 1;
            sending.unposted = sending.unposted.map(|count| count - 1);
        }
        sending.posted > 0
    }

    /// Current rate in bit/s and alpha in units of 2^-31.
    pub fn rate(&self, now: Instant) -> Option<(u64, u32)> {
        let rate = self.qp.snapshot(now).rate?;
        // Converts millionths to units of 2^-31.
        let alpha = u64::from(rate.alpha_ppm.unwrap_or(0)) * (1 << 31) / 1_000_000;
        Some((rate.rate.as_bps(), u32::try_from(alpha).unwrap_or(u32::MAX)))
    }
}

/// An event of a flow, reported to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlowEvent {
    /// All messages of the flow have arrived.
    Finished(u32),
    /// The QP has failed.
    Failed(u32),
}

/// Counters of a device that a received frame may change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RxCounters {
    pub writes: u64,
    pub out_of_sequence: u64,
    pub marked: u64,
    pub naks: u64,
    pub cnps: u64,
    pub damaged: u64,
}

impl RxCounters {
    /// The counts since `before`.
    fn since(&self, before: &Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            out_of_sequence: self.out_of_sequence - before.out_of_sequence,
            marked: self.marked - before.marked,
            naks: self.naks - before.naks,
            cnps: self.cnps - before.cnps,
            damaged: self.damaged - before.damaged,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct EngineHost {
    pub device: Device,
    /// The simulated NIC's end of the ring between NIC and device.
    pub nic_port: ShmPort,
    cq: CompletionQueue,
    memory: Buffer,
    pub ends: Vec<End>,
    /// Time of the next scheduled poll.
    pub wakes_at: Time,
    /// True if the NIC was full at the last poll.
    pub is_blocked: bool,
    timeouts: u64,
    /// Counts of received frames at the last call of `new_received`.
    received: RxCounters,
}

impl EngineHost {
    /// Opens host number `host` on a link of `link_rate`, with a QP for each of `flows`, the flows
    /// that start or end at this host.
    ///
    /// # Errors
    /// Refusals by the engine or the system.
    pub fn new(
        config: &FabricConfig,
        host: u32,
        link_rate: LinkRate,
        flows: &[(u32, FlowConfig)],
        arena: &Arc<Arena>,
    ) -> Result<Self, String> {
        let name = config.network.name(host as usize);
        let refused = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let macs = [mac(host), SWITCH];
        let link_rate = Some(link_rate.bits_per_second());
        let shm =
            ShmConfig { name: name.to_owned(), slots: RING, macs, link_rate, ..Default::default() };
        let mtu = shm.mtu;
        let (port, nic_port) = shm_pair(arena, shm).map_err(|error| refused(&error))?;
        let peers = (0..config.network.hosts.len()).filter_map(|peer| u32::try_from(peer).ok());
        let addressing = Addressing::Static(StaticAddresses {
            mac: mac(host),
            gids: vec![(gid(host), None)],
            peers: peers.map(|peer| (gid(peer), mac(peer))).collect::<BTreeMap<_, _>>(),
            mtu,
        });
        let depths = flows.iter().map(|(_, flow)| depth(flow)).sum::<u64>();
        let longest = flows.iter().map(|(_, flow)| flow.message).max().unwrap_or(1);
        let longest = usize::try_from(longest).map_err(|error| refused(&error))?;
        let device = device_config(config, host, flows, ARENA + longest);
        let device = Device::with_ports(vec![Box::new(port)], addressing, device)
            .map_err(|error| refused(&error))?;
        let pd = device.alloc_pd();
        let cq = device
            .create_cq(u32::try_from(depths).unwrap_or(u32::MAX).max(1))
            .map_err(|error| refused(&error))?;
        let memory = pd.alloc_buffer(longest, Access::ALL).map_err(|error| refused(&error))?;
        let mut ends = Vec::new();
        for (number, flow) in flows {
            let depth = if flow.from == host { depth(flow) } else { 1 };
            let init = QpInit {
                max_send_wr: u32::try_from(depth).unwrap_or(u32::MAX),
                max_recv_wr: 1,
                ..QpInit::new(&cq)
            };
            let qp = pd.create_qp(&init).map_err(|error| refused(&error))?;
            let psn = device.random_psn().map_err(|error| refused(&error))?;
            let sends = flow.from == host;
            ends.push(End { qp, psn, flow: *number, sends, sending: None, sent_end: psn });
        }
        Ok(Self {
            device,
            nic_port,
            cq,
            memory,
            ends,
            wakes_at: Time::FAR,
            is_blocked: false,
            timeouts: 0,
            received: RxCounters::default(),
        })
    }

    /// The index of the QP with this number.
    pub fn place(&self, qpn: Qpn) -> Option<usize> {
        let place = qpn.value().checked_sub(FIRST_QPN)? as usize;
        (place < self.ends.len()).then_some(place)
    }

    /// The connection parameters of the QP at `place`, for its peer.
    ///
    /// # Errors
    /// Refusals by the engine.
    pub fn endpoint(&self, place: usize) -> Result<Endpoint, String> {
        let end = &self.ends[place];
        end.qp.endpoint(end.psn, 0).map_err(|error| error.to_string())
    }

    /// Connects the QP at `place` to `peer`. Its packets have the priority `priority`.
    ///
    /// # Errors
    /// Refusals by the engine.
    pub fn connect(
        &mut self,
        place: usize,
        peer: &Endpoint,
        config: &FabricConfig,
        priority: u8,
    ) -> Result<(), String> {
        let options = ConnectOptions {
            path_mtu: PathMtu::from_bytes(config.packet.payload),
            timeout: timeout_code(&config.host),
            traffic_class: priority << 5,
            ..ConnectOptions::default()
        };
        let end = &mut self.ends[place];
        end.qp.connect(end.psn, peer, &options).map_err(|error| error.to_string())
    }

    /// The remote address that peers write to.
    pub fn target(&self) -> RemoteAddr {
        let region = self.memory.region();
        RemoteAddr { addr: region.addr(), rkey: region.rkey() }
    }

    /// Starts the flow of the QP at `place`: WRITEs to `remote`.
    pub fn start(&mut self, place: usize, flow: &FlowConfig, remote: RemoteAddr) {
        let end = &mut self.ends[place];
        end.sending = Some(Sending {
            message: u32::try_from(flow.message).unwrap_or(u32::MAX),
            remote,
            unposted: flow.messages,
            posted: 0,
            depth: u32::try_from(depth(flow)).unwrap_or(u32::MAX),
        });
        end.post(&self.memory);
    }

    /// Stops the flow of the QP at `place` and flushes its posted WRITEs. Returns true if any
    /// message was left.
    pub fn stop(&mut self, place: usize) -> bool {
        let end = &mut self.ends[place];
        let sends = end.sending.take().is_some();
        if sends {
            let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
            let _ = end.qp.modify(&error); // The QP may already be in error.
        }
        sends
    }

    /// The flow with the most retries since its last progress, among the flows that start here.
    pub fn most_retried(&self, now: Instant) -> Option<u32> {
        let senders = self.ends.iter().filter(|end| end.sends);
        let flow = senders.max_by_key(|end| (end.qp.snapshot(now).retries, end.sending.is_some()));
        flow.map(|end| end.flow)
    }

    /// Polls completions and posts the next WRITEs. Returns true if there was a completion; events
    /// of flows go into `flow_events`.
    pub fn reap(&mut self, flow_events: &mut Vec<FlowEvent>) -> bool {
        let mut any = false;
        while let Some(completion) = self.cq.pop() {
            any = true;
            let Some(place) = self.place(completion.qp) else { continue };
            let end = &mut self.ends[place];
            let Some(sending) = &mut end.sending else { continue };
            sending.posted -= 1;
            if !completion.is_success() {
                end.sending = None;
                flow_events.push(FlowEvent::Failed(end.flow));
            } else if !end.post(&self.memory) {
                end.sending = None;
                flow_events.push(FlowEvent::Finished(end.flow));
            }
        }
        any
    }

    /// Delivers a frame to the host.
    pub fn deliver(&mut self, frame: &[u8]) {
        let Some(slot) = self.nic_port.tx_slot() else {
            unreachable!("each frame is taken in the turn that follows it")
        };
        slot[..frame.len()].copy_from_slice(frame);
        self.nic_port.tx_commit(frame.len(), feroce_engine::port::Priority::default());
        self.nic_port.flush().expect("the device exists");
    }

    /// Counts of received frames since the last call.
    pub fn new_received(&mut self) -> RxCounters {
        let count = |counter| self.device.counter(counter);
        let all = RxCounters {
            writes: count(Counter::RxWriteRequests),
            out_of_sequence: count(Counter::OutOfSequence),
            marked: count(Counter::NpEcnMarkedRocePackets),
            naks: count(Counter::PacketSeqErr),
            cnps: count(Counter::RpCnpHandled),
            damaged: count(Counter::RxIcrcEncapsulated) + count(Counter::PortRcvErrors),
        };
        all.since(&std::mem::replace(&mut self.received, all))
    }

    /// Timeouts since the last call.
    pub fn new_timeouts(&mut self) -> u64 {
        let all = self.device.counter(Counter::LocalAckTimeoutErr);
        all - std::mem::replace(&mut self.timeouts, all)
    }
}

/// WRITEs that a flow keeps posted.
fn depth(flow: &FlowConfig) -> u64 {
    let enough = MIN_POSTED_BYTES.div_ceil(flow.message.max(1)).clamp(2, MAX_POSTED);
    flow.messages.map_or(enough, |messages| enough.min(u64::from(messages)))
}

/// The code of the shortest local ACK timeout that is not below the scenario's timeout.
fn timeout_code(host: &HostConfig) -> u8 {
    if host.timeout == Time::ZERO {
        return 0;
    }
    let wanted = Duration::from_nanos(host.timeout.instant().as_nanos());
    (1..31).find(|&code| ack_timeout(code).is_some_and(|time| time >= wanted)).unwrap_or(31)
}

fn device_config(
    config: &FabricConfig,
    host: u32,
    flows: &[(u32, FlowConfig)],
    arena_bytes: usize,
) -> DeviceConfig {
    let full = config.packet.payload + config.packet.headers;
    let window = config.host.window.map_or(u64::MAX, |bytes| bytes / u64::from(full));
    DeviceConfig {
        driver: Driver::Manual,
        max_qp: u32::try_from(flows.len()).unwrap_or(u32::MAX),
        max_mr: 1,
        first_qpn: Some(FIRST_QPN),
        arena_bytes,
        window: u32::try_from(window.min(MAX_WINDOW)).unwrap_or(u32::MAX),
        congestion: CongestionConfig {
            control: control(flows),
            params: config.congestion,
            burst: config.host.burst.saturating_mul(full),
        },
        seed: Some(seed_of(config.seed, host)),
        min_ack_timeout: 0, // Virtual time is exact.
        selective_repeat: config.host.recovery == Recovery::SelectiveRepeat,
        ..DeviceConfig::default()
    }
}

/// The seed of a host's device; different for all hosts and run seeds.
fn seed_of(seed: u64, host: u32) -> u64 {
    let stream = SplitMix64::seed_from_u64(seed).next_u64();
    SplitMix64::seed_from_u64(stream ^ u64::from(host)).next_u64()
}

/// Window in packets where the scenario sets none: the engine's maximum.
const MAX_WINDOW: u64 = 1 << 20;

/// The congestion control of a host: a device has one for all its QPs.
fn control(flows: &[(u32, FlowConfig)]) -> Control {
    flows.first().map_or(Control::Off, |(_, first)| first.control)
}

/// MAC address of the switch's end of a host's link.
const SWITCH: MacAddr = MacAddr([0x02, 0xfe, 0xff, 0, 0, 0]);

fn mac(host: u32) -> MacAddr {
    let [a, b, c, d] = host.to_be_bytes();
    MacAddr([0x02, 0xfe, a, b, c, d])
}

/// Hosts have the addresses 10.0.0.1, 10.0.0.2 and so on.
const FIRST_ADDRESS: u32 = 0x0a00_0001;

fn gid(host: u32) -> Gid {
    Gid::from(Ipv4Addr::from_bits(FIRST_ADDRESS + host))
}

/// The host with this address.
pub(super) fn host_of(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(FIRST_ADDRESS),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_different_seeds() {
        let near = [(1, 0), (1, 1), (2, 0), (1 + (1 << 44), 0), (1 << 20 ^ 1, 1), (u64::MAX, 0)];
        let seeds: std::collections::BTreeSet<u64> =
            near.iter().map(|&(seed, host)| seed_of(seed, host)).collect();
        assert_eq!(seeds.len(), near.len());
    }
}
