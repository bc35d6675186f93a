//! Two devices of the engine in virtual time, and the wire between them.

use std::collections::BTreeMap;

use feroce_engine::device::{
    Addressing, CompletionQueue, ConnectOptions, Device, DeviceConfig, Driver, ProtectionDomain,
    QpInit, QueuePair, StaticAddresses,
};
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::port::{Port, PortStats};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::Completion;
use feroce_wire::{MacAddr, Psn};

use crate::virtual_wire::Wire;

/// Ethernet addresses of the two ends.
pub const MACS: [MacAddr; 2] = [MacAddr([2, 0xfe, 0, 0, 0, 1]), MacAddr([2, 0xfe, 0, 0, 0, 2])];

/// Returns the IPv4 GID of end `end`, at index 0.
pub fn gid(end: usize) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 0, u8::try_from(end + 1).expect("two ends")))
}

/// Returns the IPv6 GID of end `end`, at index 1.
pub fn gid_v6(end: usize) -> Gid {
    let host = u16::try_from(end + 1).expect("two ends");
    Gid::from(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host))
}

/// The VLAN of the GID at index 2.
pub const VLAN: u16 = 100;

/// Returns the IPv4 GID of end `end` in the VLAN, at index 2.
pub fn gid_vlan(end: usize) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 1, u8::try_from(end + 1).expect("two ends")))
}

/// Returns a configuration for devices in virtual time: small, seeded, with a manual driver.
pub fn manual_config(seed: u64) -> DeviceConfig {
    DeviceConfig {
        driver: Driver::Manual,
        max_qp: 64,
        max_mr: 256,
        arena_bytes: 64 << 20,
        seed: Some(seed),
        min_ack_timeout: 0, // Virtual time is exact.
        ..DeviceConfig::default()
    }
}

/// Returns the addressing of end `end` of a pair.
pub fn addresses(end: usize) -> Addressing {
    let peers = [gid(1 - end), gid_v6(1 - end), gid_vlan(1 - end)];
    Addressing::Static(StaticAddresses {
        mac: MACS[end],
        gids: vec![(gid(end), None), (gid_v6(end), None), (gid_vlan(end), Some(VLAN))],
        peers: peers.into_iter().map(|peer| (peer, MACS[1 - end])).collect::<BTreeMap<_, _>>(),
        mtu: ShmConfig::default().mtu,
    })
}

/// Access to frames that a kernel holds between the devices and the wire.
pub trait FramesInFlight: std::fmt::Debug + Send {
    /// Waits until all frames that the ports have sent have arrived. `count` reads the statistics
    /// of the devices' ports and of the wire's ports. Returns false if no frame was missing.
    fn wait(&mut self, count: &mut dyn FnMut() -> ([PortStats; 2], [PortStats; 2])) -> bool;
}

/// Creates the ports of two devices, and the ports of the wire that the former are connected to.
///
/// # Panics
/// If there is no memory for the frames.
pub fn shm_ports() -> [[Box<dyn Port>; 2]; 2] {
    let arena = Arena::new(64 << 20).expect("an arena for the ports");
    let pair = |end: usize| {
        let name = format!("end{end}");
        let pair = shm_pair(&arena, ShmConfig { name, slots: 1024, ..ShmConfig::default() });
        pair.expect("a pair of ports")
    };
    let ((near0, far0), (near1, far1)) = (pair(0), pair(1));
    [[Box::new(near0), Box::new(near1)], [Box::new(far0), Box::new(far1)]]
}

/// Two devices, the [`Wire`] between them, and their clock.
#[derive(Debug)]
pub struct DevicePair {
    /// The devices.
    pub devices: [Device; 2],
    /// The wire between the devices.
    pub wire: Wire,
    in_flight: Option<Box<dyn FramesInFlight>>,
    /// The virtual time.
    pub now: Instant,
}

