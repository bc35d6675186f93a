//! Measures the bandwidth of RDMA WRITEs: many requests outstanding, a completion for every 16th.
//!
//! `common/mod.rs` says how to run it over shared memory or an interface, with losses, and with a
//! capture.

#![allow(clippy::disallowed_methods)] // An example may read the clock.

mod common;

use std::time::Instant;

use common::{End, Outcome, completion};
use feroce_engine::device::QpInit;
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Data, SendFlags, SendOp, SendRequest};

const SIZE: u32 = 64 << 10;
const MESSAGES: u64 = 4096;
/// Requests outstanding.
const DEPTH: u64 = 64;
/// One completion per this many requests.
const GROUP: u64 = 16;

fn main() -> Outcome {
    common::run(client, server)
}

fn client(end: &mut End) -> Outcome {
    let pd = end.device.alloc_pd();
    let cq = end.device.create_cq(64)?;
    let buffer = pd.alloc_buffer(SIZE as usize, Access::NONE)?;
    buffer.write(0, &[0x5a; SIZE as usize]);
    let mut qp = pd.create_qp(&QpInit { max_send_wr: 64, ..QpInit::new(&cq) })?;
    let remote = end.connect(&mut qp, &buffer)?;

    let sge = buffer.region().sge(0, SIZE);
    let started = Instant::now();
    let mut completed = 0;
    for message in 1..=MESSAGES {
        while message - completed > DEPTH {
            completed = completion(&cq)?.wr_id; // All requests before this one are complete, too.
        }
        let ends_group = message.is_multiple_of(GROUP);
        qp.post_send(&SendRequest {
            wr_id: message,
            op: SendOp::Write(remote),
            data: Data::Sges(&[sge]),
            flags: if ends_group { SendFlags::SIGNALED } else { SendFlags::NONE },
        })?;
    }
    while completed < MESSAGES {
        completed = completion(&cq)?.wr_id;
    }
    let seconds = started.elapsed().as_secs_f64();
    let gigabytes = f64::from(SIZE) * 4096.0 / 1e9;
    println!("{MESSAGES} WRITEs of {SIZE} bytes: {:.2} Gb/s", gigabytes * 8.0 / seconds);
    end.synchronise()
}

/// Registers memory; the client writes to it.
fn server(end: &mut End) -> Outcome {
    let pd = end.device.alloc_pd();
    let cq = end.device.create_cq(1)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let buffer = pd.alloc_buffer(SIZE as usize, rights)?;
    let mut qp = pd.create_qp(&QpInit::new(&cq))?;
    end.connect(&mut qp, &buffer)?;
    end.synchronise()?; // The client has its completions.
    let mut got = vec![0; SIZE as usize];
    buffer.read(0, &mut got);
    if got.iter().all(|&byte| byte == 0x5a) {
        Ok(())
    } else {
        Err("the data did not arrive".into())
    }
}
