//! Large limits: what an idle device takes, 1,000,000 memory regions, and 100,000 connected QPs.

#![allow(unsafe_code)] // Registering memory needs a promise by the program.

use std::sync::{Mutex, PoisonError};

use feroce_engine::device::{
    Advice, Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, DeviceError, QpInit,
    QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::time::{Clock, Duration, Instant};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::{addresses, manual_config};
use feroce_wire::Psn;

/// The tests measure the memory of the process, so they run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

/// Returns what `make` makes, and by how much the resident memory has grown.
fn measured<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = resident();
    let made = make();
    (made, resident().saturating_sub(before))
}

fn config(max_qp: u32, max_mr: u32) -> DeviceConfig {
    DeviceConfig { max_qp, max_mr, arena_bytes: 1 << 30, ..manual_config(5) }
}

/// Two devices whose ports share memory.
fn devices(config: &DeviceConfig) -> [Device; 2] {
    let arena = Arena::new(64 << 20).unwrap();
    let (left, right) = shm_pair(&arena, ShmConfig::default()).unwrap();
    let left = Device::with_ports(vec![Box::new(left)], addresses(0), config.clone());
    let right = Device::with_ports(vec![Box::new(right)], addresses(1), config.clone());
    [left.unwrap(), right.unwrap()]
}

#[test]
fn unused_objects_take_no_memory() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Otherwise large blocks may come from memory that other tests have freed, and are cleared.
    // SAFETY: sets a parameter of the allocator.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
    drop(devices(&config(64, 64))); // What only the first device takes.
    // One pair at a time: both find the same reserved huge pages, or none and then pages of 2 MB.
    let (small, least) = measured(|| devices(&config(64, 64)));
    drop(small);
    let (_large, most) = measured(|| devices(&config(1 << 20, 1 << 23)));
    println!("two devices: {least} B with 64 QPs and MRs, {most} B with 2^20 QPs and 2^23 MRs");
    assert!(most < least + (2 << 20), "{most} B, {least} B");
}

#[test]
fn a_million_regions_are_registered_and_found() {
    const COUNT: u32 = 1_000_000;
    const LEN: usize = 64;
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let [device, _] = devices(&config(64, COUNT));
    let pd = device.alloc_pd();
    let bytes: &'static mut [u8] = Box::leak(vec![0; 64 * LEN].into_boxed_slice());
    let start = bytes.as_mut_ptr();
    let register = |n: u32| {
        let at = start.wrapping_add(n as usize % 64 * LEN);
        // SAFETY: the bytes are leaked, and nothing else uses them.
        unsafe { pd.reg_mr(at, LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE) }
    };
    let ((regions, time), grown) = measured(|| {
        let clock = Clock::start();
        let regions: Vec<_> = (0..COUNT).map(|n| register(n).unwrap()).collect();
        (regions, clock.now())
    });
    println!(
        "an MR: {} B with its handle; {COUNT} in {} ms",
        grown / COUNT as usize,
        time.as_nanos() / 1_000_000
    );
    assert!(grown < 256 * COUNT as usize, "{grown} B");
    assert!(matches!(register(0), Err(DeviceError::Exhausted(_))), "the limit is true");
    for (n, region) in regions.iter().enumerate() {
        let sge = region.sge(0, u32::try_from(LEN).unwrap());
        assert_eq!(sge.addr, start.wrapping_add(n % 64 * LEN).addr() as u64);
        pd.advise(Advice::PrefetchNoFault, &[sge]).unwrap();
    }
    let stale = regions[7].sge(0, 1);
    let mut regions = regions;
    drop(regions.swap_remove(7));
    assert!(pd.advise(Advice::PrefetchNoFault, &[stale]).is_err(), "deregistered");
    register(7).expect("room for one");
}

/// One end of many connections: each QP writes 8 bytes.
struct End {
    cq: CompletionQueue,
    qps: Vec<QueuePair>,
    source: Buffer,
    target: Buffer,
}

fn value(end: usize, qp: usize) -> [u8; 8] {
    ((qp as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ end as u64).to_le_bytes()
}

fn end(device: &Device, index: usize, count: u32) -> End {
    let (pd, cq) = (device.alloc_pd(), device.create_cq(count).unwrap());
    let init = QpInit { max_send_wr: 4, max_recv_wr: 1, max_inline: 0, ..QpInit::new(&cq) };
    let qps: Vec<_> = (0..count).map(|_| pd.create_qp(&init).unwrap()).collect();
    let buffer = || pd.alloc_buffer(8 * count as usize, Access::ALL).unwrap();
    let (source, target) = (buffer(), buffer());
    for qp in 0..count as usize {
        source.write(8 * qp, &value(index, qp));
    }
    End { cq, qps, source, target }
}

fn connect([left, right]: &mut [End; 2]) {
    let options = ConnectOptions { timeout: 0, max_rd_atomic: Some(1), ..Default::default() };
    for (near, far) in left.qps.iter_mut().zip(&mut right.qps) {
        let psn = Psn::new(near.qpn().value());
        let ends = [near.endpoint(psn, 0).unwrap(), far.endpoint(psn, 0).unwrap()];
        near.connect(psn, &ends[1], &options).unwrap();
        far.connect(psn, &ends[0], &options).unwrap();
    }
}

#[test]
fn a_hundred_thousand_qps_are_connected_and_all_used() {
    const COUNT: u32 = 100_000;
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices(&config(COUNT, 64));
    let (mut ends, grown) = measured(|| {
        let mut ends = [0, 1].map(|n| end(&devices[n], n, COUNT));
        connect(&mut ends);
        ends
    });
    let arena: usize = devices.iter().map(|device| device.arena_stats().used).sum();
    let of_qps = |bytes: usize| bytes / (2 * COUNT as usize);
    println!("a QP: {} B resident, with {} B of the arena", of_qps(grown), of_qps(arena));
    for from in 0..2 {
        let remote = ends[1 - from].target.region().remote_addr(0);
        let End { qps, source, .. } = &mut ends[from];
        for (n, qp) in qps.iter_mut().enumerate() {
            let at = 8 * n as u64;
            let sge = source.region().sge(at, 8);
            let op = SendOp::Write(RemoteAddr { addr: remote.addr + at, ..remote });
            let (data, flags) = (Data::Sges(std::slice::from_ref(&sge)), SendFlags::SIGNALED);
            qp.post_send(&SendRequest { wr_id: n as u64, op, data, flags }).unwrap();
        }
    }
    let (mut now, mut done, mut idle) = (Instant::ZERO, 0, 0);
    let mut out = Vec::with_capacity(1024);
    while done < 2 * COUNT as usize {
        now += Duration::from_micros(10);
        devices.iter().for_each(|device| _ = device.turn(now));
        idle += 1;
        for end in &ends {
            out.clear();
            end.cq.poll(&mut out, 1024);
            assert!(out.iter().all(|completion| completion.is_success()), "{:?}", out[0]);
            done += out.len();
            idle = if out.is_empty() { idle } else { 0 };
        }
        assert!(idle < 100_000, "{done} completions");
    }
    let mut got = [0; 8];
    for (from, to) in [(0, 1), (1, 0)] {
        for n in 0..COUNT as usize {
            ends[to].target.read(8 * n, &mut got);
            assert_eq!(got, value(from, n), "end {from}, QP {n}");
        }
    }
}
