//! 100,000 connection requests of one host that never confirms, over the kernel's ports, as fast as
//! the machine allows. Meanwhile another client connects, usually within a second, and the server's
//! memory stays small. A client at the same address shares its limits with the flood: it connects,
//! but may have to repeat its request. Each test prints its figures.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use feroce_engine::cm::{CmConfig, CmId, DeviceKey, EventKind, Parameters, QpKind};
use feroce_engine::device::{
    CmEventQueue, CompletionQueue, ConnectionManager, Device, DeviceConfig, PortKind,
    ProtectionDomain, QpInit, QueuePair,
};
use feroce_tests::forger::{Forger, request_pattern, requests};
use feroce_tests::live::{self, ADDRESSES, Net};
use feroce_wire::cm::PortSpace;

const PORT: u16 = 7174;
const REQUESTS: u64 = 100_000;
/// A client whose request is lost takes longer: 1.5 s until it repeats the request.
const PROMPT: Duration = Duration::from_secs(1);
/// The CM repeats a request or a DREQ for less than half of this.
const PATIENCE: Duration = Duration::from_secs(100);
/// The server's memory may grow by this.
const MEMORY: u64 = 64 << 20;
/// The memory is that of the process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A program with a connection manager.
struct Program {
    device: Device,
    manager: ConnectionManager,
    events: CmEventQueue,
}

impl Program {
    /// In the namespace of `end`, for the calling thread.
    fn new(net: &Net, end: usize, port: PortKind) -> Self {
        net.enter(end);
        let (name, config) = live::device(end, port);
        let config = DeviceConfig { max_qp: 8192, ..config };
        let device = Device::open(&name, config).expect("a device");
        let events = CmEventQueue::new().expect("a descriptor");
        let manager = ConnectionManager::new(CmConfig::default(), events.sink()).unwrap();
        manager.attach(DeviceKey(0), &device).expect("QP 1");
        Self { device, manager, events }
    }

    /// Waits for an event of `id` of one of the `kinds`.
    ///
    /// # Panics
    /// If none comes within [`PATIENCE`].
    fn wait(&self, id: CmId, kinds: &[EventKind]) -> EventKind {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.events.poll_event() {
                Some(event) if event.id == id && kinds.contains(&event.kind) => return event.kind,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        panic!("none of {kinds:?} within {PATIENCE:?}");
    }
}

/// A server that accepts every request with a QP of its own.
struct Server {
    program: Program,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qps: BTreeMap<CmId, QueuePair>,
    most_qps: usize,
}

impl Server {
    fn new(program: Program) -> Self {
        let listening = program.manager.with(|cm, now| {
            let listener = cm.create(PortSpace::Tcp, QpKind::Rc);
            cm.bind(listener, SocketAddr::from(([0, 0, 0, 0], PORT)))?;
            cm.listen(listener, 0, now)
        });
        listening.expect("a free port");
        let (pd, cq) = (program.device.alloc_pd(), program.device.create_cq(64).unwrap());
        Self { program, pd, cq, qps: BTreeMap::new(), most_qps: 0 }
    }

