//! 64-byte SENDs between two devices on one thread. `cargo xtask bench icount` counts the
//! instructions of this program. The functions `requester` and `responder` are never inlined, so
//! that their instructions can be counted separately.

use feroce_engine::device::{Buffer, CompletionQueue, ConnectOptions, Device, QpInit, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
use feroce_tests::{addresses, manual_config};
use feroce_wire::Psn;

const LEN: u32 = 64;
/// SENDs per turn, in one batch, as a busy program posts them.
const BATCH: u64 = 16;

struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: Buffer,
}

fn main() {
    let batches: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
    let arena = Arena::new(64 << 20).expect("an arena");
    let (a, b) = shm_pair(&arena, ShmConfig::default()).expect("ports");
    let mut near = end(0, a);
    let mut far = end(1, b);
    let psn = Psn::new(0);
    let endpoints = [&near, &far].map(|end| end.qp.endpoint(psn, 0).expect("a GID"));
    near.qp.connect(psn, &endpoints[1], &ConnectOptions::default()).expect("connected");
    far.qp.connect(psn, &endpoints[0], &ConnectOptions::default()).expect("connected");
    let mut now = Instant::ZERO;
    for _ in 0..batches {
        now += std::time::Duration::from_micros(1);
        receives(&mut far);
        requester(&mut near, now);
        responder(&mut far, now);
    }
    near.device.turn(now);
}

fn end(index: usize, port: feroce_engine::port::shm::ShmPort) -> End {
    let config = manual_config(1);
    let device = Device::with_ports(vec![Box::new(port)], addresses(index), config);
    let device = device.expect("a device");
    let cq = device.create_cq(1024).expect("a CQ");
    let pd = device.alloc_pd();
    let qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
    let buffer = pd.alloc_buffer(4096, Access::ALL).expect("a buffer");
    End { device, cq, qp, buffer }
}

#[inline(never)]
fn receives(end: &mut End) {
    for wr_id in 0..BATCH {
        let sge = end.buffer.region().sge(0, LEN);
        let request = RecvRequest { wr_id, sges: std::slice::from_ref(&sge) };
        end.qp.post_recv(&request).expect("room");
    }
}

/// Posts and sends a batch, receives the ACK of the batch before, and polls its completion.
#[inline(never)]
fn requester(end: &mut End, now: Instant) {
    for wr_id in 0..BATCH {
        let sge = end.buffer.region().sge(0, LEN);
        let flags = if wr_id == BATCH - 1 { SendFlags::SIGNALED } else { SendFlags::NONE };
        let data = Data::Sges(std::slice::from_ref(&sge));
        end.qp.post_send(&SendRequest { wr_id, op: SendOp::Send, data, flags }).expect("room");
    }
    end.device.turn(now);
    while let Some(completion) = end.cq.poll_one() {
        assert!(completion.is_success());
    }
}

/// Receives, acknowledges, and polls the completions.
#[inline(never)]
fn responder(end: &mut End, now: Instant) {
    end.device.turn(now);
    let mut count = 0;
    while let Some(completion) = end.cq.poll_one() {
        assert!(completion.is_success());
        count += 1;
    }
    assert_eq!(count, BATCH);
}
