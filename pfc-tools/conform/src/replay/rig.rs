//! A device of the engine that replaces one end of a lane, on shared-memory ports, advanced
//! step by step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{
    Addressing, CompletionQueue, Device, DeviceConfig, Path, ProtectionDomain, QpInit, QueuePair,
    SourcePort, StaticAddresses,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, Priority};
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{MAX_RD_ATOMIC, QpState, Service};
use feroce_engine::time::Instant;
use feroce_wire::{Packet, Pkey, Psn, Qpn, RnrTimer};

use super::lanes::Lane;
use crate::device_pair::manual_config;
use crate::gated_port::GatedPort;
use crate::party::Party;

/// Maximum number of packets outstanding: more than in any capture, because each peer chooses the
/// size of its window.
const WINDOW: u32 = 1 << 20;

/// Least depth of READs and atomics: lost responses may hide some of those outstanding.
const LEAST_DEPTH: u8 = 16;

/// Returns the depth of READs and atomics that the lane needs, within the limits of the engine.
pub fn depth(lane: &Lane) -> u8 {
    let most = u8::try_from(lane.outstanding).unwrap_or(u8::MAX);
    most.clamp(LEAST_DEPTH, MAX_RD_ATOMIC)
}

/// Largest IP packet that a device takes: more than any legal one, so that it refuses those whose
/// payload exceeds the path MTU.
const LARGEST_PACKET: u32 = 9000;

/// Why a lane cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unplayable(pub String);

/// Creates the error from another one and the failed action.
pub fn unplayable<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Unplayable + '_ {
    move |error| Unplayable(format!("{doing}: {error}"))
}

/// See the [module](self).
#[derive(Debug)]
pub struct Rig {
    /// The device under test.
    pub device: Device,
    /// Protection domain of its memory.
    pub pd: ProtectionDomain,
    /// The CQ for all completions.
    pub cq: CompletionQueue,
    port: ShmPort,
    open: Arc<AtomicUsize>,
    /// The virtual time.
    pub now: Instant,
}

/// Starting parameters of a connected QP.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// First PSN sent.
    pub sq_psn: Psn,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// Timer code in RNR NAKs.
    pub min_rnr_timer: RnrTimer,
}

fn gid(ip: std::net::IpAddr) -> Gid {
    match ip {
        std::net::IpAddr::V4(ip) => Gid::from(ip),
        std::net::IpAddr::V6(ip) => Gid::from(ip),
    }
}

impl Rig {
    /// Creates a device with the address and the QP number of `own`, which knows the address of
    /// `peer`. It has `bytes` of memory besides what a device needs itself. It sends nothing until
    /// [`Rig::allow`].
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn new(lane: &Lane, own: &Party, peer: &Party, bytes: usize) -> Result<Self, Unplayable> {
        let arena = Arena::new(32 << 20).map_err(unplayable("memory"))?;
        let shape = ShmConfig {
            name: "replay".to_owned(),
            slots: 1024,
            mtu: LARGEST_PACKET,
            ..ShmConfig::default()
        };
        let (near, port) = shm_pair(&arena, shape).map_err(unplayable("ports"))?;
        let open = Arc::new(AtomicUsize::new(0));
        let near = GatedPort::new(near, Arc::clone(&open));
        let config = DeviceConfig {
            first_qpn: Some(own.qpn.max(2)),
            max_mr: 1 << 16,
            plain_keys: true,
            window: WINDOW,
            read_window: WINDOW,
            arena_bytes: (bytes + (64 << 20)).next_multiple_of(2 << 20),
            ..manual_config(1)
        };
        let addresses = Addressing::Static(StaticAddresses {
            mac: own.mac,
            gids: vec![(gid(own.ip), lane.vlan)],
            peers: BTreeMap::from([(gid(peer.ip), peer.mac)]),
            mtu: LARGEST_PACKET,
        });
        let device = Device::with_ports(vec![Box::new(near)], addresses, config);
        let device = device.map_err(unplayable("a device"))?;
        let pd = device.alloc_pd();
        let cq = device.create_cq(1 << 16).map_err(unplayable("a completion queue"))?;
        Ok(Self { device, pd, cq, port, open, now: Instant::ZERO })
    }

