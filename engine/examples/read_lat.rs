//! Measures the latency of RDMA READs of 8 bytes, one at a time.
//!
//! `common/mod.rs` says how to run it over shared memory or an interface, with losses, and with a
//! capture.

#![allow(clippy::disallowed_methods)] // An example may read the clock.

mod common;

use std::time::{Duration, Instant};

use common::{End, Outcome, completion};
use feroce_engine::device::QpInit;
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Data, SendFlags, SendOp, SendRequest};

const READS: usize = 2000;
/// Value in the server's memory.
const VALUE: u64 = 0xfe_40ce;

fn main() -> Outcome {
    common::run(client, server)
}

fn client(end: &mut End) -> Outcome {
    let pd = end.device.alloc_pd();
    let cq = end.device.create_cq(1)?;
    let buffer = pd.alloc_buffer(8, Access::LOCAL_WRITE)?;
    let mut qp = pd.create_qp(&QpInit::new(&cq))?;
    let remote = end.connect(&mut qp, &buffer)?;

    let sge = buffer.region().sge(0, 8);
    let mut times = Vec::with_capacity(READS);
    for _ in 0..READS {
        buffer.store_word(0, 0);
        let started = Instant::now();
        let (op, data) = (SendOp::Read(remote), Data::Sges(std::slice::from_ref(&sge)));
        qp.post_send(&SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED })?;
        completion(&cq)?;
        times.push(started.elapsed());
        if buffer.load_word(0) != VALUE {
            return Err("read something else than what is there".into());
        }
    }
    times.sort_unstable();
    let at = |share: usize| micros(times[(READS - 1) * share / 1000]);
    println!(
        "{READS} READs of 8 bytes: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us",
        at(500),
        at(990),
        at(999)
    );
    end.synchronise()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Registers memory; the device responds to the READs.
fn server(end: &mut End) -> Outcome {
    let pd = end.device.alloc_pd();
    let cq = end.device.create_cq(1)?;
    let buffer = pd.alloc_buffer(8, Access::REMOTE_READ)?;
    buffer.store_word(0, VALUE);
    let mut qp = pd.create_qp(&QpInit::new(&cq))?;
    end.connect(&mut qp, &buffer)?;
    end.synchronise()
}
