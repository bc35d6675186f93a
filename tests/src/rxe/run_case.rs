//! Runs a case between Feroce and rxe.

use std::time::{Duration, Instant};

use feroce_conform::endpoint::Failure;
use feroce_conform::endpoint::agent::RxeEnd;
use feroce_conform::endpoint::end::{End, Posting};
use feroce_conform::endpoint::feroce::FeroceEnd;
use feroce_conform::endpoint::model::Model;
use feroce_conform::endpoint::plan::{Op, Plan, REQUESTER, RESPONDER, Request, SpecialEvent};
use feroce_conform::endpoint::setup::{FIRST_RECEIVE, connect, requests_of};
use feroce_engine::device::Device;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{Completion, CompletionOpcode, Extra, Status};

use super::case::{Case, Role};
use super::faults::Network;

/// Maximum time for the completions of a case.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `case` between a new QP on `device` and a new QP in the guest, over `network`.
///
/// # Errors
/// The first difference from the plan.
pub fn run(case: &Case, device: &Device, network: &Network) -> Result<(), Failure> {
    let (mut feroce, mut rxe) = (FeroceEnd::new(device)?, RxeEnd::new()?);
    let mut ends: [&mut dyn End; 2] = match case.role {
        Role::Requester => [&mut feroce, &mut rxe],
        Role::Responder => [&mut rxe, &mut feroce],
    };
    let plan = &case.plan;
    connect(plan, case.family, case.mtu, &mut ends)?;
    let (model, postings) = requests_of(plan, &ends[RESPONDER].keys()?);
    let receives: Vec<_> = (FIRST_RECEIVE..)
        .zip(&plan.receives)
        .map(|(wr_id, receive)| (wr_id, receive.place, receive.len))
        .collect();
    if !matches!(plan.special_event, SpecialEvent::LateReceives(_)) {
        ends[RESPONDER].post_receives(&receives)?;
    }
    if plan.special_event == SpecialEvent::ResponderGone {
        ends[RESPONDER].destroy_qp()?;
    }
    ends[REQUESTER].post_sends(&postings)?;
    if let SpecialEvent::LateReceives(time) = plan.special_event {
        std::thread::sleep(time);
        ends[RESPONDER].post_receives(&receives)?;
    }
    if plan.special_event == SpecialEvent::PeerKilled {
        run_with_killed_peer(case, &mut ends, network)?;
        return run(&follow_up_case(case), device, network);
    }
    check_completions(plan, &postings, &mut ends)?;
    check_rest(plan, &mut ends, &model)
}

/// Checks that all expected completions arrive in order, and no others.
fn check_completions(
    plan: &Plan,
    postings: &[Posting],
    ends: &mut [&mut dyn End; 2],
) -> Result<(), Failure> {
    let sent = ends[REQUESTER].completions(plan.requests.len(), COMPLETION_TIMEOUT)?;
    for (index, request) in plan.requests.iter().enumerate() {
        check_request(index, request, sent.get(index))?;
    }
    if plan.special_event != SpecialEvent::ResponderGone {
        check_receives(plan, postings, ends[RESPONDER])?;
    }
    for end in ends {
        if let Some(more) = end.completions(1, Duration::ZERO)?.first() {
            return Err(Failure(format!("{} completes more: {more:?}", end.name())));
        }
    }
    Ok(())
}

fn check_request(
    index: usize,
    request: &Request,
    completion: Option<&Completion>,
) -> Result<(), Failure> {
    let what = format!("request {index} ({} of {} bytes)", request.op, request.len);
    let Some(completion) = completion else {
        return Err(Failure(format!("{what} does not complete within {COMPLETION_TIMEOUT:?}")));
    };
    if completion.wr_id != index as u64 || completion.status != request.status {
        let (id, status) = (completion.wr_id, completion.status);
        return Err(Failure(format!("{what} should be {:?}: {id} is {status:?}", request.status)));
    }
    if !completion.is_success() {
        return Ok(()); // The other fields are undefined after an error.
    }
    let opcode = match request.op {
        Op::Send | Op::SendImm | Op::SendInv => CompletionOpcode::Send,
        Op::Write | Op::WriteImm => CompletionOpcode::RdmaWrite,
        Op::Read => CompletionOpcode::RdmaRead,
        Op::FetchAdd => CompletionOpcode::FetchAdd,
        Op::CmpSwap | Op::CmpSwapMiss => CompletionOpcode::CompareSwap,
    };
    let has_data_response = request.op == Op::Read || request.op.is_atomic();
    if completion.opcode != opcode || has_data_response && completion.byte_len != request.len {
        return Err(Failure(format!("{what} completes with {completion:?}")));
    }
    Ok(())
}