impl DevicePair {
    /// Creates two devices with `config` on shared-memory ports, and a wire without faults that
    /// delays frames by `delay`.
    ///
    /// # Panics
    /// If the devices cannot be created.
    pub fn on_shm(config: &DeviceConfig, delay: Duration) -> Self {
        let [near, far] = shm_ports();
        Self::on_ports(near.map(|port| vec![port]), far, None, config, delay)
    }

    /// Creates two devices with `config` on the ports `near`, one per core, and a wire without
    /// faults on the ports `far` that delays frames by `delay`. `in_flight` is dropped after the
    /// ports.
    ///
    /// # Panics
    /// If the devices cannot be created.
    pub fn on_ports(
        near: [Vec<Box<dyn Port>>; 2],
        far: [Box<dyn Port>; 2],
        in_flight: Option<Box<dyn FramesInFlight>>,
        config: &DeviceConfig,
        delay: Duration,
    ) -> Self {
        let mut end = 0..2;
        let devices = near.map(|ports| {
            let addresses = addresses(end.next().expect("two ends"));
            Device::with_ports(ports, addresses, config.clone()).expect("a device")
        });
        Self { devices, wire: Wire::new(far, delay), in_flight, now: Instant::ZERO }
    }

    /// Runs both devices and moves frames until nothing more happens at this time.
    pub fn settle(&mut self) {
        loop {
            if self.turn() == 0 && !self.wait_for_kernel() {
                return;
            }
        }
    }

    /// Runs one turn of both devices and moves frames. Returns the amount of work done.
    pub fn turn(&mut self) -> usize {
        let turned: usize = self.devices.iter().map(|device| device.turn(self.now)).sum();
        turned + self.wire.step(self.now)
    }

    /// Waits for frames that a kernel holds. Returns false if there are none.
    fn wait_for_kernel(&mut self) -> bool {
        let Self { devices, wire, in_flight, .. } = self;
        let Some(in_flight) = in_flight else { return false };
        let of_devices = || devices.each_ref().map(|device| device.port_stats()[0]);
        in_flight.wait(&mut || (of_devices(), wire.stats()))
    }

    /// Returns the time of the next timer or arrival.
    pub fn next_event(&self) -> Option<Instant> {
        let devices = self.devices.iter().filter_map(|device| device.next_deadline(self.now));
        devices.chain(self.wire.next_arrival()).min()
    }

    /// Settles, then advances to the next event. Returns false if there is none before `until`.
    pub fn step(&mut self, until: Instant) -> bool {
        self.settle();
        match self.next_event() {
            Some(next) if next <= until => {
                assert!(next > self.now, "a deadline that does not move: {next:?}");
                self.now = next;
                true
            }
            _ => false,
        }
    }

    /// Runs one turn of the device `end` and delivers its frames after 1 us; the other device does
    /// not run.
    pub fn turn_and_carry(&mut self, end: usize) {
        self.devices[end].turn(self.now);
        self.wire.step(self.now);
        self.now += Duration::from_micros(1);
        self.wire.step(self.now);
    }

    /// Runs for `time`.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
        self.settle();
    }

    /// Creates a connected pair of QPs from `inits`, with the starting PSNs `psns`.
    pub fn connect(
        &self,
        pds: [&ProtectionDomain; 2],
        inits: [&QpInit<'_>; 2],
        psns: [Psn; 2],
        options: &ConnectOptions,
    ) -> [QueuePair; 2] {
        let mut qps = [0, 1].map(|end| pds[end].create_qp(inits[end]).expect("a QP"));
        let ends =
            [0, 1].map(|end| qps[end].endpoint(psns[end], options.sgid_index).expect("a GID"));
        for end in 0..2 {
            qps[end].connect(psns[end], &ends[1 - end], options).expect("connected");
        }
        qps
    }
}

/// Returns all completions in `cq`.
pub fn drain(cq: &CompletionQueue) -> Vec<Completion> {
    let mut out = Vec::new();
    while cq.poll(&mut out, 64) > 0 {}
    out
}
