//! A message goes back and forth between two QPs with SEND and receive, as in `ibv_rc_pingpong`.
//!
//! `common/mod.rs` says how to run it over shared memory or an interface, with losses, and with a
//! capture.

#![allow(clippy::disallowed_methods)] // An example may read the clock.

mod common;

use std::time::Instant;

use common::{End, Outcome, completion};
use feroce_engine::device::{Buffer, CompletionQueue, QpInit, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{CompletionOpcode, Data, RecvRequest, SendFlags, SendOp, SendRequest};

const SIZE: u32 = 4096;
const ROUNDS: u32 = 1000;

fn main() -> Outcome {
    common::run(client, server)
}

fn client(end: &mut End) -> Outcome {
    let (cq, mut qp, buffer) = set_up(end)?;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        post_send(&mut qp, &buffer)?;
        wait_for_message(&cq)?;
        post_receive(&mut qp, &buffer)?;
    }
    let each = started.elapsed() / ROUNDS;
    println!("{ROUNDS} round trips of {SIZE} bytes, {:.2} us each", each.as_secs_f64() * 1e6);
    end.synchronise()
}

fn server(end: &mut End) -> Outcome {
    let (cq, mut qp, buffer) = set_up(end)?;
    for _ in 0..ROUNDS {
        wait_for_message(&cq)?;
        post_receive(&mut qp, &buffer)?;
        post_send(&mut qp, &buffer)?;
    }
    end.synchronise()
}

fn set_up(end: &mut End) -> Outcome<(CompletionQueue, QueuePair, Buffer)> {
    let pd = end.device.alloc_pd();
    let cq = end.device.create_cq(64)?;
    let buffer = pd.alloc_buffer(SIZE as usize, Access::LOCAL_WRITE)?;
    let mut qp = pd.create_qp(&QpInit::new(&cq))?;
    end.connect(&mut qp, &buffer)?;
    post_receive(&mut qp, &buffer)?;
    end.synchronise()?; // No message may arrive before its receive is posted.
    Ok((cq, qp, buffer))
}

fn post_receive(qp: &mut QueuePair, buffer: &Buffer) -> Outcome {
    let sge = buffer.region().sge(0, SIZE);
    Ok(qp.post_recv(&RecvRequest { wr_id: 1, sges: &[sge] })?)
}

fn post_send(qp: &mut QueuePair, buffer: &Buffer) -> Outcome {
    let sge = buffer.region().sge(0, SIZE);
    let data = Data::Sges(std::slice::from_ref(&sge));
    Ok(qp.post_send(&SendRequest {
        wr_id: 2,
        op: SendOp::Send,
        data,
        flags: SendFlags::SIGNALED,
    })?)
}

/// Polls until a message arrives; discards the completions of sends.
fn wait_for_message(cq: &CompletionQueue) -> Outcome {
    while completion(cq)?.opcode != CompletionOpcode::Receive {}
    Ok(())
}