/// Checks that receives complete with the immediate, key and length of their requests.
fn check_receives(
    plan: &Plan,
    postings: &[Posting],
    responder: &mut dyn End,
) -> Result<(), Failure> {
    let due: Vec<_> = plan.receives.iter().filter_map(|receive| receive.status).collect();
    let received = responder.completions(due.len(), COMPLETION_TIMEOUT)?;
    let carriers = postings.iter().filter(|posting| posting.op.consumes_receive());
    for ((index, status), carrier) in due.iter().enumerate().zip(carriers) {
        let Some(completion) = received.get(index) else {
            return Err(Failure(format!(
                "receive {index} does not complete within {COMPLETION_TIMEOUT:?}"
            )));
        };
        if completion.wr_id != FIRST_RECEIVE + index as u64 || completion.status != *status {
            let (id, found) = (completion.wr_id, completion.status);
            return Err(Failure(format!(
                "receive {index} should be {status:?}: {id} is {found:?}"
            )));
        }
        if completion.is_success() && !carries(completion, carrier) {
            let op = carrier.op;
            return Err(Failure(format!(
                "receive {index}, of a {op}, completes with {completion:?}"
            )));
        }
    }
    Ok(())
}

fn carries(completion: &Completion, carrier: &Posting) -> bool {
    let immediate = u32::try_from(carrier.operand & 0xffff_ffff).expect("masked");
    let (opcode, extra) = match carrier.op {
        Op::SendImm => (CompletionOpcode::Receive, Extra::Immediate(immediate)),
        Op::WriteImm => (CompletionOpcode::ReceiveRdmaWithImmediate, Extra::Immediate(immediate)),
        Op::SendInv => (CompletionOpcode::Receive, Extra::Invalidated(carrier.remote.rkey)),
        _ => (CompletionOpcode::Receive, Extra::None),
    };
    let found = (completion.opcode, completion.extra, completion.byte_len);
    found == (opcode, extra, carrier.len)
}

/// Checks all memory byte by byte, and the QP states.
fn check_rest(plan: &Plan, ends: &mut [&mut dyn End; 2], model: &Model) -> Result<(), Failure> {
    for (index, end) in ends.iter_mut().enumerate() {
        for region in 0..plan.regions[index].len() {
            model.check(index, region, &end.memory(region)?)?;
        }
        if index == RESPONDER && plan.special_event == SpecialEvent::ResponderGone {
            continue;
        }
        let (state, due) = (end.state()?, plan.states[index]);
        if state != due {
            return Err(Failure(format!("the QP of {} is in {state:?}, not {due:?}", end.name())));
        }
    }
    Ok(())
}

/// Kills the peer after Feroce's first completion. As requester, Feroce must run out of retries and
/// flush the rest. As responder, Feroce must stay in RTS until its QP is destroyed.
fn run_with_killed_peer(
    case: &Case,
    ends: &mut [&mut dyn End; 2],
    network: &Network,
) -> Result<(), Failure> {
    let (feroce, rxe) = case.role.pick((REQUESTER, RESPONDER), (RESPONDER, REQUESTER));
    let first = ends[feroce].completions(1, COMPLETION_TIMEOUT)?;
    if !first.first().is_some_and(Completion::is_success) {
        return Err(Failure(format!("nothing completed before the peer was killed: {first:?}")));
    }
    // A guest that sends needs one or two seconds to stop, and continues to send meanwhile.
    let cut = if case.role == Role::Responder { Some(network.cut()?) } else { None };
    ends[rxe].kill()?;
    drop(cut);
    let killed = Instant::now();
    let left = case.plan.requests.len() - 1;
    let timeout = case.role.pick(COMPLETION_TIMEOUT, Duration::from_millis(200));
    let rest = ends[feroce].completions(left, timeout)?;
    let statuses: Vec<_> = rest.iter().map(|completion| completion.status).collect();
    let succeeded = statuses.iter().take_while(|status| **status == Status::Success).count();
    let (state, after) = (ends[feroce].state()?, killed.elapsed());
    let as_expected = match (case.role, &statuses[succeeded..]) {
        (Role::Requester, [first, others @ ..]) => {
            *first == Status::RetryExceeded
                && others.iter().all(|status| *status == Status::WorkRequestFlushed)
                && statuses.len() == left
                && state == QpState::Err
        }
        (Role::Responder, rest) => rest.is_empty() && succeeded < left && state == QpState::Rts,
        (Role::Requester, []) => false,
    };
    if as_expected {
        return ends[feroce].destroy_qp();
    }
    Err(Failure(format!("{after:?} after the kill the QP is in {state:?}, with {statuses:?}")))
}

/// A follow-up case with one request between new QPs: both devices must still work after a peer was
/// killed.
fn follow_up_case(case: &Case) -> Case {
    let mut plan = Plan::new();
    plan.request(case.plan.requests[0].op, 3000);
    Case { plan, ..case.clone() }
}
