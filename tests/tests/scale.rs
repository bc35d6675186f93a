//! Many QPs and several cores: the memory of a QP, ten thousand QPs on one core, thousands of deep
//! queues, and frames that arrive at a core that does not own their QP.

use std::collections::BTreeSet;

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Driver, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::memory::work_ring::work_ring;
use feroce_engine::port::Port;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{
    Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, SendWqe, Status,
};
use feroce_tests::counting_alloc::{CountingAlloc, heap_use_of};
use feroce_tests::{addresses, manual_config};
use feroce_wire::{Psn, Qpn};

#[global_allocator]
static ALLOCATOR: CountingAlloc = CountingAlloc;

/// Maximum memory of a QP without its rings, in bytes.
const QP_BUDGET: usize = 2048;

/// Bytes that each QP sends and writes.
const CELL: usize = 64;

/// Creates two devices. Core `n` of one is connected to core `n` of the other.
fn devices(config: &DeviceConfig) -> [Device; 2] {
    let arena = Arena::new(64 << 20).unwrap();
    let mut ports: [Vec<Box<dyn Port>>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..config.cores {
        let (left, right) = shm_pair(&arena, ShmConfig::default()).unwrap();
        ports[0].push(Box::new(left));
        ports[1].push(Box::new(right));
    }
    let mut ends = ports.into_iter().enumerate();
    [(); 2].map(|()| {
        let (end, ports) = ends.next().unwrap();
        Device::with_ports(ports, addresses(end), config.clone()).unwrap()
    })
}

fn config(cores: usize, driver: Driver, max_qp: u32) -> DeviceConfig {
    DeviceConfig { cores, driver, max_qp, arena_bytes: 256 << 20, ..manual_config(3) }
}

/// One end of many connections.
struct End {
    cq: CompletionQueue,
    qps: Vec<QueuePair>,
    /// Three parts: data that each QP sends, data received by SEND, and the target of WRITEs.
    buffer: Buffer,
}

/// Returns the offsets in the three parts of a buffer for QP `index` of `count`.
fn cells(index: usize, count: usize) -> [u64; 3] {
    [0, 1, 2].map(|part| ((part * count + index) * CELL) as u64)
}

fn end(device: &Device, count: u32) -> End {
    let pd = device.alloc_pd();
    let cq = device.create_cq(4 * count.max(1)).unwrap();
    let init = QpInit { max_send_wr: 4, max_recv_wr: 1, max_inline: 0, ..QpInit::new(&cq) };
    let qps = (0..count).map(|_| pd.create_qp(&init).unwrap()).collect();
    let buffer = pd.alloc_buffer(3 * CELL * count as usize, Access::ALL).unwrap();
    End { cq, qps, buffer }
}

/// Connects QP `n` of one end with QP `to(n)` of the other.
fn connect(ends: &mut [End; 2], to: impl Fn(usize) -> usize) {
    let [left, right] = ends;
    for (n, near) in left.qps.iter_mut().enumerate() {
        let far = &mut right.qps[to(n)];
        let psn = Psn::new(0xff_fff0 + u32::try_from(n % 16).unwrap());
        let (near_end, far_end) = (near.endpoint(psn, 0).unwrap(), far.endpoint(psn, 0).unwrap());
        near.connect(psn, &far_end, &ConnectOptions::default()).unwrap();
        far.connect(psn, &near_end, &ConnectOptions::default()).unwrap();
    }
}

fn pattern(end: usize, qp: usize) -> Vec<u8> {
    (0..CELL).map(|at| u8::try_from((end * 101 + qp * 7 + at) % 251).unwrap()).collect()
}

/// Posts a receive, a SEND and a WRITE on every QP. `to` as for [`connect`], for both ends.
fn post_all(ends: &mut [End; 2], to: &impl Fn(usize) -> usize) {
    let count = ends[0].qps.len();
    for from in 0..2 {
        let written = ends[1 - from].buffer.region();
        let (base, rkey) = (written.addr(), written.rkey());
        let End { qps, buffer, .. } = &mut ends[from];
        for (n, qp) in qps.iter_mut().enumerate() {
            let [source, received, _] = cells(n, count);
            let [.., target] = cells(to(n), count);
            buffer.write(usize::try_from(source).unwrap(), &pattern(from, n));
            let cell = u32::try_from(CELL).unwrap();
            let receive = buffer.region().sge(received, cell);
            qp.post_recv(&RecvRequest { wr_id: n as u64, sges: &[receive] }).unwrap();
            let sge = buffer.region().sge(source, cell);
            let data = Data::Sges(std::slice::from_ref(&sge));
            let flags = SendFlags::SIGNALED;
            let remote = RemoteAddr { addr: base + target, rkey };
            for op in [SendOp::Send, SendOp::Write(remote)] {
                qp.post_send(&SendRequest { wr_id: n as u64, op, data, flags }).unwrap();
            }
        }
    }
}

/// Runs until every QP of both ends has three successful completions.
fn complete_all(ends: &[End; 2], mut turn: impl FnMut()) {
    let mut left = ends.each_ref().map(|end| vec![3; end.qps.len()]);
    let mut missing: usize = 3 * left.iter().map(Vec::len).sum::<usize>();
    let mut out = Vec::with_capacity(1024);
    let mut idle = 0;
    while missing > 0 {
        turn();
        idle += 1;
        for (end, left) in ends.iter().zip(&mut left) {
            out.clear();
            end.cq.poll(&mut out, 1024);
            for done in &out {
                assert_eq!(done.status, Status::Success, "{done:?}");
                let qp = usize::try_from(done.wr_id).unwrap();
                left[qp] -= 1;
                (missing, idle) = (missing - 1, 0);
            }
        }
        assert!(idle < 10_000_000, "{missing} completions are missing");
    }
    assert!(left.iter().flatten().all(|&left| left == 0));
}

/// Checks every byte that was sent or written.
fn check_all(ends: &[End; 2], to: &impl Fn(usize) -> usize) {
    let count = ends[0].qps.len();
    let mut got = vec![0; CELL];
    for from in 0..2 {
        for n in 0..count {
            let [_, received, written] = cells(to(n), count);
            for offset in [received, written] {
                ends[1 - from].buffer.read(usize::try_from(offset).unwrap(), &mut got);
                assert_eq!(got, pattern(from, n), "end {from}, QP {n}");
            }
        }
    }
}

/// A restarted program gets other QP numbers than its predecessor, and a number is not used again
/// soon: peers that still know the old QP do not mistake the new one for it.
#[test]
fn qp_numbers_differ_from_those_of_the_past() {
    let first_number = |config: DeviceConfig| {
        let [device, _] = devices(&config);
        let cq = device.create_cq(1).unwrap();
        device.alloc_pd().create_qp(&QpInit::new(&cq)).unwrap().qpn()
    };
    let unseeded = || DeviceConfig { seed: None, ..config(1, Driver::Manual, 64) };
    let runs: BTreeSet<Qpn> = (0..8).map(|_| first_number(unseeded())).collect();
    assert!(runs.len() > 6, "{runs:?}");
    let [device, _] = devices(&config(1, Driver::Manual, 2));
    let (pd, cq) = (device.alloc_pd(), device.create_cq(1).unwrap());
    let numbers: BTreeSet<Qpn> =
        (0..1000).map(|_| pd.create_qp(&QpInit::new(&cq)).unwrap().qpn()).collect();
    assert_eq!(numbers.len(), 1000);
}

#[test]
fn a_qp_takes_at_most_2_kib_without_its_rings() {
    const COUNT: u32 = 1024;
    let device_heap = |max_qp| {
        let config = config(1, Driver::Manual, max_qp);
        let (devices, used) = heap_use_of(|| devices(&config));
        (devices, used.live_bytes / 2)
    };
    let (_, small) = device_heap(COUNT);
    let (devices, large) = device_heap(2 * COUNT);
    let per_slot = (large - small) / i64::from(COUNT);
    let mut ends = [0, 1].map(|n| end(&devices[n], 0));
    let init_cq = devices.each_ref().map(|device| device.create_cq(16).unwrap());
    let pds = devices.each_ref().map(Device::alloc_pd);
    let before = devices[0].arena_stats().used;
    let ((), used) = heap_use_of(|| {
        for n in 0..2 {
            // The program's handles are part of the count.
            ends[n].qps.reserve_exact(COUNT as usize);
            let init = QpInit { max_send_wr: 1, max_recv_wr: 1, ..QpInit::new(&init_cq[n]) };
            let make = |_| pds[n].create_qp(&init).unwrap();
            ends[n].qps.extend((0..COUNT).map(make));
        }
        connect(&mut ends, |n| n);
    });
    let per_qp = used.live_bytes / (2 * i64::from(COUNT));
    let slots = (devices[0].arena_stats().used - before) / COUNT as usize;
    let ring_heads = 2 * heap_of_a_ring();
    println!(
        "a QP: {} B on the heap and {per_slot} B of its core's tables; its rings: \
         {ring_heads} B on the heap and {slots} B of the arena",
        per_qp - ring_heads
    );
    assert!(per_slot > 0 && per_qp > ring_heads && ring_heads > 0, "the allocator counts");
    assert!(slots >= 2 * 64, "work queue entries are in the arena");
    let cost = usize::try_from(per_qp + per_slot - ring_heads).unwrap();
    assert!(cost <= QP_BUDGET, "{cost} B");
}

/// Returns the memory of a work queue outside the arena: its head and tail, one cache line each.
fn heap_of_a_ring() -> i64 {
    let arena = Arena::new(2 << 20).unwrap();
    let (_ring, used) = heap_use_of(|| work_ring::<SendWqe>(&arena, 1, 0).unwrap());
    used.live_bytes
}

#[test]
fn ten_thousand_qps_work_on_one_core() {
    const COUNT: u32 = 10_000;
    let devices = devices(&config(1, Driver::Manual, COUNT));
    let mut ends = [0, 1].map(|n| end(&devices[n], COUNT));
    let same = |n| n;
    connect(&mut ends, same);
    post_all(&mut ends, &same);
    let mut now = Instant::ZERO;
    complete_all(&ends, || {
        now += Duration::from_micros(10);
        for device in &devices {
            device.turn(now);
        }
    });
    check_all(&ends, &same);
    for device in &devices {
        assert_eq!(device.counter(Counter::LocalAckTimeoutErr), 0, "no QP timed out");
        assert!(device.poll_event().is_none_or(|event| {
            matches!(event, feroce_engine::verbs::AsyncEvent::CommunicationEstablished(_))
        }));
    }
}

/// One process of google/rdma-unit-test creates 4128 QPs for 1024 requests each. libibverbs makes
/// such a queue 2048 deep, so that the send queues alone exceed 1 GiB.
#[test]
fn a_default_device_has_memory_for_4128_deep_send_queues() {
    let DeviceConfig { max_qp, arena_bytes, .. } = DeviceConfig::default();
    let [device, _] = devices(&DeviceConfig { max_qp, arena_bytes, ..manual_config(3) });
    let (pd, cq) = (device.alloc_pd(), device.create_cq(1).unwrap());
    let init = QpInit { max_send_wr: 2048, max_send_sge: 1, max_inline: 36, ..QpInit::new(&cq) };
    let qps: Vec<_> = (0..4128).map(|_| pd.create_qp(&init).unwrap()).collect();
    assert!(device.arena_stats().used > 1 << 30, "{} QPs", qps.len());
}

/// Returns the index of the peer QP of QP `n`. The peer QP belongs to the other core, so frames
/// arrive at a port of the core that does not own the QP.
fn cross(n: usize) -> usize {
    n ^ 1
}

#[test]
fn frames_for_another_core_are_handed_over() {
    const COUNT: u32 = 256;
    let devices = devices(&config(2, Driver::Manual, COUNT));
    let mut ends = [0, 1].map(|n| end(&devices[n], COUNT));
    connect(&mut ends, cross);
    post_all(&mut ends, &cross);
    let mut now = Instant::ZERO;
    complete_all(&ends, || {
        now += Duration::from_micros(10);
        for device in &devices {
            device.turn(now);
        }
    });
    check_all(&ends, &cross);
    for device in &devices {
        let handed_over = device.counter(Counter::RxHandedOver);
        assert!(handed_over >= 3 * u64::from(COUNT), "{handed_over} frames were handed over");
        assert_eq!(
            handed_over,
            device.counter(Counter::PortRcvPackets),
            "all frames arrived at the other core"
        );
    }
}

#[test]
fn frames_are_handed_over_between_threads() {
    const COUNT: u32 = 64;
    let devices = devices(&config(2, Driver::Helper, COUNT));
    let mut ends = [0, 1].map(|n| end(&devices[n], COUNT));
    connect(&mut ends, cross);
    for _ in 0..100 {
        post_all(&mut ends, &cross);
        complete_all(&ends, std::thread::yield_now);
        check_all(&ends, &cross);
    }
    for device in &devices {
        assert!(device.counter(Counter::RxHandedOver) >= 300 * u64::from(COUNT));
    }
}