    fn serve(&mut self) {
        let Some(event) = self.program.events.poll_event() else {
            std::thread::sleep(Duration::from_micros(100));
            return;
        };
        let manager = &self.program.manager;
        match event.kind {
            EventKind::ConnectRequest => {
                manager.with(|cm, _| cm.take_request(event.id)).expect("it is new");
                let qp = self.pd.create_qp(&QpInit::new(&self.cq)).expect("a QP");
                let own = Parameters { qpn: qp.qpn(), ..event.parameters };
                // A connection that was given up meanwhile cannot be accepted.
                if manager.with(|cm, now| cm.accept(event.id, &own, b"", now)).is_ok() {
                    self.qps.insert(event.id, qp);
                }
                self.most_qps = self.most_qps.max(self.qps.len());
            }
            EventKind::Unreachable | EventKind::Disconnected => {
                self.qps.remove(&event.id);
                manager.with(|cm, now| cm.destroy(event.id, now)).expect("its identifier");
            }
            _ => {}
        }
    }
}

/// Connects, disconnects, and returns how long the former took and how often it was tried. A try
/// fails when the CM has repeated its request in vain, or when the server gives the connection up,
/// because others of this source came after it.
fn connect(program: &Program, qp: &QueuePair) -> (Duration, u32) {
    let start = Instant::now();
    let mut tries = 1;
    let id = loop {
        let (id, event) = try_to_connect(program, qp);
        let establish = || program.manager.with(|cm, _| cm.establish(id, b""));
        if event == EventKind::ConnectResponse && establish().is_ok() {
            break id;
        }
        program.manager.with(|cm, now| cm.destroy(id, now)).expect("its identifier");
        assert!(start.elapsed() < PATIENCE, "{tries} tries in vain");
        tries += 1;
    };
    let took = start.elapsed();
    program.manager.with(|cm, now| cm.disconnect(id, now)).expect("connected");
    // The server may have given it up before the RTU came.
    program.wait(id, &[EventKind::Disconnected, EventKind::Rejected]);
    program.manager.with(|cm, now| cm.destroy(id, now)).expect("its identifier");
    (took, tries)
}

fn try_to_connect(program: &Program, qp: &QueuePair) -> (CmId, EventKind) {
    let server = SocketAddr::new(ADDRESSES[0].parse().unwrap(), PORT);
    let path = program.manager.resolve(IpAddr::from([0; 4]), server);
    let own = Parameters { qpn: qp.qpn(), retry_count: 7, ..Parameters::default() };
    let id = program.manager.with(|cm, now| {
        let id = cm.create(PortSpace::Tcp, QpKind::Rc);
        cm.resolve_address(id, None, server).unwrap();
        cm.address_resolved(id, path).unwrap();
        cm.resolve_route(id).unwrap();
        cm.route_resolved(id, Ok(())).unwrap();
        cm.connect(id, &own, b"", now).unwrap();
        id
    });
    let ends = [EventKind::ConnectResponse, EventKind::Unreachable, EventKind::Rejected];
    (id, program.wait(id, &ends))
}

/// Sets a flag at the end of its scope, also when that ends with a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory of this process in use, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = text.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}

/// The flood comes from `source`, an address of end 1.
fn flood(port: PortKind, source: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(net) = Net::new() else { return };
    net.ip(1, "address add 10.77.0.9/24 dev v1");
    let (is_over, (serves, served)) = (AtomicBool::new(false), sync_channel(1));
    let enough = &AtomicBool::new(source == ADDRESSES[1]);
    let shares_limits = source == ADDRESSES[1];
    let connections = if shares_limits { 1 } else { 20 };
    let (net, is_over) = (&net, &is_over);
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let mut server = Server::new(Program::new(net, 0, port));
            serves.send(()).expect("room");
            while !is_over.load(Ordering::Relaxed) {
                server.serve();
            }
            server.most_qps
        });
        let connecting = scope.spawn(move || {
            let _ends = (SetAtEnd(is_over), SetAtEnd(enough));
            let client = Program::new(net, 1, port);
            let cq = client.device.create_cq(16).unwrap();
            let qp = client.device.alloc_pd().create_qp(&QpInit::new(&cq)).unwrap();
            served.recv_timeout(PATIENCE).expect("a server");
            connect(&client, &qp);
            let [to, from]: [Ipv4Addr; 2] = [ADDRESSES[0], source].map(|ip| ip.parse().unwrap());
            let pattern = request_pattern(from.into(), SocketAddr::from((to, PORT)));
            let before = resident();
            let forger = Forger::start(net, to, requests((from, to), pattern));
            let start = Instant::now();
            let flood = scope.spawn(move || {
                while forger.sent() < REQUESTS || !enough.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                forger.sent() as f64 / start.elapsed().as_secs_f64()
            });
            let (mut times, mut memory, mut most_tries) = (Vec::new(), 0, 0);
            while times.len() < connections || !(shares_limits || flood.is_finished()) {
                let (took, tries) = connect(&client, &qp);
                times.push(took);
                most_tries = most_tries.max(tries);
                memory = memory.max(resident().saturating_sub(before));
                enough.fetch_or(times.len() >= connections, Ordering::Relaxed);
            }
            let rate = flood.join().expect("the forger");
            times.sort_unstable();
            (rate, times, memory, most_tries)
        });
        let (rate, times, memory, most_tries) = connecting.join().expect("the client");
        let most_qps = serving.join().expect("the server");
        let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{port}, from {source}: {rate:.0} requests per second; {} connections beside them, \
             median {median:?}, longest {longest:?}, at most {most_tries} tries; at most \
             {most_qps} QPs, {} MB more memory",
            times.len(),
            memory >> 20
        );
        assert!(shares_limits || median < PROMPT && most_tries == 1, "{median:?}");
        assert!(memory < MEMORY, "{} MB", memory >> 20);
    });
}

#[test]
fn a_flood_of_requests_keeps_no_client_out() {
    for port in [PortKind::AfXdp, PortKind::Packet] {
        flood(port, "10.77.0.9");
    }
}

#[test]
fn a_client_connects_during_a_flood_from_its_own_address() {
    for port in [PortKind::AfXdp, PortKind::Packet] {
        flood(port, ADDRESSES[1]);
    }
}
