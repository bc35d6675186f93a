//! All cases of the rxe suite: operations, sizes, roles and faults.

use std::time::Duration;

use feroce_conform::endpoint::plan::{
    Effect, Family, Op, Plan, REQUESTER, RESPONDER, RIGHTS, SpecialEvent,
};
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::Status;
use feroce_wire::{PathMtu, Psn};

use super::case::{Case, Fault, Role};

const MTUS: [PathMtu; 2] = [PathMtu::Mtu1024, PathMtu::Mtu4096];

/// Name of a size, and its bytes for a path MTU.
type Size = (&'static str, fn(u32) -> u32);

const SIZES: [Size; 8] = [
    ("0", |_| 0),
    ("1", |_| 1),
    ("3", |_| 3),
    ("mtu-1", |mtu| mtu - 1),
    ("mtu", |mtu| mtu),
    ("mtu+1", |mtu| mtu + 1),
    ("64KiB+1", |_| (64 << 10) + 1),
    ("1MiB", |_| 1 << 20),
];

const WITH_DATA: [Op; 6] = [Op::Send, Op::SendImm, Op::SendInv, Op::Write, Op::WriteImm, Op::Read];
const ATOMICS: [Op; 3] = [Op::FetchAdd, Op::CmpSwap, Op::CmpSwapMiss];

const FAULTS: [(&str, Fault); 4] = [
    ("every-50th-lost", Fault::EveryFiftiethLost),
    ("duplicated", Fault::Duplicated),
    ("reordered", Fault::Reordered),
    ("corrupted", Fault::Corrupted),
];

/// A plan for a list of operations and roles.
struct Row {
    name: &'static str,
    ops: &'static [Op],
    roles: &'static [Role],
    plan: fn(Op, Role) -> Plan,
}

/// Special cases and error cases, over IPv4 with a path MTU of 1024.
const ROWS: [Row; 17] = [
    Row {
        name: "psn-wrap",
        ops: &[
            Op::Send,
            Op::SendImm,
            Op::SendInv,
            Op::Write,
            Op::WriteImm,
            Op::Read,
            Op::FetchAdd,
            Op::CmpSwap,
        ],
        roles: &Role::ALL,
        plan: psn_wrap,
    },
    Row {
        name: "inline",
        ops: &[Op::Send, Op::SendImm, Op::Write, Op::WriteImm],
        roles: &Role::ALL,
        plan: inline,
    },
    Row { name: "36-outstanding", ops: &[Op::Read], roles: &Role::ALL, plan: |_, _| mixed(16) },
    Row { name: "one-rd-atomic", ops: &[Op::Read], roles: &Role::ALL, plan: |_, _| mixed(1) },
    Row {
        name: "fence",
        ops: &[Op::Read, Op::FetchAdd, Op::CmpSwap],
        roles: &Role::ALL,
        plan: fence,
    },
    Row {
        name: "wrong-key",
        ops: &[Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap],
        roles: &Role::ALL,
        plan: wrong_key,
    },
    Row {
        name: "invalidated-key",
        ops: &[Op::Write, Op::Read],
        roles: &Role::ALL,
        plan: invalidated_key,
    },
    Row {
        name: "out-of-bounds",
        ops: &[Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap],
        roles: &Role::ALL,
        plan: out_of_bounds,
    },
    Row {
        name: "region-without-right",
        ops: &[Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap],
        roles: &Role::ALL,
        plan: region_without_right,
    },
    Row {
        name: "qp-without-right",
        ops: &[Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap],
        roles: &Role::ALL,
        plan: qp_without_right,
    },
    Row {
        name: "receive-too-short",
        ops: &[Op::Send, Op::SendImm],
        roles: &Role::ALL,
        plan: receive_too_short,
    },
    Row {
        name: "receive-late",
        ops: &[Op::Send, Op::SendImm, Op::SendInv, Op::WriteImm],
        roles: &Role::ALL,
        plan: receive_late,
    },
    Row {
        name: "receive-never",
        ops: &[Op::Send, Op::SendImm, Op::WriteImm],
        roles: &Role::ALL,
        plan: receive_never,
    },
    Row {
        name: "peer-qp-gone",
        ops: &[Op::Send, Op::Write, Op::Read, Op::FetchAdd],
        roles: &Role::ALL,
        plan: peer_qp_gone,
    },
    Row {
        name: "peer-killed",
        ops: &[Op::Send, Op::WriteImm],
        roles: &Role::ALL,
        plan: peer_killed,
    },
    Row { name: "psn-behind", ops: &[Op::Send], roles: &[Role::Requester], plan: psn_behind },
    Row {
        name: "burst",
        ops: &[Op::Send, Op::Write, Op::Read],
        roles: &Role::ALL,
        plan: |op, _| burst(op),
    },
];

/// Returns all cases, in the order in which they run.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mtu in MTUS {
        for family in Family::ALL {
            sizes(mtu, family, &mut cases);
        }
    }
    for row in &ROWS {
        for &op in row.ops {
            for &role in row.roles {
                let (family, mtu) = (Family::V4, PathMtu::Mtu1024);
                let name = format!("{}/{op}/{}", row.name, role_name(role));
                cases.push(Case {
                    name,
                    role,
                    family,
                    mtu,
                    fault: None,
                    plan: (row.plan)(op, role),
                });
            }
        }
    }
    for (name, fault) in FAULTS {
        faults(name, fault, &mut cases);
    }
    marked(&mut cases);
    cases
}

