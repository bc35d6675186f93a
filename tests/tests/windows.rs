//! Many QPs share the window of their peer and the read window of their core: `core/peers.rs` and
//! `core/read_window.rs`.

use std::collections::BTreeSet;

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, DeviceConfig, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::wire::WireFaults;
use feroce_tests::{Rig, drain, manual_config, new_rig};
use feroce_wire::{PathMtu, Psn};

const MTU: u32 = 256;
/// Packets of each WRITE and READ.
const PACKETS: u32 = 8;
/// Packets that all QPs together may have outstanding.
const PEER_WINDOW: u32 = 128;
/// Response packets that all QPs together may have outstanding.
const READ_WINDOW: u32 = 32;

/// Many connected pairs of QPs in virtual time; the one-way delay is 10 us.
struct Many {
    rig: Rig,
    qps: [Vec<QueuePair>; 2],
    cqs: [CompletionQueue; 2],
    buffers: [Buffer; 2],
}

impl Many {
    /// `count` pairs with the local ACK timeout `timeout` (0: none).
    fn new(count: usize, timeout: u8) -> Self {
        let config = DeviceConfig {
            window: 64,
            peer_window: PEER_WINDOW,
            read_window: READ_WINDOW,
            max_qp: 512,
            ..manual_config(1)
        };
        let rig = new_rig(&config, Duration::from_micros(10));
        let pds = [0, 1].map(|end: usize| rig.devices[end].alloc_pd());
        let cqs = [0, 1].map(|end: usize| rig.devices[end].create_cq(8192).expect("a CQ"));
        let buffers =
            [0, 1].map(|end: usize| pds[end].alloc_buffer(1 << 16, Access::ALL).expect("a buffer"));
        let options = ConnectOptions {
            path_mtu: PathMtu::from_bytes(MTU),
            timeout,
            ..ConnectOptions::default()
        };
        let mut qps = [Vec::new(), Vec::new()];
        for _ in 0..count {
            let inits = [0, 1].map(|end: usize| QpInit {
                max_send_wr: 64,
                max_recv_wr: 1,
                ..QpInit::new(&cqs[end])
            });
            let pair = rig.connect(
                [&pds[0], &pds[1]],
                [&inits[0], &inits[1]],
                [Psn::new(0), Psn::new(0)],
                &options,
            );
            for (end, qp) in pair.into_iter().enumerate() {
                qps[end].push(qp);
            }
        }
        Self { rig, qps, cqs, buffers }
    }

    /// Posts `count` WRITEs at each QP of `end`.
    fn post(&mut self, end: usize, count: u64) {
        self.post_each(end, count, SendOp::Write);
    }

    /// Posts `count` requests of [`PACKETS`] packets at each QP of `end`.
    fn post_each(&mut self, end: usize, count: u64, op: fn(RemoteAddr) -> SendOp) {
        let region = self.buffers[1 - end].region();
        let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
        for (index, qp) in self.qps[end].iter_mut().enumerate() {
            for _ in 0..count {
                let sge = self.buffers[end].region().sge(0, PACKETS * MTU);
                let (op, data) = (op(remote), Data::Sges(std::slice::from_ref(&sge)));
                let (wr_id, flags) = (index as u64, SendFlags::SIGNALED);
                qp.post_send(&SendRequest { wr_id, op, data, flags }).expect("room");
            }
        }
    }

    /// Runs until nothing more happens before `until`. Returns the largest number of frames that
    /// were on the wire, and the numbers of the QPs of `end` in the order of their completions.
    fn run(&mut self, end: usize, until: Instant) -> (usize, Vec<u64>) {
        let (mut most, mut completed) = (0, Vec::new());
        while self.rig.step(until) {
            most = most.max(self.rig.wire.in_flight());
            for completion in drain(&self.cqs[end]) {
                assert!(completion.is_success(), "{completion:?}");
                completed.push(completion.wr_id);
            }
        }
        (most, completed)
    }

    fn count(&self, end: usize, counter: Counter) -> u64 {
        self.rig.devices[end].counter(counter)
    }
}

/// What takes longer was served only because a stall was noticed.
const BEFORE_STALL: Instant = Instant::from_nanos(9_000_000);

fn seconds(count: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(count)
}

#[test]
fn all_qps_together_stay_within_the_window_of_their_peer() {
    let mut many = Many::new(40, 14);
    many.post(0, 16); // 40 x 16 x 8 packets; the windows of the QPs would allow 40 x 64.
    let (most, completed) = many.run(0, seconds(10));
    assert_eq!(completed.len(), 40 * 16);
    // The ACKs of the peer are on the wire, too.
    assert!(most <= 2 * PEER_WINDOW as usize, "{most} frames on the wire");
    assert_eq!(many.count(0, Counter::RetransmittedPackets), 0);
    assert_eq!(many.count(0, Counter::LocalAckTimeoutErr), 0);
}

#[test]
fn qps_that_wait_take_turns() {
    let mut many = Many::new(40, 14);
    many.post(0, 16);
    let (_, completed) = many.run(0, seconds(10));
    let half = completed.len() / 2;
    for qp in 0..40 {
        let done = completed[..half].iter().filter(|&&other| other == qp).count();
        assert!(done >= 4, "QP {qp} has {done} of {half} completions in the first half");
    }
}

