//! Opening a device: on an interface, or on ports that the caller made.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use feroce_wire::PathMtu;

use super::addressing::Addressing;
use super::config::{CORES, QPS, WINDOWS, fixed_attributes};
use super::helper_sleep::HelperSleep;
use super::host::HostId;
use super::qpns::FreeQpns;
use super::quota::Quota;
use super::{
    CoreCell, Device, DeviceConfig, DeviceInner, Driver, OpenError, Opened, Random, follow, helper,
    multicast, owner, ports, stat,
};
use crate::core::{Core, CoreShared, Doorbell, Handover, Loopback, QpnMap, Windows};
use crate::counters::Counters;
use crate::memory::arena::Arena;
use crate::memory::frame_ring::frame_ring;
use crate::memory::{KeySpace, MrTable, Recent};
use crate::port::Port;
use crate::port::kind::PortOwner;
use crate::qp::AheadPool;
use crate::time::Clock;
use crate::verbs::EventQueue;

/// Maximum number of unread asynchronous events.
const EVENTS: usize = 1024;
/// The low bits of the first QP number, if the numbers are random. 0 and 1 are reserved.
const FIRST_QPN: u32 = 0x10;
/// Packets that a device with selective repeat may hold behind lost ones.
const AHEAD_PACKETS: usize = 1024;
/// Maximum number of frames in transit from one core to another.
const HANDOVER_SLOTS: usize = 512;

impl Device {
    /// Opens `interface` with the kind of port that the configuration chooses. `interface` is a
    /// name in the network namespace of the calling thread. For a kind of port without a kernel
    /// interface it is a device name of that kind.
    ///
    /// # Errors
    /// See [`OpenError`]. The `Display` text of an error names the obstacle, and the remedy if
    /// there is one; a `main` that returns the error prints its `Debug` form only.
    pub fn open(interface: &str, config: DeviceConfig) -> Result<Self, OpenError> {
        Self::open_wrapped(interface, config, &mut |port| Ok(port))
    }

    /// Opens a device like [`Device::open`] with the port of each core wrapped, for example in a
    /// [`FaultPort`](crate::port::fault::FaultPort) or a [`PcapPort`](crate::port::pcap::PcapPort).
    ///
    /// `wrap` is called once per core, in the order of the cores, after all ports are open and
    /// before the device starts a thread. During its last call the caller can drop privileges.
    ///
    /// # Errors
    /// As for [`Device::open`], and errors of `wrap`.
    pub fn open_wrapped(
        interface: &str,
        config: DeviceConfig,
        wrap: &mut dyn FnMut(Box<dyn Port>) -> Result<Box<dyn Port>, OpenError>,
    ) -> Result<Self, OpenError> {
        let opened = ports::open(interface, &config)?;
        let ports::OpenPorts { name, ports, addressing, filter, reason, window_max, .. } = opened;
        let owners = Owners { interface: opened.owner, port: opened.port_owner };
        let most = window_max.unwrap_or(u32::MAX);
        let config = DeviceConfig {
            window: config.window.min(most),
            peer_window: config.peer_window.min(most),
            read_window: config.read_window.min(most),
            ..config
        };
        let wrapped = ports.into_iter().map(wrap).collect::<Result<Vec<_>, _>>()?;
        let device = Self::assemble(wrapped, addressing, config, owners)?;
        let attributes = device.inner.attributes.write();
        attributes.unwrap_or_else(PoisonError::into_inner).port_reason = reason;
        if let Some(filter) = filter {
            let _ = device.inner.filter.set(filter); // Set only here.
            multicast::set_filter(&device.inner, &multicast::lock(&device.inner))?;
            follow::start(&device.inner, interface)?;
        }
        stat::start(&device.inner, &name)?;
        Ok(device)
    }

