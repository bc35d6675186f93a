//! The endpoints' own reports.

use feroce_engine::verbs::Status;

use super::{Found, View};
use crate::inject::script::status_name;

pub(super) fn events_applied(view: &View<'_>, found: &mut Found) {
    if view.flow > 0 {
        return;
    }
    for (index, times) in view.evidence.times_applied.iter().enumerate() {
        if *times == 0 {
            let event = &view.script.events[index];
            let sentence = format!("event {} ({:?}) applied to no packet", index + 1, event.action);
            found.wrong([], sentence);
        }
    }
}

pub(super) fn completions(view: &View<'_>, found: &mut Found) {
    let Some(outcome) = view.outcome else { return };
    let plan = &outcome.plan;
    for (index, request) in plan.requests.iter().enumerate() {
        let expected = (index as u64, request.status);
        match outcome.sends.get(index) {
            Some(done) if *done == expected => {}
            Some((id, status)) => {
                let sentence = format!(
                    "request {index} should complete with {}, but {id} completes with {}",
                    status_name(request.status),
                    status_name(*status)
                );
                found.wrong([], sentence);
            }
            None => found.wrong([], format!("request {index} does not complete")),
        }
    }
    let consume = plan.requests.iter().filter(|request| request.op.consumes_receive());
    let expected = consume.filter(|request| request.status == Status::Success).count();
    let good = outcome.receives.iter().filter(|(_, status)| *status == Status::Success);
    let good: Vec<_> = good.map(|(id, _)| *id).collect();
    // The responder may have executed requests whose requester gave up.
    let max = if outcome.must_fail() { plan.receives.len() } else { expected };
    if !(expected..=max.max(expected)).contains(&good.len())
        || !good.iter().copied().eq(0..good.len() as u64)
    {
        found.wrong([], format!("the receives {good:?} complete instead of the first {expected}"));
    }
    for ((state, expected), who) in
        outcome.states.iter().zip(plan.states).zip(["requester", "responder"])
    {
        if *state != expected {
            found.wrong([], format!("the {who}'s QP is in {state:?} instead of {expected:?}"));
        }
    }
}

pub(super) fn data(view: &View<'_>, found: &mut Found) {
    let Some(outcome) = view.outcome else { return };
    outcome.wrong_bytes.iter().for_each(|wrong| found.wrong([], wrong.clone()));
}
