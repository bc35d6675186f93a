//! Measurements of the engine: throughput of WRITEs and READs, and SEND latency, between two
//! devices. Each device has a thread.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, Endpoint, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{
    Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_wire::{PathMtu, Psn};

use super::{BUFFER_LEN, ROUND};

/// Maximum number of outstanding requests.
const DEPTH: u64 = 256;
/// Maximum number of outstanding bytes; two requests may exceed it.
const OUTSTANDING: u64 = 16 << 20;
/// Every 16th request is signaled; more if fewer than 32 requests are outstanding.
const SIGNAL_EVERY: u64 = 16;
/// Length of a ping in bytes.
pub const PING_LEN: usize = 64;

/// An end of a connection.
#[derive(Debug)]
pub struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: Buffer,
}

impl End {
    /// Creates an unconnected end on `device` with a buffer of `len` bytes.
    pub fn new(device: &Device, len: usize) -> Self {
        let cq = device.create_cq(2048).expect("a CQ");
        let pd = device.alloc_pd();
        let init = QpInit { max_send_wr: 512, max_recv_wr: 512, ..QpInit::new(&cq) };
        let qp = pd.create_qp(&init).expect("a QP");
        let buffer = pd.alloc_buffer(len, Access::ALL).expect("a buffer");
        super::touch(&buffer);
        Self { device: device.clone(), cq, qp, buffer }
    }

    /// Returns the data that the other end needs to connect.
    pub fn endpoint(&self, sgid_index: u32) -> Endpoint {
        self.qp.endpoint(Psn::new(1), sgid_index).expect("a GID")
    }

    /// Returns address and key of the buffer, for the other end.
    pub fn target(&self) -> RemoteAddr {
        RemoteAddr { addr: self.buffer.region().addr(), rkey: self.buffer.region().rkey() }
    }

    /// Connects the end to `peer`.
    pub fn connect(&mut self, peer: &Endpoint, sgid_index: u32) {
        let path_mtu = Some(PathMtu::Mtu4096);
        let options = ConnectOptions { path_mtu, sgid_index, ..ConnectOptions::default() };
        self.qp.connect(Psn::new(1), peer, &options).expect("connected");
    }

    /// Drives the device until `stop` is set.
    pub fn drive(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.device.drive();
        }
    }
}

/// Creates two connected ends with buffers of `len` bytes.
pub fn connect(devices: [&Device; 2], len: usize, sgid_index: [u32; 2]) -> [End; 2] {
    let mut ends = devices.map(|device| End::new(device, len));
    let endpoints = [0, 1].map(|n| ends[n].endpoint(sgid_index[n]));
    for n in 0..2 {
        ends[n].connect(&endpoints[1 - n], sgid_index[n]);
    }
    ends
}

/// The operation that moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkOperation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

impl BulkOperation {
    fn op(self, remote: RemoteAddr) -> SendOp {
        match self {
            Self::Write => SendOp::Write(remote),
            Self::Read => SendOp::Read(remote),
        }
    }
}

/// Posts WRITEs of `len` bytes for [`ROUND`] while the other end only drives its device. Returns
/// payload bytes per second.
pub fn write_rate(ends: &mut [End; 2], len: usize) -> f64 {
    rate(ends, BulkOperation::Write, len)
}

/// Like [`write_rate`], with WRITEs or READs.
pub fn rate(ends: &mut [End; 2], operation: BulkOperation, len: usize) -> f64 {
    let stop = AtomicBool::new(false);
    let [near, far] = ends;
    std::thread::scope(|scope| {
        scope.spawn(|| far.drive(&stop));
        let target = far.target();
        let start = Instant::now();
        let done = transfer_for_a_round(near, target, operation, len);
        let rate = (done * len as u64) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Posts WRITEs of `len` bytes to `target` for [`ROUND`]. Returns the number of completed WRITEs.
pub fn write_for_a_round(near: &mut End, target: RemoteAddr, len: usize) -> u64 {
    transfer_for_a_round(near, target, BulkOperation::Write, len)
}

fn transfer_for_a_round(
    near: &mut End,
    target: RemoteAddr,
    operation: BulkOperation,
    len: usize,
) -> u64 {
    let depth = DEPTH.min((OUTSTANDING / len as u64).max(2));
    let batch = SIGNAL_EVERY.min(depth / 2);
    let start = Instant::now();
    let (mut posted, mut done, mut offset) = (0u64, 0u64, 0u64);
    let mut completions: Vec<Completion> = Vec::with_capacity(64);
    let len = u32::try_from(len).expect("small");
    loop {
        let over = start.elapsed() >= ROUND; // Once per batch.
        if over && done == posted {
            return done;
        }
        if !over && posted - done <= depth - batch {
            for n in 1..=batch {
                let flags = if n == batch { SendFlags::SIGNALED } else { SendFlags::NONE };
                let sge = near.buffer.region().sge(offset, len);
                let remote = RemoteAddr { addr: target.addr + offset, ..target };
                let (op, data) = (operation.op(remote), Data::Sges(std::slice::from_ref(&sge)));
                let request = SendRequest { wr_id: posted, op, data, flags };
                near.qp.post_send(&request).expect("room for a batch");
                posted += 1;
                offset = (offset + u64::from(len)) % BUFFER_LEN as u64;
            }
        }
        completions.clear();
        near.cq.poll(&mut completions, 64);
        for completion in &completions {
            assert_eq!(completion.status, Status::Success);
            done += batch;
        }
    }
}

/// Exchanges SENDs of [`PING_LEN`] bytes for [`ROUND`]. Returns the median of half the round-trip
/// time in seconds.
pub fn ping_half_rtt(ends: &mut [End; 2]) -> f64 {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    let [near, far] = ends;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            post_receives(far);
            ready.wait();
            while !stop.load(Ordering::Relaxed) {
                if wait_for_ping(far, &stop) {
                    ping(far);
                }
            }
        });
        post_receives(near);
        ready.wait();
        let start = Instant::now();
        let mut times = Vec::with_capacity(1 << 20);
        while start.elapsed() < ROUND {
            let sent = Instant::now();
            ping(near);
            wait_for_ping(near, &stop);
            times.push(sent.elapsed().as_secs_f64() / 2.0);
        }
        stop.store(true, Ordering::Relaxed);
        super::median(&mut times)
    })
}

/// Number of posted receives.
const RECEIVES: u64 = 64;

fn post_receives(end: &mut End) {
    // Receives of an earlier round are still posted.
    while end.qp.receives_posted() < u32::try_from(RECEIVES).expect("small") {
        post_receive(end);
    }
}

fn post_receive(end: &mut End) {
    let sge = end.buffer.region().sge(4096, u32::try_from(PING_LEN).expect("small"));
    let request = RecvRequest { wr_id: 1, sges: std::slice::from_ref(&sge) };
    end.qp.post_recv(&request).expect("room for a receive");
}

fn ping(end: &mut End) {
    let sge = end.buffer.region().sge(0, u32::try_from(PING_LEN).expect("small"));
    let data = Data::Sges(std::slice::from_ref(&sge));
    let request = SendRequest { wr_id: 2, op: SendOp::Send, data, flags: SendFlags::NONE };
    end.qp.post_send(&request).expect("room for a ping");
}

/// Waits for a ping. Returns false if `stop` is set first.
fn wait_for_ping(end: &mut End, stop: &AtomicBool) -> bool {
    loop {
        if let Some(completion) = end.cq.poll_one() {
            assert_eq!((completion.wr_id, completion.status), (1, Status::Success));
            post_receive(end);
            return true;
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
}
