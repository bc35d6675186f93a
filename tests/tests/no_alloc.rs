//! The data path allocates nothing after the first round: neither posting, polling and the turns of
//! a core, nor the handling of lost, reordered, duplicated and damaged packets and of late
//! receives.

use feroce_congestion::Rate;
use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Destination, Device, DeviceConfig, MemoryWindow, Path,
    QpInit, QueuePair, SharedReceiveQueue, SrqInit,
};
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_engine::pfc::{PfcConfig, Priorities};
use feroce_engine::port::fault::{FaultPort, Faults};
use feroce_engine::port::{Port, Priority};
use feroce_engine::qp::Service;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{
    Completion, Data, LocalOp, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_tests::counting_alloc::{CountingAlloc, HeapUse, heap_use_of};
use feroce_tests::ports::{PortResources, RigPorts};
use feroce_tests::{MACS, addresses, gid, manual_config};
use feroce_wire::{FlowControl, FlowControlFrame, PlacementType, Psn, Qkey, Qpn, Selectivity};

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

/// Length in bytes of the longest message: about 40 packets of the smallest path MTU used here.
const LEN: u32 = 40_000;

/// Two devices on one cable, with nothing between them that could allocate.
struct Cable {
    devices: [Device; 2],
    cqs: [CompletionQueue; 2],
    qps: [QueuePair; 2],
    buffers: [Buffer; 2],
    /// The receives of end 1, if it uses a shared receive queue.
    srq: Option<SharedReceiveQueue>,
    /// A window of end 0 that each round binds and invalidates.
    window: MemoryWindow,
    completions: Vec<Completion>,
    now: Instant,
    /// Forwards frames between the devices, for tests that add frames of their own.
    relay: Option<[Box<dyn Port>; 2]>,
    _resources: PortResources,
}

fn cable(faults: Faults) -> Cable {
    cable_of(Service::Rc, faults)
}

fn cable_of(service: Service, faults: Faults) -> Cable {
    cable_with(service, faults, false)
}

fn cable_with(service: Service, faults: Faults, shared: bool) -> Cable {
    let (ports, resources) = RigPorts::cable();
    cable_on(ports, resources, service, faults, shared, manual_config(7))
}

fn cable_on(
    ports: [Box<dyn Port>; 2],
    resources: PortResources,
    service: Service,
    faults: Faults,
    shared: bool,
    config: DeviceConfig,
) -> Cable {
    let mut ports = ports.into_iter().enumerate();
    let devices = [0, 1].map(|end| {
        let (seed, port) = ports.next().unwrap();
        let port = FaultPort::new(port, faults, seed as u64 + 1).unwrap();
        let port: Box<dyn Port> = Box::new(port);
        Device::with_ports(vec![port], addresses(end), config.clone()).unwrap()
    });
    let pds = [0, 1].map(|end| devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| devices[end].create_cq(1024).unwrap());
    let buffers = [0, 1].map(|end| pds[end].alloc_buffer(1 << 20, Access::ALL).unwrap());
    let srq = shared.then(|| pds[1].create_srq(&SrqInit::default()).unwrap());
    let window = pds[0].alloc_mw(WindowType::Two).unwrap();
    let mut qps = [0, 1].map(|end| {
        let srq = srq.as_ref().filter(|_| end == 1);
        let init = QpInit { service, srq, ..QpInit::new(&cqs[end]) };
        pds[end].create_qp(&init).unwrap()
    });
    // Close to the wrap of the PSN, so that it happens while allocations are counted.
    let psns = [Psn::new(0xff_ff00), Psn::new(0xff_fff0)];
    let mut options = ConnectOptions { timeout: 8, min_rnr_timer: 1, ..ConnectOptions::default() };
    options.access |= Access::FLUSH_GLOBAL;
    let ends = [0, 1].map(|end| qps[end].endpoint(psns[end], 0).unwrap());
    for end in 0..2 {
        qps[end].connect(psns[end], &ends[1 - end], &options).unwrap();
    }
    let completions = Vec::with_capacity(64);
    let now = Instant::ZERO;
    let (relay, _resources) = (None, resources);
    Cable { devices, cqs, qps, buffers, srq, window, completions, now, relay, _resources }
}

impl Cable {
    /// Posts one request and runs until it completes. If it needs a receive, that is posted late.
    fn run_one(&mut self, op: SendOp, data: Data<'_>) {
        let flags = SendFlags::SIGNALED;
        self.qps[0].post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        let mut receives = usize::from(op.consumes_receive());
        self.turn();
        self.turn();
        if receives == 1 {
            let sge = self.buffers[1].region().sge(0, LEN);
            let request = RecvRequest { wr_id: 2, sges: &[sge] };
            match &self.srq {
                Some(srq) => srq.post_recv(&request).unwrap(),
                None => self.qps[1].post_recv(&request).unwrap(),
            }
        }
        let mut sends = 1;
        let mut turns = 0;
        while sends + receives > 0 {
            self.turn();
            sends -= self.poll(0);
            receives -= self.poll(1);
            turns += 1;
            assert!(turns < 1_000_000, "{op:?} does not end");
        }
    }

    /// Runs one turn of both devices. Then 1 us passes, or the time to the next deadline if the
    /// turns did nothing.
    fn turn(&mut self) {
        if let Some([one, two]) = &mut self.relay {
            relay(&mut **one, &mut **two);
            relay(&mut **two, &mut **one);
        }
        let done: usize = self.devices.iter().map(|device| device.turn(self.now)).sum();
        let next = self.devices.iter().filter_map(|device| device.next_deadline(self.now)).min();
        let step = self.now + Duration::from_micros(1);
        self.now = if done == 0 { next.map_or(step, |next| next.max(step)) } else { step };
    }

    fn poll(&mut self, end: usize) -> usize {
        self.completions.clear();
        let count = self.cqs[end].poll(&mut self.completions, 64);
        assert!(self.completions.iter().all(|done| done.status == Status::Success));
        count
    }

    /// Runs every operation, with messages of 0 bytes, one packet and many packets.
    fn round(&mut self) {
        let remote = |buffer: &Buffer, offset| RemoteAddr {
            addr: buffer.region().addr() + offset,
            rkey: buffer.region().rkey(),
        };
        let to = remote(&self.buffers[1], 8);
        for len in [0, 64, LEN] {
            let sge = self.buffers[0].region().sge(0, len);
            let data = Data::Sges(std::slice::from_ref(&sge));
            let (send_imm, write_imm) = (SendOp::SendImm(1), SendOp::WriteImm(to, 2));
            for op in [SendOp::Write(to), SendOp::Read(to), SendOp::Send, send_imm, write_imm] {
                self.run_one(op, data);
            }
        }
        self.run_one(SendOp::Send, Data::Inline(&[b"in", b"line"]));
        self.run_one(SendOp::Write(to), Data::Inline(&[b"inline"]));
        let sge = self.buffers[0].region().sge(0, 8);
        let data = Data::Sges(std::slice::from_ref(&sge));
        self.run_one(SendOp::FetchAdd { remote: to, add: 1 }, data);
        self.run_one(SendOp::CompareSwap { remote: to, compare: 0, swap: 1 }, data);
        self.run_one(SendOp::AtomicWrite(to), data);
        let (placement, selectivity) = (PlacementType::GLOBAL, Selectivity::Range);
        let none = Data::Sges(&[]);
        self.run_one(SendOp::Flush { remote: to, length: 64, placement, selectivity }, none);
        let (rkey, region) = (self.window.rkey_with(1), self.buffers[0].region());
        let (lkey, addr, access) = (region.lkey(), region.addr(), Access::REMOTE_READ);
        let bind = WindowBind { rkey, lkey, addr, length: 64, access };
        self.run_one(SendOp::Local(LocalOp::Bind(bind)), none);
        self.run_one(SendOp::Local(LocalOp::Invalidate(rkey)), none);
    }

    fn count(&self, counter: Counter) -> u64 {
        self.devices.iter().map(|device| device.counter(counter)).sum()
    }
}

/// Forwards the frames received by `from` to `to`.
fn relay(from: &mut dyn Port, to: &mut dyn Port) {
    for index in 0..from.rx_burst() {
        let frame = from.rx_frame(index);
        let Some(slot) = to.tx_slot() else { break }; // Dropped, as by a switch with a full queue.
        let (first, rest) = slot.split_at_mut(frame.first.len());
        first.copy_from_slice(frame.first);
        rest[..frame.second.len()].copy_from_slice(frame.second);
        to.tx_commit(frame.len(), Priority::default());
    }
    to.flush().unwrap();
}

#[test]
fn the_counting_allocator_counts() {
    let (block, used) = heap_use_of(|| Vec::<u8>::with_capacity(100));
    assert_eq!(used, HeapUse { allocations: 1, frees: 0, live_bytes: 100 });
    let (_, used) = heap_use_of(|| drop(block));
    assert_eq!(used, HeapUse { allocations: 0, frees: 1, live_bytes: -100 });
}

#[test]
fn a_clean_link_allocates_nothing() {
    for shared in [false, true] {
        let mut cable = cable_with(Service::Rc, Faults::default(), shared);
        cable.round();
        let ((), used) = heap_use_of(|| (0..2000).for_each(|_| cable.round()));
        assert_eq!(used, HeapUse::default());
        assert!(cable.count(Counter::OutOfBuffer) > 1000, "receives came late");
    }
}

#[test]
fn loss_and_retransmission_take_no_memory() {
    let faults = Faults {
        loss: 10_000,
        duplicate: 10_000,
        reorder: 10_000,
        corrupt: 5_000,
        ..Faults::default()
    };
    let mut cable = cable_with(Service::Rc, faults, true);
    cable.round();
    let ((), used) = heap_use_of(|| (0..2000).for_each(|_| cable.round()));
    assert_eq!(used, HeapUse::default());
    let moved = [
        Counter::RetransmittedPackets,
        Counter::LocalAckTimeoutErr,
        Counter::OutOfSequence,
        Counter::PacketSeqErr,
        Counter::DuplicateRequest,
        Counter::ImpliedNakSeqErr,
        Counter::RnrNakRetryErr,
        Counter::RxIcrcEncapsulated,
    ];
    for counter in moved {
        assert!(cable.count(counter) > 20, "{}: {}", counter.name(), cable.count(counter));
    }
}

#[test]
fn an_unreliable_connection_allocates_nothing() {
    let mut cable = cable_of(Service::Uc, Faults { loss: 100_000, ..Faults::default() });
    let remote = RemoteAddr {
        addr: cable.buffers[1].region().addr(),
        rkey: cable.buffers[1].region().rkey(),
    };
    let mut round = || {
        let [from, into] = [0, 1].map(|end: usize| cable.buffers[end].region().sge(0, LEN));
        for op in [SendOp::Write(remote), SendOp::SendImm(1)] {
            // A lost message has left its receive posted.
            let _ = cable.qps[1].post_recv(&RecvRequest { wr_id: 2, sges: &[into] });
            let (data, flags) = (Data::Sges(std::slice::from_ref(&from)), SendFlags::SIGNALED);
            cable.qps[0].post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
            (0..20).for_each(|_| cable.turn());
            cable.poll(0);
            cable.poll(1);
        }
    };
    round();
    let ((), used) = heap_use_of(|| (0..1000).for_each(|_| round()));
    assert_eq!(used, HeapUse::default());
    assert!(cable.count(Counter::OutOfSequence) > 100, "packets were lost");
    assert!(cable.count(Counter::RxWriteRequests) > 1000, "other packets were not lost");
}

/// Pauses that expire, that XON ends, and that a new pause replaces, at both ends: requests,
/// responses and acknowledgements wait.
#[test]
fn pauses_allocate_nothing() {
    if RigPorts::are_the_kernels() {
        return; // The pause frames are sent over a port of shared memory.
    }
    let pfc = PfcConfig {
        priorities: Priorities::from_bits(1),
        rate: Some(Rate::from_gbps(10)),
        ..PfcConfig::default()
    };
    let RigPorts { near, far, resources } = RigPorts::new();
    let near = near.map(|mut ports| ports.remove(0));
    let config = DeviceConfig { pfc, ..manual_config(7) };
    let mut cable = cable_on(near, resources, Service::Rc, Faults::default(), false, config);
    cable.relay = Some(far);
    let pause_frames = [1000, 300, 0].map(|quanta| {
        let control = FlowControl::Pfc { enabled: 1, quanta: [quanta; 8] };
        FlowControlFrame { src: MACS[1], control }.to_bytes()
    });
    let pauses = move |cable: &mut Cable, round: usize| {
        for (end, port) in cable.relay.iter_mut().flatten().enumerate() {
            let frame = &pause_frames[(round + end) % pause_frames.len()];
            let Some(slot) = port.tx_slot() else { continue };
            slot[..frame.len()].copy_from_slice(frame);
            port.tx_commit(frame.len(), Priority::default());
            port.flush().unwrap();
        }
        cable.round();
    };
    (0..3).for_each(|round| pauses(&mut cable, round));
    let ((), used) = heap_use_of(|| (0..1000).for_each(|round| pauses(&mut cable, round)));
    assert_eq!(used, HeapUse::default());
    assert!(cable.count(Counter::RxPause) > 1900, "{}", cable.count(Counter::RxPause));
    assert!(cable.count(Counter::RxPaused0) > 10_000, "{} us", cable.count(Counter::RxPaused0));
}

/// Datagrams to the peer, to the device itself, and to a group with members at both ends.
#[test]
fn datagrams_allocate_nothing() {
    let mut cable = cable(Faults::default());
    let pds = [0, 1].map(|end: usize| cable.devices[end].alloc_pd());
    let buffers = [0, 1].map(|end: usize| pds[end].alloc_buffer(1 << 14, Access::ALL).unwrap());
    let group = "239.77.0.1".parse().unwrap();
    let mut qps = [0, 1].map(|end: usize| {
        let init = QpInit { service: Service::Ud, ..QpInit::new(&cable.cqs[end]) };
        let mut qp = pds[end].create_qp(&init).unwrap();
        qp.activate(Qkey(1), Psn::new(0xff_ff00)).unwrap();
        qp.attach_multicast(group).unwrap();
        qp
    });
    let ahs = [gid(1), gid(0), group].map(|to| pds[0].create_ah(&Path::new(to, 0)).unwrap());
    let numbers = [qps[1].qpn(), qps[0].qpn(), Qpn::MULTICAST];
    let mut round = || {
        for (ah, remote_qpn) in ahs.iter().zip(numbers) {
            for end in 0..2 {
                let sge = buffers[end].region().sge(0, 8192);
                let _ = qps[end].post_recv(&RecvRequest { wr_id: 2, sges: &[sge] });
            }
            let sge = buffers[0].region().sge(8192, 4000);
            let (data, flags) = (Data::Sges(std::slice::from_ref(&sge)), SendFlags::SIGNALED);
            let request = SendRequest { wr_id: 1, op: SendOp::Send, data, flags };
            qps[0].post_send_to(&request, &Destination { ah, remote_qpn, qkey: Qkey(1) }).unwrap();
            (0..3).for_each(|_| cable.turn());
            cable.poll(0);
            cable.poll(1);
        }
    };
    round();
    let ((), used) = heap_use_of(|| (0..2000).for_each(|_| round()));
    assert_eq!(used, HeapUse::default());
    assert!(cable.count(Counter::TxLoopback) > 4000);
    assert_eq!(cable.count(Counter::PortRcvErrors), 0);
}
