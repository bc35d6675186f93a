//! Latency: one message at a time. WRITE and SEND go back and forth between the two programs, and
//! the result is half of the round trip. The peer's device responds to READs and atomics, and the
//! result is the full round trip.

use std::time::Instant;

use super::error::PerfError;
use super::exchange::Control;
use super::plan::{Goal, Op, Plan};
use super::results::{Done, Latencies, histogram, nanos_since};
use super::session::Session;
use super::watch::Watch;

/// Runs a round on the client. Returns what both sides sent, and the round trips.
pub fn ping(
    session: &mut Session,
    control: &mut Control,
    plan: &Plan,
    goal: Goal,
) -> Result<(Done, Done, Latencies), PerfError> {
    let mut watch = Watch::new(control, true, goal);
    let mut latencies = histogram();
    let answered_by_device = plan.op.is_read_or_atomic();
    let most = match goal {
        Goal::Messages(messages) => messages,
        Goal::Time(_) => u64::MAX,
    };
    let started = Instant::now();
    let mut count = 0;
    while count < most && !watch.stop() {
        make_room(session, &mut watch)?;
        let sent = Instant::now();
        session.post(0, answered_by_device)?;
        count += 1;
        while !answered(session, plan, count) {
            session.poll()?;
            watch.turn(count)?;
        }
        latencies.saturating_record(nanos_since(sent));
        check(session, plan)?;
    }
    let own = session.done(nanos_since(started));
    watch.send_done(&own)?;
    let peer = watch.wait_for_peer()?;
    drain(session, &mut watch)?;
    Ok((own, peer, latencies))
}

/// Runs a round on the server: sends a message for each one received, until the client is done.
pub fn pong(
    session: &mut Session,
    control: &mut Control,
    plan: &Plan,
    goal: Goal,
) -> Result<(Done, Done), PerfError> {
    let mut watch = Watch::new(control, false, goal);
    let mut count = 0;
    // The device responds to READs and atomics.
    while !plan.op.is_read_or_atomic() && watch.peer_done().is_none() {
        if answered(session, plan, count + 1) {
            check(session, plan)?;
            make_room(session, &mut watch)?;
            session.post(0, false)?;
            count += 1;
            continue;
        }
        session.poll()?;
        watch.turn(count)?;
    }
    let own = session.done(0);
    watch.send_done(&own)?;
    let peer = watch.wait_for_peer()?;
    drain(session, &mut watch)?;
    Ok((own, peer))
}

/// Returns true if the peer's message `count`, or the response to this side, has arrived.
fn answered(session: &Session, plan: &Plan, count: u64) -> bool {
    match plan.op {
        Op::Write => session.arrived_in_memory(count),
        op if op.is_read_or_atomic() => session.completed() >= count,
        _ => session.received(0) >= count,
    }
}

/// With `--check`: compares the WRITE that has arrived. Others are compared when they complete.
fn check(session: &mut Session, plan: &Plan) -> Result<(), PerfError> {
    if plan.op == Op::Write {
        session.check_arrived()?;
    }
    Ok(())
}

fn make_room(session: &mut Session, watch: &mut Watch<'_>) -> Result<(), PerfError> {
    while !session.has_room(0) {
        session.poll()?;
        watch.turn(session.posted(0))?;
    }
    Ok(())
}

/// Waits for the outstanding completions. All messages have arrived.
fn drain(session: &mut Session, watch: &mut Watch<'_>) -> Result<(), PerfError> {
    while !session.all_completed() {
        session.poll()?;
        watch.turn(session.posted(0))?;
    }
    Ok(())
}
