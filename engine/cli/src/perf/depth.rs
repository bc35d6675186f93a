//! Depths of the queues of a test: how much may be outstanding, and what memory it takes.

use feroce_engine::device::{MAX_CQE, MAX_WR};
use feroce_engine::verbs::{SendWqe, Sge};

use super::data::Layout;
use super::error::PerfError;
use super::plan::{Op, Plan};

/// Returns true if messages of a side consume receives of its peer.
pub fn consumes_receive(plan: &Plan) -> bool {
    // The arrival of WRITEs is seen by spinning on memory, or by the immediate data of the last.
    plan.op.consumes_receive() || plan.check && plan.op == Op::Write && !plan.latency
}

/// Requests of a QP that may be outstanding. With `--check`, each READ has a slot of its own until
/// it was compared.
pub fn send_depth(plan: &Plan, layout: &Layout) -> u32 {
    match plan.check && plan.op == Op::Read {
        true => plan.tx_depth.min(slots(layout)),
        false => plan.tx_depth,
    }
}

/// Slots of a QP.
fn slots(layout: &Layout) -> u32 {
    u32::try_from(layout.slots).expect("some dozens")
}

/// Number of receives kept posted: enough that a late poll does not leave the sender without one.
/// With `--check`, so few that the sender never writes to a slot before its message was compared:
/// a receive is posted again after that, and a message that finds no receive is not complete.
pub fn receive_depth(plan: &Plan, layout: &Layout) -> u32 {
    /// Receives of all QPs at which no QP gets more than four times the depth.
    const ALL: u32 = 1 << 21;
    let least = (ALL / plan.qps.max(1)).clamp(1, 64);
    let depth = (plan.tx_depth * 4).clamp(least, MAX_WR);
    match plan.op {
        _ if !consumes_receive(plan) => 0,
        _ if !plan.check => depth,
        Op::Send | Op::SendImm => depth.min(slots(layout)),
        _ => depth.min(slots(layout) / signal_interval(plan, layout) - 1),
    }
}

/// Distance of signaled requests in a send queue.
pub fn signal_interval(plan: &Plan, layout: &Layout) -> u32 {
    let group = (send_depth(plan, layout) / 4).max(1);
    match plan.op {
        // Eight groups have slots of their own, where there is room.
        Op::Write if consumes_receive(plan) => group.min((slots(layout) / 8).max(1)),
        Op::WriteImm if plan.check => 1,
        _ => group,
    }
}

/// The most completions that can wait in the CQ: one of each receive, of each signaled request in a
/// full send queue, and of the last request of a round.
pub fn completions(plan: &Plan, layout: &Layout) -> Result<u32, PerfError> {
    let interval = signal_interval(plan, layout);
    let sends = (plan.tx_depth.div_ceil(interval) + 1).min(plan.tx_depth);
    let per_qp = sends + receive_depth(plan, layout);
    let completions = u64::from(per_qp) * u64::from(plan.qps);
    u32::try_from(completions).ok().filter(|&count| count <= MAX_CQE).ok_or_else(|| {
        PerfError::Plan(format!(
            "{} QPs of depth {} need a CQ of {completions} entries, the limit is {MAX_CQE}: use \
             a smaller --tx-depth or fewer --qps",
            plan.qps, plan.tx_depth
        ))
    })
}

/// The memory that the objects of this side take, in bytes.
pub fn needed_bytes(plan: &Plan, layout: &Layout) -> u64 {
    /// Memory of a QP without its rings, with some reserve.
    const QP: u64 = 2048;
    let ring = |depth: u32, slot: usize| u64::from(depth.max(1).next_power_of_two()) * slot as u64;
    let entries = size_of::<Sge>().max(plan.inline as usize);
    let sends = ring(plan.tx_depth, size_of::<SendWqe>() + entries);
    let receives = ring(receive_depth(plan, layout), size_of::<SendWqe>() + size_of::<Sge>());
    2 * layout.bytes() as u64 + u64::from(plan.qps) * (QP + sends + receives)
}

#[cfg(test)]
mod tests {
    use feroce_engine::device::settings::Settings;

    use super::super::options::TestOptions;
    use super::*;

    #[test]
    fn a_plan_that_needs_a_larger_cq_than_there_is_is_refused() {
        let plan = |qps, tx_depth, op| {
            let options = TestOptions {
                qps: Some(qps),
                tx_depth: Some(tx_depth),
                op: Some(op),
                ..TestOptions::default()
            };
            options.plan(&Settings::default()).unwrap()
        };
        let of = |plan: &Plan| completions(plan, &Layout::new(plan));
        assert_eq!(of(&plan(1, 128, Op::Write)).unwrap(), 5);
        assert_eq!(of(&plan(1, 1, Op::Write)).unwrap(), 1);
        assert_eq!(of(&plan(100_000, 4, Op::Write)).unwrap(), 400_000);
        assert_eq!(of(&plan(100_000, 4, Op::Send)).unwrap(), 2_400_000);
        let detail = of(&plan(100_000, 128, Op::Send)).unwrap_err().to_string();
        assert!(detail.contains("CQ of 51700000 entries, the limit is 4194304"), "{detail}");
    }
}