fn role_name(role: Role) -> &'static str {
    role.pick("feroce-requests", "rxe-requests")
}

/// Adds every operation in every size.
fn sizes(mtu: PathMtu, family: Family, cases: &mut Vec<Case>) {
    let mut add = |op: Op, size: &str, role: Role, plan: Plan| {
        let family_name = if family == Family::V4 { "v4" } else { "v6" };
        let name = format!("{op}/{size}/{mtu}/{family_name}/{}", role_name(role));
        cases.push(Case { name, role, family, mtu, fault: None, plan });
    };
    for role in Role::ALL {
        for op in WITH_DATA {
            for (name, size) in SIZES {
                add(op, name, role, one(op, size(mtu.bytes())));
            }
        }
        for op in ATOMICS {
            add(op, "8", role, one(op, 8));
        }
    }
}

/// Adds long runs of every operation over a faulty network.
fn faults(name: &str, fault: Fault, cases: &mut Vec<Case>) {
    let mut add = |op: &dyn std::fmt::Display, mtu: PathMtu, family: Family, plan: &Plan| {
        for role in Role::ALL {
            let name = format!("{name}/{op}/{mtu}/{}", role_name(role));
            let mut plan = plan.clone();
            // 0.27 s, because an emulated CPU may be descheduled that long. After eight timeouts
            // the requester gives up.
            plan.set(|settings| settings.timeout = 16);
            cases.push(Case { name, role, family, mtu, fault: Some(fault), plan });
        }
    };
    for op in [Op::Send, Op::Write, Op::WriteImm, Op::Read, Op::FetchAdd, Op::CmpSwap] {
        add(&op, PathMtu::Mtu1024, Family::V4, &burst(op));
    }
    add(&"mixed", PathMtu::Mtu1024, Family::V4, &mixed(16));
    add(&"write", PathMtu::Mtu4096, Family::V6, &burst(Op::Write));
    add(&"read", PathMtu::Mtu4096, Family::V6, &burst(Op::Read));
}

/// Adds cases in which the bridge marks the data of rxe. Feroce sends CNPs, which rxe ignores.
fn marked(cases: &mut Vec<Case>) {
    let rows =
        [(Op::Send, Role::Responder), (Op::Write, Role::Responder), (Op::Read, Role::Requester)];
    for (op, role) in rows {
        let (family, mtu, fault) = (Family::V4, PathMtu::Mtu1024, Some(Fault::Marked));
        let name = format!("marked/{op}/{}", role_name(role));
        cases.push(Case { name, role, family, mtu, fault, plan: burst(op) });
    }
}

