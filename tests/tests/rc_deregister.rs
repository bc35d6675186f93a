//! Local regions that are deregistered while a list of requests is sent: every request completes,
//! even without a local ACK timeout.

use feroce_engine::device::Buffer;
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{SendFlags, SendOp, Sge, Status};
use feroce_tests::pair::{Pair, PairSetup};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Number of random lists.
const SCENARIOS: u64 = 500;

fn without_timeout() -> Pair {
    Pair::new(&PairSetup::with(|options| options.timeout = 0))
}

/// Posts sixteen packets, of which the last ten have no AckReq, then a WRITE from `region`. One
/// turn sends sixteen packets.
fn send_quantum_before(pair: &mut Pair, region: &Buffer) {
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.post(2, SendOp::Read(pair.remote(0)), 4);
    pair.post(3, SendOp::Write(pair.remote(0)), 10 * 256);
    let sges = [region.region().sge(0, 4)];
    pair.post_sges(4, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    pair.rig.devices[0].turn(pair.rig.now);
}

/// The region of the next request is deregistered after the packet before it was sent without
/// AckReq. The packet is sent again and requests the acknowledgement.
#[test]
fn a_region_deregistered_between_two_requests_ends_the_list() {
    let mut pair = without_timeout();
    let region = pair.pds[0].alloc_buffer(4096, Access::ALL).unwrap();
    send_quantum_before(&mut pair, &region);
    drop(region);
    pair.run(20);
    let packets = pair.packets();
    assert_eq!(packets[15..17], ["> Write Last 115", "> Write Last 115 A"]);
    let ok = Status::Success;
    let expected = [(1, ok), (2, ok), (3, ok), (4, Status::LocalProtection)];
    assert_eq!(pair.done(0), expected);
    assert_eq!(pair.state(0), QpState::Err);
}

/// The region of a whole list is deregistered. Nothing can be sent again: the oldest incomplete
/// request fails, the others are flushed.
#[test]
fn a_region_deregistered_under_a_list_fails_the_oldest_request() {
    let mut pair = without_timeout();
    let region = pair.pds[0].alloc_buffer(4096, Access::ALL).unwrap();
    let sges = [region.region().sge(0, 8)];
    // The READ has a response; the fifteen WRITEs after it, in the same turn, have no AckReq.
    pair.post(1, SendOp::Read(pair.remote(0)), 4);
    for wr_id in 2..=20 {
        pair.post_sges(wr_id, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    }
    pair.rig.devices[0].turn(pair.rig.now);
    drop(region);
    pair.run(20);
    let (ok, failed, flushed) =
        (Status::Success, Status::LocalProtection, Status::WorkRequestFlushed);
    let mut expected = vec![(1, ok), (2, failed)];
    expected.extend((3..=20).map(|wr_id| (wr_id, flushed)));
    assert_eq!(pair.done(0), expected);
}

/// The packet before the failing request cannot be sent again either, but an earlier one can: its
/// acknowledgement covers both.
#[test]
fn an_earlier_packet_requests_the_acknowledgement_if_the_last_cannot() {
    let mut pair = without_timeout();
    let region = pair.pds[0].alloc_buffer(4096, Access::ALL).unwrap();
    pair.post(1, SendOp::Read(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(0)), 14 * 256);
    let sges = [region.region().sge(0, 4)];
    pair.post_sges(3, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    pair.post_sges(4, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    pair.rig.devices[0].turn(pair.rig.now);
    drop(region);
    pair.run(20);
    let packets = pair.packets();
    assert_eq!(packets[15..17], ["> Write Only 115 at 0 len 4", "> Write Last 114 A"]);
    let ok = Status::Success;
    assert_eq!(pair.done(0), [(1, ok), (2, ok), (3, ok), (4, Status::LocalProtection)]);
}

/// A request fails in its middle, behind a request without AckReq.
#[test]
fn a_region_deregistered_in_the_middle_of_a_request_ends_the_list() {
    let mut pair = without_timeout();
    let region = pair.pds[0].alloc_buffer(4096, Access::ALL).unwrap();
    pair.post(1, SendOp::Read(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(0)), 12 * 256);
    // Sent from two regions, of which the second is deregistered.
    let sges: [Sge; 2] = [pair.buffers[0].region().sge(0, 3 * 256), region.region().sge(0, 512)];
    pair.post_sges(3, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
    pair.rig.devices[0].turn(pair.rig.now);
    drop(region);
    pair.run(20);
    let ok = Status::Success;
    assert_eq!(pair.done(0), [(1, ok), (2, ok), (3, Status::LocalProtection)]);
    let packets = pair.packets();
    assert_eq!(packets[15..17], ["> Write Middle 115", "> Write Middle 115 A"]);
}

/// Lists of requests from several regions; the regions are deregistered at random times. Every
/// request completes, in order, and only errors that the deregistration explains appear.
#[test]
fn random_lists_complete_whatever_is_deregistered() {
    for seed in 0..SCENARIOS {
        let mut bits = Xoshiro256StarStar::seed_from_u64(seed);
        let mut below = |limit: u64| bits.next_u64() % limit;
        let mut pair = without_timeout();
        let mut regions: Vec<Option<Buffer>> =
            (0..3).map(|_| pair.pds[0].alloc_buffer(8192, Access::ALL).ok()).collect();
        let count = 5 + below(35);
        for wr_id in 0..count {
            let region = regions[usize::try_from(below(3)).unwrap()].as_ref().unwrap();
            let sges = [region.region().sge(0, 1 + u32::try_from(below(1500)).unwrap())];
            let op = match below(8) {
                0 => SendOp::Read(pair.remote(0)),
                _ => SendOp::Write(pair.remote(0)),
            };
            let flags = if below(10) == 0 { SIGNALED | SendFlags::FENCE } else { SIGNALED };
            pair.post_sges(wr_id, op, &sges, flags);
        }
        for region in &mut regions {
            for _ in 0..below(4) {
                pair.rig.devices[0].turn(pair.rig.now);
            }
            if below(10) < 7 {
                *region = None;
            }
            if below(2) == 0 {
                pair.run(below(4));
            }
        }
        pair.run(1000);
        let done = pair.done(0);
        let ids: Vec<u64> = done.iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(ids, (0..count).collect::<Vec<_>>(), "seed {seed}: {done:?}");
        let bad = done.iter().find(|(_, status)| *status != Status::Success);
        let is_explained = bad.is_none_or(|(_, status)| *status == Status::LocalProtection);
        assert!(is_explained, "seed {seed}: {bad:?}");
        assert!(bad.is_none() || regions.iter().any(Option::is_none), "seed {seed}");
    }
}
