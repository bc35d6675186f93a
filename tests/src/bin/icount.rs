//! 64-byte SENDs or WRITEs between two devices on one thread. `cargo xtask bench icount` counts the
//! instructions of this program. The functions `receives`, `requester` and `responder` are never
//! inlined, so that their instructions can be counted separately.
//!
//! Arguments: number of batches; `send` (default) or `write`; number of QPs (default 1), which send
//! one batch each in turn.

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest};
use feroce_tests::{addresses, manual_config};
use feroce_wire::Psn;

const LEN: u32 = 64;
/// Messages per turn, in one batch, as a busy program posts them.
const BATCH: usize = 16;

struct End {
    device: Device,
    cq: CompletionQueue,
    qps: Vec<QueuePair>,
    buffer: Buffer,
    completions: Vec<Completion>,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let batches: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let writes = arguments.next().is_some_and(|what| what == "write");
    let qps: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let arena = Arena::new(64 << 20).expect("an arena");
    let (a, b) = shm_pair(&arena, ShmConfig::default()).expect("ports");
    let mut near = end(0, a, qps);
    let mut far = end(1, b, qps);
    connect(&mut near, &mut far);
    let target = far.buffer.region().remote_addr(0);
    let op = if writes { SendOp::Write(target) } else { SendOp::Send };
    let mut now = Instant::ZERO;
    for batch in 0..batches {
        now += std::time::Duration::from_micros(1);
        let qp = batch % qps;
        if !writes {
            receives(&mut far, qp);
        }
        requester(&mut near, qp, op, now);
        responder(&mut far, if writes { 0 } else { BATCH }, now);
    }
    near.device.turn(now);
}

fn end(index: usize, port: feroce_engine::port::shm::ShmPort, qps: usize) -> End {
    let most = u32::try_from(qps).expect("few") + 1;
    let arena_bytes = (64 << 20) + qps * (64 << 10);
    let config = manual_config(1);
    let config = DeviceConfig { max_qp: most.max(config.max_qp), arena_bytes, ..config };
    let device = Device::with_ports(vec![Box::new(port)], addresses(index), config);
    let device = device.expect("a device");
    let cq = device.create_cq(1024).expect("a CQ");
    let pd = device.alloc_pd();
    let qps = (0..qps).map(|_| pd.create_qp(&QpInit::new(&cq)).expect("a QP")).collect();
    let buffer = pd.alloc_buffer(4096, Access::ALL).expect("a buffer");
    End { device, cq, qps, buffer, completions: Vec::with_capacity(BATCH) }
}

fn connect(near: &mut End, far: &mut End) {
    let psn = Psn::new(0);
    for (near, far) in near.qps.iter_mut().zip(&mut far.qps) {
        let endpoints = [&*near, &*far].map(|qp| qp.endpoint(psn, 0).expect("a GID"));
        near.connect(psn, &endpoints[1], &ConnectOptions::default()).expect("connected");
        far.connect(psn, &endpoints[0], &ConnectOptions::default()).expect("connected");
    }
}

#[inline(never)]
fn receives(end: &mut End, qp: usize) {
    let mut posts = end.qps[qp].batch();
    for wr_id in 0..BATCH as u64 {
        let sge = end.buffer.region().sge(0, LEN);
        let request = RecvRequest { wr_id, sges: std::slice::from_ref(&sge) };
        posts.post_recv(&request).expect("room");
    }
}

/// Posts and sends a batch, receives the ACK of the batch before, and polls its completion.
#[inline(never)]
fn requester(end: &mut End, qp: usize, op: SendOp, now: Instant) {
    let mut posts = end.qps[qp].batch();
    for wr_id in 0..BATCH {
        let sge = end.buffer.region().sge(0, LEN);
        let flags = if wr_id == BATCH - 1 { SendFlags::SIGNALED } else { SendFlags::NONE };
        let data = Data::Sges(std::slice::from_ref(&sge));
        let request = SendRequest { wr_id: wr_id as u64, op, data, flags };
        posts.post_send(&request).expect("room");
    }
    drop(posts);
    end.device.turn(now);
    poll(end);
}

/// Receives, acknowledges, and polls the completions.
#[inline(never)]
fn responder(end: &mut End, expected: usize, now: Instant) {
    end.device.turn(now);
    assert_eq!(poll(end), expected);
}

/// Polls until the CQ is empty. Returns the number of completions.
fn poll(end: &mut End) -> usize {
    let mut count = 0;
    loop {
        end.completions.clear();
        match end.cq.poll(&mut end.completions, BATCH) {
            0 => return count,
            more => count += more,
        }
        assert!(end.completions.iter().all(Completion::is_success));
    }
}