    /// Returns the parameters of the lane's QP.
    pub fn init(&self, lane: &Lane, own: &Party) -> QpInit<'_> {
        QpInit {
            service: lane.service,
            qpn: Qpn::new(own.qpn),
            max_send_wr: 1 << 13,
            max_recv_wr: 1 << 10,
            ..QpInit::new(&self.cq)
        }
    }

    /// Creates a connected QP in RTS, whose packets have the headers of `like`.
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn connect(
        &self,
        lane: &Lane,
        [own, peer]: [&Party; 2],
        begin: &Begin,
        like: Option<&Packet<'_>>,
    ) -> Result<QueuePair, Unplayable> {
        let mut qp = self.pd.create_qp(&self.init(lane, own)).map_err(unplayable("a QP"))?;
        Self::bring_up(&mut qp, lane, peer, begin, like)?;
        Ok(qp)
    }

    /// Resets a connected QP and connects it again.
    ///
    /// # Errors
    /// If the engine refuses.
    pub fn restart(
        qp: &mut QueuePair,
        lane: &Lane,
        peer: &Party,
        begin: &Begin,
        like: Option<&Packet<'_>>,
    ) -> Result<(), Unplayable> {
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        qp.modify(&reset).map_err(unplayable("reset"))?;
        Self::bring_up(qp, lane, peer, begin, like)
    }

    /// Connects a new QP or one that was reset.
    fn bring_up(
        qp: &mut QueuePair,
        lane: &Lane,
        peer: &Party,
        begin: &Begin,
        like: Option<&Packet<'_>>,
    ) -> Result<(), Unplayable> {
        let dest_qp = Qpn::masked(peer.qpn);
        let flow = qp.resolve(&path(peer, like), dest_qp).map_err(unplayable("a path"))?;
        let reliable = lane.service == Service::Rc;
        let steps = [
            QpAttributes {
                state: Some(QpState::Init),
                pkey: Some(Pkey::DEFAULT),
                port: Some(1),
                access: Some(Access::REMOTE),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::Rtr),
                flow: Some(flow),
                path_mtu: Some(lane.mtu),
                dest_qp: Some(dest_qp),
                rq_psn: Some(begin.rq_psn),
                max_dest_rd_atomic: reliable.then_some(depth(lane)),
                min_rnr_timer: reliable.then_some(begin.min_rnr_timer),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::Rts),
                timeout: reliable.then_some(14),
                retry_cnt: reliable.then_some(7),
                rnr_retry: reliable.then_some(7),
                sq_psn: Some(begin.sq_psn),
                max_rd_atomic: reliable.then_some(depth(lane)),
                ..QpAttributes::default()
            },
        ];
        for step in &steps {
            qp.modify(step).map_err(unplayable("connect"))?;
        }
        Ok(())
    }

    /// Allows the device to send `frames` more frames.
    pub fn allow(&self, frames: usize) {
        self.open.fetch_add(frames, Ordering::Relaxed);
    }

    /// Forbids all further frames: the unused allowance ends.
    pub fn forbid(&self) {
        self.open.store(0, Ordering::Relaxed);
    }

    /// Puts a frame into the port of the device. The device handles the frame in the next
    /// [`Rig::turn`]. A frame that is longer than the port takes is lost, as at an RNIC.
    ///
    /// # Panics
    /// If the port has no free slot.
    pub fn give(&mut self, frame: &[u8]) {
        let slot = self.port.tx_slot().expect("the device empties its ring in each turn");
        let Some(slot) = slot.get_mut(..frame.len()) else { return };
        slot.copy_from_slice(frame);
        self.port.tx_commit(frame.len(), Priority::default());
        self.port.flush().expect("the device is open");
    }

    /// Runs the device until it has nothing to do. Returns the frames that it sent.
    pub fn turn(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        loop {
            let done = self.device.turn(self.now);
            let count = self.port.rx_burst();
            sent.extend((0..count).map(|index| self.port.rx_frame(index).first.to_vec()));
            if done == 0 && count == 0 {
                return sent;
            }
        }
    }
}

/// Returns the path to `peer`, with the headers of `like`.
pub fn path(peer: &Party, like: Option<&Packet<'_>>) -> Path {
    let path = Path::new(gid(peer.ip), 0);
    let Some(like) = like else { return path };
    let port = std::num::NonZeroU16::new(like.udp.src_port);
    Path {
        traffic_class: like.ip.traffic_class(),
        hop_limit: like.ip.hop_limit(),
        source_port: port.map_or(SourcePort::PerQp, SourcePort::Fixed),
        service_level: like.vlan.map_or(0, |tag| tag.pcp),
        ..path
    }
}