#[test]
fn both_ends_send_and_neither_waits_for_the_acknowledgements_of_the_other() {
    let mut many = Many::new(40, 14);
    many.post(0, 16);
    many.post(1, 16);
    let (_, completed) = many.run(0, seconds(10));
    assert_eq!(completed.len(), 40 * 16);
    assert_eq!(drain(&many.cqs[1]).len(), 40 * 16);
    assert_eq!(many.count(0, Counter::LocalAckTimeoutErr), 0);
}

#[test]
fn losses_delay_but_do_not_stop_the_qps_that_wait() {
    let mut many = Many::new(40, 14);
    many.rig.wire.set_faults(WireFaults { loss: 20_000, ..WireFaults::default() }, 7);
    many.post(0, 16);
    let (_, completed) = many.run(0, seconds(60));
    assert_eq!(completed.len(), 40 * 16);
    assert!(many.count(0, Counter::RetransmittedPackets) > 0);
}

#[test]
fn a_qp_that_goes_gives_its_share_back() {
    let mut many = Many::new(40, 14);
    many.post(0, 16);
    many.rig.settle(); // The first QPs have the whole window outstanding.
    drop(many.qps[0].drain(..20));
    let (_, completed) = many.run(0, seconds(10));
    let of_the_rest = completed.iter().filter(|&&qp| qp >= 20).count();
    assert_eq!(of_the_rest, 20 * 16);
}

#[test]
fn qps_whose_packets_are_never_acknowledged_do_not_stop_the_others() {
    let mut many = Many::new(40, 0);
    // The wire loses what the first two QPs send. They have the whole window, and without a timeout
    // they wait forever.
    many.rig.wire.set_faults(WireFaults { loss: 1_000_000, ..WireFaults::default() }, 7);
    many.post(0, 16);
    many.rig.settle();
    many.rig.wire.set_faults(WireFaults::default(), 7);
    let (_, completed) = many.run(0, seconds(10));
    assert_eq!(completed.len(), 38 * 16);
}

#[test]
fn a_dead_peer_ends_every_qp_with_an_error() {
    let mut many = Many::new(40, 14);
    many.rig.wire.set_faults(WireFaults { loss: 1_000_000, ..WireFaults::default() }, 7);
    many.post(0, 1);
    while many.rig.step(seconds(100)) {}
    let completions = drain(&many.cqs[0]);
    assert_eq!(completions.len(), 40);
    assert!(completions.iter().all(|completion| !completion.is_success()));
}

#[test]
fn the_responses_of_all_qps_together_fit_the_read_window() {
    let mut many = Many::new(40, 14);
    many.post_each(0, 4, SendOp::Read); // 40 x 4 x 8 response packets.
    let (most, completed) = many.run(0, BEFORE_STALL);
    // QPs that wait take turns.
    let firsts: BTreeSet<_> = completed[..80].iter().collect();
    assert_eq!((completed.len(), firsts.len()), (40 * 4, 40));
    assert!(most <= READ_WINDOW as usize, "{most} frames on the wire");
    for counter in [Counter::RetransmittedPackets, Counter::LocalAckTimeoutErr] {
        assert_eq!(many.count(0, counter), 0, "{counter:?}");
    }
}

#[test]
fn reads_complete_although_responses_are_lost() {
    let mut many = Many::new(40, 14);
    many.rig.wire.set_faults(WireFaults { loss: 20_000, ..WireFaults::default() }, 7);
    many.post_each(0, 16, SendOp::Read);
    let (_, completed) = many.run(0, seconds(60));
    assert_eq!(completed.len(), 40 * 16);
    assert!(many.count(0, Counter::RetransmittedPackets) > 0);
}

#[test]
fn reads_that_are_never_responded_to_do_not_stop_other_qps() {
    let mut many = Many::new(40, 0);
    many.rig.wire.set_faults(WireFaults { loss: 1_000_000, ..WireFaults::default() }, 7);
    many.post_each(0, 4, SendOp::Read);
    many.rig.settle(); // The first QPs have the whole read window.
    many.rig.wire.set_faults(WireFaults::default(), 7);
    let (_, completed) = many.run(0, seconds(10));
    let stopped = READ_WINDOW / PACKETS / 4;
    assert_eq!(completed.len(), (40 - stopped as usize) * 4);
}

#[test]
fn qps_that_go_leave_the_read_window_to_others() {
    let mut many = Many::new(40, 14);
    many.post_each(0, 4, SendOp::Read);
    many.rig.settle();
    drop(many.qps[0].drain(..20));
    let (_, completed) = many.run(0, BEFORE_STALL);
    assert_eq!(completed.iter().filter(|&&qp| qp >= 20).count(), 20 * 4);
}

#[test]
fn both_ends_read_and_both_make_progress() {
    let mut many = Many::new(40, 14);
    for end in [0, 1] {
        many.post_each(end, 16, SendOp::Read);
    }
    let mut done = [0, 0];
    while done[0] < 40 * 8 && many.rig.step(BEFORE_STALL) {
        for (count, cq) in done.iter_mut().zip(&many.cqs) {
            *count += drain(cq).len();
        }
    }
    assert!(done[0] >= 40 * 8 && done[1] >= 40 * 4, "{done:?}");
}
