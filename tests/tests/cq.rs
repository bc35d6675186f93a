//! Completion queues in virtual time: stamps, moderation, and a new size while they are in use.

use std::os::fd::AsFd;

use feroce_engine::device::DeviceError;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Notify, SendOp, Status};
use feroce_tests::drain;
use feroce_tests::pair::Pair;

fn readable(pair: &Pair) -> bool {
    let fd = pair.cqs[0].fd();
    let mut polled = [nix::poll::PollFd::new(fd.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut polled, nix::poll::PollTimeout::ZERO).unwrap() == 1
}

/// A completion says when it happened: at the turn that took the acknowledgement, 2 us after the posting.
#[test]
fn completions_are_stamped_with_the_turns_time() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(1000);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(1000);
    let at: Vec<_> = drain(&pair.cqs[0]).iter().map(|done| done.at).collect();
    assert_eq!(at, [2_000, 1_002_000].map(Instant::from_nanos));
}

/// The core wakes for what it held back.
#[test]
fn notifications_are_held_back_for_a_time() {
    let mut pair = Pair::default();
    pair.cqs[0].moderate(3, Duration::from_micros(50));
    pair.cqs[0].request_notify(Notify::Any);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(51);
    assert!(!readable(&pair), "the completion came at 2 us");
    assert_eq!(pair.rig.next_event(), Some(Instant::from_nanos(52_000)));
    pair.run(1);
    assert!(readable(&pair));
    pair.cqs[0].request_notify(Notify::Any);
    for wr_id in 2..=4 {
        assert!(!readable(&pair));
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 4);
        pair.run(5);
    }
    assert!(readable(&pair), "three have come");
}

#[test]
fn a_queue_grows_while_it_is_used() {
    let setup = feroce_tests::pair::PairSetup { cq_depth: 4, ..Default::default() };
    let mut pair = Pair::new(&setup);
    let mut seen = Vec::new();
    for round in 0..20 {
        for n in 0..8 {
            pair.post(round * 8 + n, SendOp::Write(pair.remote(0)), 4);
        }
        pair.cqs[0].resize(8 + u32::try_from(round).unwrap() * 5).unwrap();
        pair.run(10);
        // Five of eight are taken, so that the queue fills.
        seen.extend((0..5).filter_map(|_| pair.cqs[0].poll_one()).map(|done| done.wr_id));
    }
    let refused = pair.cqs[0].resize(59);
    assert!(matches!(refused, Err(DeviceError::Busy(_))), "sixty are in it");
    pair.cqs[0].resize(60).unwrap();
    assert_eq!(pair.cqs[0].depth(), 60);
    let rest = pair.done(0);
    assert!(rest.iter().all(|(_, status)| *status == Status::Success));
    seen.extend(rest.iter().map(|(wr_id, _)| wr_id));
    assert_eq!(seen, (0..160).collect::<Vec<_>>());
    assert!(matches!(pair.cqs[0].resize(0), Err(DeviceError::Limit { .. })));
}
