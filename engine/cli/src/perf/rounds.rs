//! The rounds of a test, one per message size: the client leads, the server follows.

use std::time::{SystemTime, UNIX_EPOCH};

use super::error::PerfError;
use super::exchange::Control;
use super::message::Message;
use super::plan::{Goal, Plan};
use super::report::Report;
use super::results::{Done, LatencyRow, Row};
use super::session::Session;
use super::{bandwidth, latency, tcp};
use crate::failure::Failure;
use crate::signal;

/// What a test measures.
#[derive(Debug)]
pub enum Bench {
    /// RoCE.
    Roce(Box<Session>),
    /// The kernel's TCP.
    Tcp,
}

/// Runs all rounds as the client.
///
/// # Errors
/// [`PerfError::Interrupted`] after Ctrl-C, when the shortened round has been reported; otherwise
/// the error of a round.
pub fn lead(
    bench: &mut Bench,
    plan: &Plan,
    control: &mut Control,
    report: &mut Report,
) -> Result<(), Failure> {
    control.finish_rounds();
    let mut salt = first_salt();
    for size in plan.sizes() {
        salt = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let goal = plan.goal(size);
        let row = match bench {
            Bench::Roce(session) => lead_roce(session, plan, control, size, salt, goal)?,
            Bench::Tcp => lead_tcp(plan, control, size, salt, goal)?,
        };
        control.send(&Message::Row(row.clone()))?;
        report.row(row)?;
        if signal::interrupted() {
            break;
        }
    }
    control.send(&Message::Bye)?;
    if signal::interrupted() { Err(PerfError::Interrupted.into()) } else { Ok(()) }
}

/// A salt that differs between runs, so that data of an earlier run are not mistaken for data of
/// this run.
fn first_salt() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() << 30 ^ u64::from(since.subsec_nanos())
}

fn lead_roce(
    session: &mut Session,
    plan: &Plan,
    control: &mut Control,
    size: u32,
    salt: u64,
    goal: Goal,
) -> Result<Row, PerfError> {
    session.prepare(size, salt);
    begin(control, size, salt)?;
    let (own, peer, latencies) = match plan.latency {
        true => {
            let (own, peer, latencies) = latency::ping(session, control, plan, goal)?;
            (own, peer, Some(latencies))
        }
        false => {
            let (own, peer) = bandwidth::run(session, control, true, goal)?;
            (own, peer, None)
        }
    };
    let mut row = Row::new(size, &own, &peer);
    let halves = !plan.op.is_read_or_atomic();
    row.latency = latencies.map(|latencies| LatencyRow::new(&latencies, halves));
    row.checked_bytes = verdicts(session, plan, control, &own, &peer)?;
    Ok(row)
}

fn lead_tcp(
    plan: &Plan,
    control: &mut Control,
    size: u32,
    salt: u64,
    goal: Goal,
) -> Result<Row, PerfError> {
    let port = begin(control, size, salt)?;
    let port = port.ok_or_else(|| control.invalid("no TCP port to connect to"))?;
    let stream = tcp::connect(control.peer().ip(), port)?;
    let idle = Done::default();
    if plan.latency {
        let (own, latencies) = tcp::ping(stream, control, size, goal)?;
        let mut row = Row::new(size, &own, &idle);
        row.latency = Some(LatencyRow::new(&latencies, true));
        return Ok(row);
    }
    let own = tcp::send_all(stream, control, size, goal)?;
    Ok(Row::new(size, &own, &idle))
}

/// Announces a round to the server and waits until the server is ready. Returns the server's TCP
/// port, if TCP is tested.
fn begin(control: &mut Control, size: u32, salt: u64) -> Result<Option<u16>, PerfError> {
    control.send(&Message::Round { size, salt })?;
    match control.receive()? {
        Message::Ready { tcp_port } => Ok(tcp_port),
        other => Err(control.unexpected(&other).into()),
    }
}

/// Runs the rounds that the client announces, until the client ends.
pub fn follow(
    bench: &mut Bench,
    plan: &Plan,
    control: &mut Control,
    report: &mut Report,
) -> Result<(), Failure> {
    loop {
        let (size, salt) = match control.receive()? {
            Message::Round { size, salt } if plan.sizes().contains(&size) => (size, salt),
            Message::Bye => return Ok(()),
            other => return Err(control.unexpected(&other).into()),
        };
        match bench {
            Bench::Roce(session) => follow_roce(session, plan, control, size, salt)?,
            Bench::Tcp => follow_tcp(plan, control, size)?,
        }
        match control.receive()? {
            Message::Row(row) => report.row(row)?,
            other => return Err(control.unexpected(&other).into()),
        }
    }
}

fn follow_roce(
    session: &mut Session,
    plan: &Plan,
    control: &mut Control,
    size: u32,
    salt: u64,
) -> Result<(), PerfError> {
    session.prepare(size, salt);
    control.send(&Message::Ready { tcp_port: None })?;
    let goal = plan.goal(size);
    let (own, peer) = match plan.latency {
        true => latency::pong(session, control, plan, goal)?,
        false => bandwidth::run(session, control, false, goal)?,
    };
    verdicts(session, plan, control, &own, &peer)?;
    Ok(())
}

fn follow_tcp(plan: &Plan, control: &mut Control, size: u32) -> Result<(), PerfError> {
    let (listener, port) = tcp::listen(control.local()?.ip())?;
    control.send(&Message::Ready { tcp_port: Some(port) })?;
    let stream = tcp::accept(&listener)?;
    match plan.latency {
        true => tcp::pong(stream, control, size),
        false => tcp::receive_all(stream, control, size),
    }
}

/// With `--check`: compares the received data and exchanges the results with the peer. Returns the
/// number of bytes compared at both ends.
fn verdicts(
    session: &Session,
    plan: &Plan,
    control: &mut Control,
    own: &Done,
    peer: &Done,
) -> Result<Option<u64>, PerfError> {
    if !plan.check {
        return Ok(None);
    }
    let checked = session.check(own, peer)?;
    control.send(&Message::Verdict { checked })?;
    match control.receive()? {
        Message::Verdict { checked: theirs } => Ok(Some(checked + theirs)),
        other => Err(control.unexpected(&other).into()),
    }
}
