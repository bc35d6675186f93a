//! The link under an open device changes: the interface is removed or renamed, another program
//! detaches the device's XDP program, or frames to other hosts arrive. Live, in network namespaces.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.

mod pair;

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use feroce_engine::cm::{CmConfig, DeviceKey, EventKind, QpKind};
use feroce_engine::daemon::{Daemon, DaemonConfig, Dscps, Limits};
use feroce_engine::device::{CmEventQueue, ConnectionManager, Device, DeviceConfig, PortKind};
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};
use feroce_engine::verbs::AsyncEvent;
use feroce_wire::cm::PortSpace;
use feroce_wire::{MacAddr, PathMtu};

use pair::{Kind, PLAIN, Pair, SILENCE, TEST_TIMEOUT, connect, flow, request, root, sealed, send};

const KERNEL_PORTS: [PortKind; 2] = [PortKind::AfXdp, PortKind::Packet];

/// One test detaches the programs of all devices of this process. It writes; the others read.
static DEVICES: RwLock<()> = RwLock::new(());

/// Opens a device on `v0`.
fn device(pair: &Pair, port: PortKind) -> Device {
    let config = DeviceConfig { max_qp: 16, port, ..DeviceConfig::default() };
    pair.within(0, || Device::open("v0", config).expect("a device"))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the event `wanted` of `device`. Returns the events before it.
fn wait_for_event(device: &Device, wanted: AsyncEvent) -> Vec<AsyncEvent> {
    let mut before = Vec::new();
    wait_until(&format!("{wanted:?}"), || {
        while let Some(event) = device.poll_event() {
            if event == wanted {
                return true;
            }
            before.push(event);
        }
        false
    });
    before
}

/// Frames that the port of `device` has delivered.
fn delivered(device: &Device) -> u64 {
    device.port_stats()[0].rx_frames
}

#[test]
fn frames_to_another_ethernet_address_are_not_taken() {
    if !root() {
        return;
    }
    let _others = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    for port in KERNEL_PORTS {
        let pair = Pair::new(1500);
        pair::ip(&format!("-n {} link set v0 promisc on", pair.names[0]));
        let device = device(&pair, port);
        let config = PacketConfig { super_frames: SuperFrames::Off, ..PacketConfig::new("v1") };
        let mut sender = pair.within(1, || PacketPort::open(&config, 1).expect("a port"));
        let sender = &mut sender[0];
        let own = pair.within(0, || mac_of("v0"));
        let other = MacAddr([2, 0, 0, 0, 0, 0x66]);
        let mut expected = 0;
        let mut check = |sender: &mut PacketPort, kind: Kind, to: MacAddr, is_taken: bool| {
            let mut frame = sealed(&flow(sender, 0, kind), 64, 1, 0);
            frame[..6].copy_from_slice(&to.0);
            send(sender, &frame);
            // The last frame is always taken: frames arrive in order.
            frame[..6].copy_from_slice(&[0xff; 6]);
            send(sender, &frame);
            expected += 1 + u64::from(is_taken);
            wait_until("the frame to everybody", || delivered(&device) >= expected);
            thread::sleep(SILENCE / 10);
            assert_eq!(delivered(&device), expected, "{port}: {kind:?} to {to}");
        };
        for v6 in [false, true] {
            for tagged in [false, true] {
                let kind = Kind { v6, tagged, ..PLAIN };
                check(sender, kind, own, true);
                check(sender, kind, other, false);
                check(sender, kind, MacAddr([1, 0, 0x5e, 0, 0, 1]), true);
            }
        }
        // The interface takes the other address.
        pair::ip(&format!("-n {} link set v0 address {other}", pair.names[0]));
        wait_for_event(&device, AsyncEvent::GidChange);
        thread::sleep(SILENCE);
        check(sender, PLAIN, other, true);
        check(sender, PLAIN, own, false);
    }
}

fn mac_of(name: &str) -> MacAddr {
    feroce_engine::net::Interface::read(name).expect("an interface").mac
}

#[test]
fn a_removed_interface_ends_the_device() {
    if !root() {
        return;
    }
    let _others = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    for port in KERNEL_PORTS {
        let pair = Pair::new(1500);
        let device = device(&pair, port);
        let events = CmEventQueue::new().expect("a descriptor");
        let manager = ConnectionManager::new(CmConfig::default(), events.sink()).expect("random");
        manager.attach(DeviceKey(0), &device).expect("QP 1 is free");
        // An identifier with a path through the device, as of a client that is connected.
        let server = SocketAddr::from(([10, 8, 0, 2], 7471));
        let path = pair.within(0, || manager.resolve(IpAddr::from([0; 4]), server));
        let id = manager.with(|cm, _| {
            let id = cm.create(PortSpace::Tcp, QpKind::Rc);
            cm.resolve_address(id, None, server).expect("a new identifier");
            cm.address_resolved(id, path).expect("it waits for its address");
            id
        });
        pair::ip(&format!("-n {} link delete v0", pair.names[0]));
        wait_for_event(&device, AsyncEvent::DeviceFatal);
        wait_until("an event of the identifier", || {
            let event = events.poll_event();
            event.is_some_and(|event| (event.id, event.kind) == (id, EventKind::DeviceRemoval))
        });
        let before = cpu_time();
        thread::sleep(10 * SILENCE);
        let used = cpu_time() - before;
        assert!(used < 5 * SILENCE, "{port}: {used:?} of CPU time in a second without a link");
        // An interface of the same name is another one.
        let [a, b] = &pair.names;
        pair::ip(&format!("link add v0 netns {a} type veth peer name v1 netns {b}"));
        pair::ip(&format!("-n {a} link set v0 up"));
        thread::sleep(SILENCE);
        while let Some(event) = device.poll_event() {
            assert!(matches!(event, AsyncEvent::GidChange), "{port}: {event:?}");
        }
    }
}

#[test]
fn a_removed_interface_ends_its_daemon() {
    if !root() {
        return;
    }
    let _others = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    let pair = Pair::new(1500);
    let config = DeviceConfig { port: PortKind::Packet, ..DeviceConfig::default() };
    let daemon = DaemonConfig {
        directory: None,
        group: None,
        mode: None,
        limits: Limits::default(),
        dscps: Dscps(u64::MAX),
        polls: false,
    };
    let open = || Daemon::open("v0", &config, daemon).expect("a daemon");
    let mut daemon = pair.within(0, open);
    pair.within(0, || daemon.start()).expect("threads");
    let program = device(&pair, PortKind::Daemon);
    assert!(!daemon.is_lost());
    pair::ip(&format!("-n {} link delete v0", pair.names[0]));
    wait_until("the daemon is lost", || daemon.is_lost());
    drop(daemon);
    wait_for_event(&program, AsyncEvent::DeviceFatal);
}

/// CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
    Duration::from(time.expect("every Linux has this clock"))
}