    /// Opens a device on `ports`, one per core.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn with_ports(
        ports: Vec<Box<dyn Port>>,
        addressing: Addressing,
        config: DeviceConfig,
    ) -> Result<Self, OpenError> {
        Self::assemble(ports, addressing, config, Owners::default())
    }

    fn assemble(
        mut ports: Vec<Box<dyn Port>>,
        addressing: Addressing,
        config: DeviceConfig,
        owners: Owners,
    ) -> Result<Self, OpenError> {
        check(&config, ports.len())?;
        check_pfc(&config, &mut *ports[0])?;
        let system = |action| move |source| OpenError::System { action, source };
        let mut random = Random::new(config.seed);
        let secret = random.next().map_err(system("get random numbers"))?;
        let space = if config.plain_keys { KeySpace::identity() } else { KeySpace::keyed(secret) };
        let memory = Arc::new(MrTable::new(config.max_mr, space));
        let events = EventQueue::new(EVENTS).map_err(system("create the event queue"))?;
        let attributes = RwLock::new(attributes(&config, &*ports[0]));
        let qpns = qpn_map(&config, owners.port.is_some());
        let drawn = random.next().map_err(system("get random numbers"))?;
        let mut inner = DeviceInner {
            attributes,
            port_mtu: ports[0].attributes().mtu,
            source_ports: ports[0].attributes().source_ports.clone(),
            arena: Arena::new(config.arena_bytes).map_err(system("reserve the arena"))?,
            ahead: ahead_pool(&config),
            memory,
            events: Arc::new(events),
            counters: (0..config.cores).map(|_| Arc::new(Counters::default())).collect(),
            cores: Vec::new(),
            free_qpns: Mutex::new(FreeQpns::new(qpns.clone(), drawn)),
            qpns,
            next_pd: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
            next_xrcd: AtomicU32::new(1),
            cq_quota: Quota::new("completion queues", config.max_cq),
            srq_quota: Quota::new("shared receive queues", config.max_srq),
            ah_quota: Quota::new("address handles", config.max_ah),
            gsi_taken: AtomicBool::new(false),
            users: Mutex::default(),
            addressing,
            port_owner: owners.port,
            paths: Mutex::default(),
            host_changes: AtomicU64::new(0),
            groups: Mutex::default(),
            filter: OnceLock::new(),
            clock: Clock::start(),
            turned_at: AtomicU64::new(0),
            random: Mutex::new(random),
            congestion: Mutex::new(config.congestion),
            stop: AtomicBool::new(false),
            helpers: Mutex::default(),
            watcher: Mutex::default(),
            stat: Mutex::default(),
            lan_follower: Mutex::default(),
            has_one_cpu: crate::sys::has_one_cpu(),
            _owner: owners.interface,
            config,
        };
        inner.cores = make_cores(&inner, ports)?;
        let inner = Arc::new(Opened(Arc::new(inner)));
        start_helpers(&inner)?;
        if let Addressing::Port(addresses) = &inner.addressing {
            let follower = super::follow_lan::LanFollower::start(&inner, addresses)?;
            *inner.lan_follower.lock().unwrap_or_else(PoisonError::into_inner) = Some(follower);
        }
        Ok(Self { inner })
    }
}

fn ahead_pool(config: &DeviceConfig) -> Option<Arc<AheadPool>> {
    config.selective_repeat.then(|| Arc::new(AheadPool::new(AHEAD_PACKETS)))
}

/// Who owns the interface and the port of a device.
#[derive(Default)]
struct Owners {
    /// This process' ownership of the interface.
    interface: Option<owner::Ownership>,
    /// The process that owns the port, if that is another one.
    port: Option<Arc<dyn PortOwner>>,
}

fn check(config: &DeviceConfig, ports: usize) -> Result<(), OpenError> {
    let first_qpn = config.first_qpn.unwrap_or(FIRST_QPN);
    let qpn_end = u64::from(first_qpn) + u64::from(config.max_qp);
    let spins_without_cpu = match &config.driver {
        Driver::SpinningHelper(cpus) => !cpus.is_empty() && cpus.len() != config.cores,
        _ => false,
    };
    let rules = [
        (!CORES.contains(&config.cores), "cores must be 1 to 64"),
        (ports != config.cores, "each core needs a port"),
        (spins_without_cpu, "spinning helpers need one CPU per core, or no CPU list"),
        (!QPS.contains(&config.max_qp), "max_qp must be 1 to 1048576"),
        (first_qpn < 2, "QP numbers 0 and 1 are reserved"),
        (qpn_end > 0xff_ffff, "QP numbers end at 0xfffffe"),
        (config.max_mr > 1 << 24, "max_mr must be at most 2^24"),
        (!WINDOWS.contains(&config.window), "window must be 32 to 1048576 packets"),
        (config.min_ack_timeout > 31, "min_ack_timeout must be at most 31"),
        (
            config.congestion.control.needs().telemetry,
            "this congestion control needs telemetry of the switches (INT), which only `feroce \
             fabric` has",
        ),
        (!WINDOWS.contains(&config.read_window), "read_window must be 32 to 1048576 packets"),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, rule)) => Err(OpenError::Config(rule)),
        None => Ok(()),
    }
}