/// Returns the length for `op`: eight for atomics, else `otherwise`.
fn bytes(op: Op, otherwise: u32) -> u32 {
    if op.is_atomic() { 8 } else { otherwise }
}

fn one(op: Op, len: u32) -> Plan {
    let mut plan = Plan::new();
    add(&mut plan, op, len);
    plan
}

/// Adds a request. Before a SEND with invalidate, adds a window and a WRITE through it.
fn add(plan: &mut Plan, op: Op, len: u32) {
    if op == Op::SendInv {
        let window = plan.region(RIGHTS, true);
        plan.request_to(Op::Write, 100, window);
    }
    plan.request(op, len);
}

fn psn_wrap(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    plan.set(|settings| settings.psn = Psn::new(0xff_fffd));
    add(&mut plan, op, bytes(op, 5000));
    for len in [2000, 1, 3000] {
        // Only one window per QP is possible here.
        plan.request(if op == Op::SendInv { Op::Send } else { op }, bytes(op, len));
    }
    plan
}

fn inline(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    for len in [0, 1, 17, 64] {
        plan.request(op, len).inline = true;
    }
    plan
}

/// 36 requests of all kinds, with at most `depth` READs and atomics outstanding.
fn mixed(depth: u8) -> Plan {
    let mut plan = Plan::new();
    plan.set(|settings| settings.depth = depth);
    for _ in 0..6 {
        plan.request(Op::Write, 3000);
        plan.request(Op::Read, 3000);
        plan.request(Op::FetchAdd, 8);
        plan.request(Op::Send, 1500);
        plan.request(Op::CmpSwap, 8);
        plan.request(Op::WriteImm, 700);
    }
    plan
}

/// Fenced requests that send the bytes which the request before them fetched.
fn fence(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    for then in [Op::Write, Op::Send, Op::WriteImm] {
        let len = bytes(op, 5000);
        let fetched = plan.request(op, len).local;
        let fenced = plan.request(then, len);
        (fenced.local, fenced.fence) = (fetched, true);
    }
    plan
}

/// A request that succeeds, one that is refused, and one that is flushed.
fn refused(op: Op, status: Status, spoil: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan::new();
    plan.request(Op::Write, 3000);
    plan.request(op, bytes(op, 3000));
    plan.refused(status);
    if let Some(receive) = plan.receives.last_mut() {
        receive.status = Some(Status::WorkRequestFlushed);
    }
    plan.flushed();
    spoil(&mut plan);
    plan
}

fn wrong_key(op: Op, _: Role) -> Plan {
    refused(op, Status::RemoteAccess, |plan| plan.requests[1].wrong_key = true)
}

fn out_of_bounds(op: Op, _: Role) -> Plan {
    refused(op, Status::RemoteAccess, |plan| {
        // 1000 bytes are inside the region; of an atomic, none.
        let inside = if op.is_atomic() { 0 } else { 1000 };
        let end = plan.regions[RESPONDER][0].len;
        plan.requests[1].remote.offset = (end - inside).next_multiple_of(8);
    })
}

/// Returns all access rights except the one that `op` needs.
fn without_right(op: Op) -> Access {
    match op {
        Op::Read => Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        Op::FetchAdd | Op::CmpSwap | Op::CmpSwapMiss => {
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
        }
        _ => Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    }
}

fn region_without_right(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    let region = plan.region(without_right(op), false);
    plan.request(Op::Write, 3000);
    plan.request_to(op, bytes(op, 3000), region);
    plan.refused(Status::RemoteAccess);
    if let Some(receive) = plan.receives.last_mut() {
        receive.status = Some(Status::WorkRequestFlushed);
    }
    plan.flushed();
    plan
}