#[test]
fn a_renamed_interface_stays() {
    if !root() {
        return;
    }
    let _others = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    for port in KERNEL_PORTS {
        let pair = Pair::new(1500);
        let device = device(&pair, port);
        let a = &pair.names[0];
        pair::ip(&format!("-n {a} link set v0 down"));
        pair::ip(&format!("-n {a} link set v0 name eth7"));
        pair::ip(&format!("-n {a} link set eth7 up"));
        wait_for_event(&device, AsyncEvent::PortActive);
        pair::ip(&format!("-n {a} address add 10.9.0.1/24 dev eth7"));
        pair::ip(&format!("-n {a} link set eth7 mtu 1400"));
        let address: IpAddr = "10.9.0.1".parse().expect("an address");
        wait_until("the new address", || {
            device.gids().iter().any(|(_, entry)| entry.gid.ip() == address)
        });
        wait_until("the new MTU", || device.attributes().mtu == 1400);
        assert!(device.gids().iter().all(|(_, entry)| entry.interface_name == "eth7"), "{port}");
        let events = CmEventQueue::new().expect("a descriptor");
        let manager = ConnectionManager::new(CmConfig::default(), events.sink()).expect("random");
        manager.attach(DeviceKey(0), &device).expect("QP 1 is free");
        let own = SocketAddr::from(([127, 0, 0, 1], 7471));
        let path = pair.within(0, || manager.resolve(IpAddr::from([0; 4]), own));
        assert!(path.is_ok(), "{port}: {path:?}");
        // Another interface takes the old name. Its changes are not those of the device.
        pair::ip(&format!("-n {a} link add v0 type veth peer name v9"));
        pair::ip(&format!("-n {a} link set v0 mtu 1300 up"));
        thread::sleep(SILENCE);
        pair::ip(&format!("-n {a} link delete v0"));
        thread::sleep(SILENCE);
        assert_eq!(device.attributes().mtu, 1400, "{port}");
        while let Some(event) = device.poll_event() {
            assert_ne!(event, AsyncEvent::DeviceFatal, "{port}");
        }
    }
}