fn check_pfc(config: &DeviceConfig, port: &mut dyn Port) -> Result<(), OpenError> {
    if let Some(rule) = config.pfc.error(port.attributes().link_rate) {
        return Err(OpenError::Config(rule));
    }
    if config.pfc.thresholds.is_some() && port.rx_fill().is_none() {
        return Err(OpenError::Config(
            "pfc_send needs the fill level of the port, which this kind of port does not report",
        ));
    }
    Ok(())
}

fn attributes(config: &DeviceConfig, port: &dyn Port) -> super::DeviceAttributes {
    let port = port.attributes();
    super::DeviceAttributes {
        node_guid: u64::from_be_bytes(port.mac.eui64()),
        active_mtu: PathMtu::largest_for(port.mtu),
        mtu: port.mtu,
        link_rate: port.link_rate,
        port: port.kind.clone(),
        super_frames: if port.segments_max > 1 { HostId::read() } else { None },
        ..fixed_attributes(config)
    }
}

/// `is_client`: the device is a client of a daemon, which gives it a slice of the numbers.
fn qpn_map(config: &DeviceConfig, is_client: bool) -> QpnMap {
    let cores = u32::try_from(config.cores).expect("at most 64");
    match config.first_qpn {
        _ if is_client => QpnMap::sliced(config.max_qp, cores),
        Some(first) => QpnMap::fixed(first, config.max_qp, cores),
        None => QpnMap::drawn(FIRST_QPN, config.max_qp, cores),
    }
}

fn make_cores(inner: &DeviceInner, ports: Vec<Box<dyn Port>>) -> Result<Vec<CoreCell>, OpenError> {
    let frame_max = ports.iter().map(|port| port.attributes().frame_max).max().unwrap_or(0);
    let mut handovers = make_handovers(inner, ports.len(), frame_max)?;
    let mut cells = Vec::with_capacity(ports.len());
    let xoff_requesters = Arc::new(crate::pfc::XoffRequesters::default());
    for (id, port) in ports.into_iter().enumerate() {
        let doorbell = Doorbell::new(inner.qpns.slots());
        let doorbell = Arc::new(
            doorbell.map_err(|source| OpenError::System { action: "create a doorbell", source })?,
        );
        let shared = CoreShared {
            memory: Arc::clone(&inner.memory),
            recent: Recent::default(),
            events: Arc::clone(&inner.events),
            counters: Arc::clone(&inner.counters[id]),
            qpns: inner.qpns.clone(),
            windows: Windows {
                send: inner.config.window,
                peer: inner.config.peer_window.max(inner.config.window),
                read: inner.config.read_window,
            },
            srqs: crate::qp::SrqTable::new(),
            congestion: inner.config.congestion,
            pfc: inner.config.pfc,
            xoff_requesters: Arc::clone(&xoff_requesters),
        };
        let handover = std::mem::take(&mut handovers[id]);
        let loopback = Loopback::new(&inner.arena, frame_max)?;
        // A device with a manual driver has its own time, which begins at zero.
        let now = crate::time::Instant::ZERO;
        let core = Core::new(id, port, shared, Arc::clone(&doorbell), handover, loopback, now);
        cells.push(CoreCell {
            core: Mutex::new(core),
            doorbell,
            driven: AtomicU64::new(0),
            long_turns: AtomicU64::new(0),
            driven_at: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            helper_sleep: HelperSleep::new(),
        });
    }
    Ok(cells)
}

/// Creates a ring from every core to every other core.
fn make_handovers(
    inner: &DeviceInner,
    cores: usize,
    frame_max: usize,
) -> Result<Vec<Handover>, OpenError> {
    let mut handovers: Vec<Handover> = (0..cores).map(|_| Handover::default()).collect();
    for from in 0..cores {
        for to in 0..cores {
            if from == to {
                handovers[from].outbox.push(None);
                continue;
            }
            let (producer, consumer) = frame_ring(&inner.arena, HANDOVER_SLOTS, frame_max)?;
            handovers[from].outbox.push(Some(producer));
            handovers[to].inbox.push(consumer);
        }
    }
    Ok(handovers)
}

fn start_helpers(device: &Opened) -> Result<(), OpenError> {
    let driver = &device.config.driver;
    if *driver == Driver::Manual {
        return Ok(());
    }
    let mut helpers = device.helpers.lock().unwrap_or_else(PoisonError::into_inner);
    for core in 0..device.cores.len() {
        let started = helper::start(Arc::clone(&device.0), core, driver, device.clock);
        let helper =
            started.map_err(|source| OpenError::System { action: "start a helper", source })?;
        helpers.push(helper);
    }
    Ok(())
}