fn qp_without_right(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    plan.settings[RESPONDER].access = without_right(op);
    plan.request(Op::Send, 3000);
    plan.request(op, bytes(op, 3000));
    plan.refused(Status::RemoteInvalidRequest);
    if op.consumes_receive() {
        plan.receives[1].status = Some(Status::WorkRequestFlushed);
    }
    plan.flushed();
    plan
}

fn invalidated_key(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    let window = plan.region(RIGHTS, true);
    plan.request_to(Op::Write, 3000, window);
    plan.request(Op::SendInv, 100);
    plan.request_to(op, 3000, window);
    plan.refused(Status::RemoteAccess);
    plan.flushed();
    plan
}

fn receive_too_short(op: Op, role: Role) -> Plan {
    let mut plan = Plan::new();
    plan.request(op, 50);
    plan.request(op, 3000);
    // rxe blames the receive and its owner, not the message.
    plan.refused(role.pick(Status::RemoteOperational, Status::RemoteInvalidRequest));
    plan.requests[1].effect = Effect::Unknown;
    plan.receives[1].len = 1500;
    plan.receives[1].status = Some(role.pick(Status::LocalQpOperation, Status::LocalLength));
    plan.request(op, 10);
    plan.refused(Status::WorkRequestFlushed);
    plan.receives[2].status = Some(Status::WorkRequestFlushed);
    plan
}

fn receive_late(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    add(&mut plan, op, 3000);
    plan.request(Op::Write, 100);
    plan.request(Op::Send, 2000);
    plan.special_event = SpecialEvent::LateReceives(Duration::from_millis(60));
    plan
}

fn receive_never(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    plan.set(|settings| settings.rnr_retry = 2);
    plan.request(op, 3000);
    plan.refused(Status::RnrRetryExceeded);
    if op == Op::WriteImm {
        plan.requests[0].effect = Effect::Unknown; // The RNR NAK is for the last packet.
    }
    plan.receives.clear();
    plan.flushed();
    plan.states[RESPONDER] = QpState::Rts;
    plan
}

fn peer_qp_gone(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    plan.set(|settings| (settings.timeout, settings.retry_cnt) = (12, 3));
    plan.request(op, bytes(op, 3000));
    plan.refused(Status::RetryExceeded);
    for receive in &mut plan.receives {
        receive.status = None;
    }
    plan.flushed();
    plan.special_event = SpecialEvent::ResponderGone;
    plan
}

fn peer_killed(op: Op, role: Role) -> Plan {
    let mut plan = Plan::new();
    // 134 ms: a guest on a busy machine may not run for a tenth of a second before it is killed.
    plan.set(|settings| (settings.timeout, settings.retry_cnt) = (15, 3));
    for _ in 0..96 {
        plan.request(op, 256 << 10);
    }
    // rxe must not finish before it is killed, however long that takes: the last requests find no
    // receive and are retried without limit.
    if role == Role::Responder {
        plan.receives.truncate(48);
    }
    plan.special_event = SpecialEvent::PeerKilled;
    plan
}

/// The responder treats the first requests as duplicates.
fn psn_behind(op: Op, _: Role) -> Plan {
    let mut plan = Plan::new();
    plan.settings[REQUESTER].timeout = 12;
    plan.settings[REQUESTER].retry_cnt = 3;
    plan.psn_ahead = 5;
    plan.request(op, 3000);
    plan.refused(Status::RetryExceeded);
    plan.receives[0].status = None;
    plan.states[RESPONDER] = QpState::Rts;
    plan.flushed();
    plan
}

/// Many requests, most with several packets: almost as many as the queues hold.
fn burst(op: Op) -> Plan {
    let mut plan = Plan::new();
    for index in 0..120 {
        plan.request(op, bytes(op, 500 + index * 37));
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_axis_is_covered() {
        let cases = cases();
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len());
        for role in Role::ALL {
            let count = cases.iter().filter(|case| case.role == role).count();
            assert!(count >= 150, "{count} cases for {role:?}");
        }
        for (_, fault) in FAULTS {
            assert!(cases.iter().any(|case| case.fault == Some(fault)));
        }
    }
}