#[test]
fn a_detached_program_is_attached_again() {
    if !root() {
        return;
    }
    let _alone = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let pair = Pair::new(4500);
    let mut ends = connect(&pair, [PortKind::Packet, PortKind::AfXdp], PathMtu::Mtu1024);
    request(&mut ends, false, 0, 0, 1 << 16);
    let before = bpf_links().filter(Link::is_ours).collect::<Vec<_>>();
    assert!(!before.is_empty(), "the programs of both ports");
    before.iter().for_each(Link::detach);
    // Retries of the QP last longer.
    thread::sleep(Duration::from_millis(1200));
    request(&mut ends, false, 0, 0, 1 << 16);
    for end in &ends {
        assert_eq!(end.device.poll_event(), None);
    }
    let after = bpf_links().filter(Link::is_ours).count();
    assert_eq!(after, before.len(), "each program is attached again");
}

/// What was logged since the first call.
fn log() -> Arc<Mutex<Vec<u8>>> {
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    struct Writer(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = LOG.get_or_init(|| {
        let log = Arc::<Mutex<Vec<u8>>>::default();
        let writer = Arc::clone(&log);
        let make = move || Writer(Arc::clone(&writer));
        tracing_subscriber::fmt().with_ansi(false).with_writer(make).init();
        log
    });
    Arc::clone(log)
}

#[test]
fn a_device_whose_place_another_program_takes_is_lost() {
    if !root() {
        return;
    }
    let _alone = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let log = log();
    let pair = Pair::new(1500);
    let device = device(&pair, PortKind::AfXdp);
    let foreign = pass_program();
    let end = Instant::now() + TEST_TIMEOUT;
    let _taken = pair.within(0, || {
        loop {
            bpf_links().filter(Link::is_ours).for_each(|link| link.detach());
            // The device may have been faster, and is attached again.
            match attach(&foreign, c"v0") {
                Ok(link) => break link,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
    });
    wait_for_event(&device, AsyncEvent::DeviceFatal);
    let log = String::from_utf8_lossy(&log.lock().expect("no writer panics")).into_owned();
    let line = log.lines().find(|line| line.contains("detached Feroce from v0"));
    let line = line.unwrap_or_else(|| panic!("no such line: {log}"));
    assert!(line.contains("ERROR") && line.contains("'someone_else'"), "{line}");
}

/// An XDP program that passes every frame.
fn pass_program() -> OwnedFd {
    const BPF_PROG_LOAD: i32 = 5;
    const TYPE_XDP: u32 = 6;
    // r0 = XDP_PASS; exit
    let code: [u64; 2] = [u64::from_ne_bytes([0xb7, 0, 0, 0, 2, 0, 0, 0]), 0x95];
    let address = |bytes: *const u8| (bytes.expose_provenance() as u64).to_ne_bytes();
    let mut load = Vec::new();
    load.extend([TYPE_XDP, 2].map(u32::to_ne_bytes).concat());
    load.extend(address(code.as_ptr().cast()));
    load.extend(address(c"GPL".as_ptr().cast()));
    load.resize(48, 0); // No log, and any version.
    load.extend(b"someone_else\0\0\0\0");
    let program = bpf(BPF_PROG_LOAD, &mut load).expect("a program of two instructions");
    // SAFETY: the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(program) }
}

/// Attaches `program` to an interface of the thread's namespace, until the link is dropped.
fn attach(program: &OwnedFd, interface: &CStr) -> io::Result<OwnedFd> {
    const BPF_LINK_CREATE: i32 = 28;
    const BPF_XDP: u32 = 37;
    // SAFETY: a C string.
    let index = unsafe { libc::if_nametoindex(interface.as_ptr()) };
    let program = program.as_raw_fd().cast_unsigned();
    let mut create = [program, index, BPF_XDP, 0].map(u32::to_ne_bytes).concat();
    let link = bpf(BPF_LINK_CREATE, &mut create)?;
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// A BPF link of the host.
struct Link(OwnedFd);

/// `bpf(command, attributes)`.
fn bpf(command: i32, attributes: &mut [u8]) -> io::Result<i32> {
    let size = attributes.len();
    // SAFETY: the attributes are `size` bytes; addresses in them are of live buffers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The descriptor of the object `id`.
fn by_id(command: i32, id: u32) -> Option<OwnedFd> {
    let fd = bpf(command, &mut id.to_ne_bytes()).ok()?;
    // SAFETY: the descriptor is new.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The first `LEN` bytes of what the kernel says about an object.
fn info<const LEN: usize>(object: &OwnedFd) -> [u8; LEN] {
    const BPF_OBJ_GET_INFO_BY_FD: i32 = 15;
    let mut info = [0; LEN];
    let mut query = Vec::new();
    query.extend(object.as_raw_fd().to_ne_bytes());
    query.extend(u32::try_from(LEN).expect("small").to_ne_bytes());
    query.extend((info.as_mut_ptr().expose_provenance() as u64).to_ne_bytes());
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut query).expect("an open object");
    info
}

fn bpf_links() -> impl Iterator<Item = Link> {
    const BPF_LINK_GET_FD_BY_ID: i32 = 30;
    const BPF_LINK_GET_NEXT_ID: i32 = 31;
    let mut last = 0_u32;
    let ids = std::iter::from_fn(move || {
        let mut query = [0; 8];
        query[..4].copy_from_slice(&last.to_ne_bytes());
        bpf(BPF_LINK_GET_NEXT_ID, &mut query).ok()?;
        last = u32::from_ne_bytes(query[4..].try_into().expect("four bytes"));
        Some(last)
    });
    ids.filter_map(|id| by_id(BPF_LINK_GET_FD_BY_ID, id)).map(Link)
}

impl Link {
    /// Returns true if the program of the link is attached and was loaded by this process.
    fn is_ours(&self) -> bool {
        const BPF_PROG_GET_FD_BY_ID: i32 = 13;
        let link: [u8; 24] = info(&self.0);
        let word = |at: usize| u32::from_ne_bytes(link[at..at + 4].try_into().expect("four"));
        let (program, interface) = (word(8), word(16));
        let Some(program) = by_id(BPF_PROG_GET_FD_BY_ID, program) else { return false };
        let program: [u8; 80] = info(&program);
        let own = format!("feroce_{}", std::process::id());
        interface != 0 && program[64..].starts_with(own.as_bytes())
    }

    fn detach(&self) {
        const BPF_LINK_DETACH: i32 = 34;
        bpf(BPF_LINK_DETACH, &mut self.0.as_raw_fd().to_ne_bytes()).expect("attached");
    }
}
