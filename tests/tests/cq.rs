//! Completion queues in virtual time: timestamps, moderation, and resizing while in use.

use std::os::fd::AsFd;

use feroce_engine::device::{DeviceError, QpInit};
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Notify, RecvRequest, SendOp, Status};
use feroce_tests::drain;
use feroce_tests::pair::Pair;

fn readable(pair: &Pair) -> bool {
    let fd = pair.cqs[0].as_fd();
    let mut polled = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut polled, nix::poll::PollTimeout::ZERO).unwrap() == 1
}

/// The timestamp of a completion is the time of the turn that received the acknowledgement, 2 us
/// after posting.
#[test]
fn completions_carry_the_time_of_their_turn() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(1000);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(1000);
    let at: Vec<_> = drain(&pair.cqs[0]).iter().map(|done| done.at).collect();
    assert_eq!(at, [2_000, 1_002_000].map(Instant::from_nanos));
}

/// A moderated notification is sent when its count or its period is reached. The core wakes up at
/// the end of the period.
#[test]
fn moderation_delays_notifications() {
    let mut pair = Pair::default();
    pair.cqs[0].moderate(3, Duration::from_micros(50));
    pair.cqs[0].request_notify(Notify::Any);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(51);
    assert!(!readable(&pair), "the completion arrived at 2 us and is held back");
    assert_eq!(pair.rig.next_event(), Some(Instant::from_nanos(52_000)));
    pair.run(1);
    assert!(readable(&pair));
    pair.cqs[0].request_notify(Notify::Any);
    for wr_id in 2..=4 {
        assert!(!readable(&pair));
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 4);
        pair.run(5);
    }
    assert!(readable(&pair), "three completions have arrived");
}

#[test]
fn a_cq_is_resized_while_in_use() {
    let setup = feroce_tests::pair::PairSetup { cq_depth: 4, ..Default::default() };
    let mut pair = Pair::new(&setup);
    let mut seen = Vec::new();
    for round in 0..20 {
        for n in 0..8 {
            pair.post(round * 8 + n, SendOp::Write(pair.remote(0)), 4);
        }
        pair.cqs[0].resize(8 + u32::try_from(round).unwrap() * 5).unwrap();
        pair.run(10);
        // Five of eight completions are polled, so that the queue fills.
        seen.extend((0..5).filter_map(|_| pair.cqs[0].poll_one()).map(|done| done.wr_id));
    }
    let refused = pair.cqs[0].resize(59);
    assert!(matches!(refused, Err(DeviceError::Busy(_))), "the queue holds 60 completions");
    pair.cqs[0].resize(60).unwrap();
    assert_eq!(pair.cqs[0].depth(), 60);
    let rest = pair.done(0);
    assert!(rest.iter().all(|(_, status)| *status == Status::Success));
    seen.extend(rest.iter().map(|(wr_id, _)| wr_id));
    assert_eq!(seen, (0..160).collect::<Vec<_>>());
    assert!(matches!(pair.cqs[0].resize(0), Err(DeviceError::Limit { .. })));
}

/// Programs free what a work request refers to when they have destroyed the QP. When libfabric 1.17
/// polls a completion after that, it posts a receive to the freed endpoint.
#[test]
fn completions_of_a_destroyed_qp_are_not_polled() {
    for service in [Service::Rc, Service::Ud] {
        let mut pair = Pair::default();
        pair.post(1, SendOp::Write(pair.remote(0)), 4);
        let init = QpInit { service, ..QpInit::new(&pair.cqs[0]) };
        let mut destroyed = pair.pds[0].create_qp(&init).unwrap();
        let to_err = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        destroyed.modify(&to_err).unwrap();
        destroyed.post_recv(&RecvRequest { wr_id: 2, sges: &[] }).unwrap();
        pair.run(10);
        assert_eq!(pair.cqs[0].held(), 2, "{service:?}");
        drop(destroyed);
        assert_eq!(pair.done(0), [(1, Status::Success)], "{service:?}");
    }
}
