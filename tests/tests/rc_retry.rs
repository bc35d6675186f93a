//! The RC service under packet loss, as traces: sequence errors, timeouts, lost responses, receiver
//! not ready.

use feroce_engine::counters::Counter;
use feroce_engine::device::DeviceConfig;
use feroce_engine::qp::QpState;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{SendFlags, SendOp, Status};
use feroce_tests::drain;
use feroce_tests::pair::{Crafted, Pair, PairSetup};
use feroce_tests::wire::WireFaults;
use feroce_wire::{Aeth, AtomicEth, Msn, Opcode, RnrTimer, Syndrome};

/// 4.096 us * 2^10, the local ACK timeout of a pair.
const TIMEOUT_NANOS: u64 = 4_194_304;

#[test]
fn one_nak_per_gap_and_retransmission_starts_at_the_lost_packet() {
    let mut pair = Pair::default();
    pair.lose(0, 102, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 6 * 256);
    pair.run(100);
    let expected = [
        "0 > Write First 100 at 0 len 1536",
        "0 > Write Middle 101",
        "0 > Write Middle 102",
        "0 > Write Middle 103",
        "0 > Write Middle 104",
        "0 > Write Last 105 A",
        "1 < Acknowledge 102 nak psn-sequence msn 0",
        "2 > Write Middle 102",
        "2 > Write Middle 103",
        "2 > Write Middle 104",
        "2 > Write Last 105 A",
        "3 < Acknowledge 105 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let requester = [(Counter::PacketSeqErr, 1), (Counter::RetransmittedPackets, 4)];
    assert_eq!(pair.counters(0), requester);
    assert_eq!(pair.counters(1), [(Counter::OutOfSequence, 3), (Counter::RxWriteRequests, 6)]);
}

#[test]
fn a_second_gap_gets_its_own_nak() {
    let mut pair = Pair::default();
    pair.lose_all(&[(0, 101, 1), (0, 103, 2)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.run(100);
    let expected = [
        "0 > Write First 100 at 0 len 1280",
        "0 > Write Middle 101",
        "0 > Write Middle 102",
        "0 > Write Middle 103",
        "0 > Write Last 104 A",
        "1 < Acknowledge 101 nak psn-sequence msn 0",
        "2 > Write Middle 101",
        "2 > Write Middle 102",
        "2 > Write Middle 103",
        "2 > Write Last 104 A",
        "3 < Acknowledge 103 nak psn-sequence msn 0",
        "4 > Write Middle 103",
        "4 > Write Last 104 A",
        "5 < Acknowledge 104 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn a_lost_ack_costs_one_timeout_and_duplicates_are_not_executed() {
    let mut pair = Pair::default();
    pair.lose(1, 101, 1);
    for wr_id in 1..=3 {
        pair.post_recv(wr_id, 100);
    }
    pair.post(1, SendOp::Send, 10);
    pair.post(2, SendOp::Send, 20);
    pair.run(5000);
    let expected = [
        "0 > Send Only 100",
        "0 > Send Only 101 A",
        "1 < Acknowledge 101 ack msn 2",
        "4194.304 > Send Only 100 A",
        "4194.304 > Send Only 101 A",
        "4195.304 < Acknowledge 101 ack msn 2",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.done(1), [(1, Status::Success), (2, Status::Success)]);
    let requester = [(Counter::LocalAckTimeoutErr, 1), (Counter::RetransmittedPackets, 2)];
    assert_eq!(pair.counters(0), requester);
    assert_eq!(pair.counters(1), [(Counter::DuplicateRequest, 2)]);
}

#[test]
fn the_ack_of_a_duplicate_carries_the_newest_psn() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 3 * 256);
    pair.run(10);
    pair.trace();
    pair.inject(&Crafted::new(Opcode::RC_WRITE_ONLY, 100, &[7; 4]).reth(pair.remote(0), 4));
    pair.run(10);
    assert_eq!(pair.packets(), ["< Acknowledge 102 ack msn 1"]);
    assert_ne!(pair.buffers[1].load_byte(0), 7, "written again");
}

/// rxe mistakes an ACK with the PSN of an atomic for the response of the atomic, without its value.
/// Seen in `every-50th-lost/mixed` of `scripts/rxe.sh`.
#[test]
fn the_ack_of_a_duplicate_never_has_the_psn_of_an_atomic() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.post(2, SendOp::FetchAdd { remote: pair.remote(512), add: 1 }, 8);
    pair.run(10);
    pair.trace();
    pair.inject(&Crafted::new(Opcode::RC_WRITE_ONLY, 100, &[7; 4]).reth(pair.remote(0), 4));
    pair.inject(&fetch_add(&pair, 101));
    pair.run(10);
    assert_eq!(
        pair.packets(),
        ["< Acknowledge 100 ack msn 2", "< Atomic Acknowledge 101 ack msn 2"]
    );
}

/// The local ACK timeout is exactly 4.096 us * 2^n.
/// C9-141.
#[test]
fn the_ack_timeout_is_exact_for_every_code() {
    for (code, micros) in [(1, "8.192"), (4, "65.536"), (14, "67108.864"), (18, "1073741.824")] {
        let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = code));
        pair.lose(0, 100, 1);
        pair.post(1, SendOp::Write(pair.remote(0)), 4);
        pair.run(1_073_800);
        let expected = [
            "0 > Write Only 100 A at 0 len 4".to_owned(),
            format!("{micros} > Write Only 100 A at 0 len 4"),
        ];
        assert_eq!(pair.trace()[..2], expected);
        assert_eq!(pair.done(0), [(1, Status::Success)]);
    }
}

/// A pair with the default minimum of timeouts, whose QPs ask for 1 ms.
fn impatient() -> Pair {
    let mut setup = PairSetup::with(|options| options.timeout = 8);
    setup.config.min_ack_timeout = DeviceConfig::default().min_ack_timeout;
    Pair::new(&setup)
}

#[test]
fn a_peer_that_does_not_run_for_20_ms_is_no_error_even_with_a_timeout_of_1_ms() {
    let mut pair = impatient();
    pair.rig.wire.set_faults(WireFaults { loss: 1_000_000, ..WireFaults::default() }, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(20_000);
    pair.rig.wire.set_faults(WireFaults::default(), 1);
    pair.run(100_000);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let again = "8388.608 > Write Only 100 A at 0 len 4".to_owned();
    assert_eq!(pair.trace()[1], again);
}

/// Packet 102 is lost twice. Its second loss shows after 1 ms, not after 8.4 ms.
#[test]
fn a_packet_that_is_lost_again_after_a_nak_is_repeated_early() {
    let mut pair = impatient();
    pair.lose(0, 102, 2);
    pair.post(1, SendOp::Write(pair.remote(0)), 4 * 256);
    pair.run(2000);
    let expected = [
        "1 < Acknowledge 102 nak psn-sequence msn 0",
        "2 > Write Middle 102",
        "2 > Write Last 103 A",
        "1002 > Write Middle 102",
        "1002 > Write Last 103 A",
        "1003 < Acknowledge 103 ack msn 1",
    ];
    assert_eq!(pair.trace()[4..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.rig.devices[0].counter(Counter::LocalAckTimeoutErr), 0, "no retry");
}

/// The path has lost a packet shortly before, and loses a NAK now.
#[test]
fn a_lost_nak_on_a_lossy_path_costs_2_ms() {
    let mut pair = impatient();
    pair.lose_all(&[(0, 100, 1), (0, 102, 1), (1, 102, 1)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 2 * 256);
    pair.run(50);
    pair.trace();
    pair.post(2, SendOp::Write(pair.remote(0)), 2 * 256);
    pair.run(3000);
    let expected = [
        "50 > Write First 102 at 0 len 512",
        "50 > Write Last 103 A",
        "51 < Acknowledge 102 nak psn-sequence msn 1",
        "2050 > Write First 102 at 0 len 512",
        "2050 > Write Last 103 A",
        "2051 < Acknowledge 103 ack msn 2",
    ];
    assert_eq!(pair.trace(), expected);
}

/// The peer dies after its NAK: early timeouts do not keep the QP from giving up.
#[test]
fn a_peer_that_dies_after_a_nak_ends_the_retries() {
    let mut pair = impatient();
    pair.lose(0, 102, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4 * 256);
    pair.run(1);
    pair.run(1);
    pair.rig.wire.set_faults(WireFaults { loss: 1_000_000, ..WireFaults::default() }, 1);
    pair.run(200_000);
    assert_eq!(pair.done(0), [(1, Status::RetryExceeded)]);
}

#[test]
fn an_acknowledgement_that_arrived_while_the_core_did_not_run_is_in_time() {
    for away in [9, 50].map(Duration::from_millis) {
        let mut pair = impatient();
        pair.post(1, SendOp::Write(pair.remote(0)), 4);
        for end in [0, 1, 1] {
            pair.rig.turn_and_carry(end);
        }
        // The acknowledgement is in the receive ring.
        pair.rig.now += away;
        pair.rig.settle();
        assert_eq!(pair.done(0), [(1, Status::Success)]);
        assert_eq!(pair.rig.devices[0].counter(Counter::LocalAckTimeoutErr), 0);
        assert_eq!(pair.packets().len(), 2, "nothing was sent again");
    }
}

#[test]
fn without_a_timeout_nothing_is_retransmitted() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = 0));
    pair.lose(0, 100, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(10_000_000);
    assert_eq!(pair.trace(), ["0 > Write Only 100 A at 0 len 4"]);
    assert_eq!(pair.done(0), []);
}

#[test]
fn a_lost_read_response_is_an_implied_nak() {
    let mut pair = Pair::default();
    let data: Vec<u8> = (0..1280).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    pair.buffers[1].write(0, &data);
    pair.lose(1, 102, 1);
    pair.post(1, SendOp::Read(pair.remote(0)), 1280);
    pair.run(100);
    let expected = [
        "0 > Read Request 100 A at 0 len 1280",
        "1 < Read Response First 100 ack msn 1",
        "1 < Read Response Middle 101",
        "1 < Read Response Middle 102",
        "1 < Read Response Middle 103",
        "1 < Read Response Last 104 ack msn 1",
        "2 > Read Request 102 A at 512 len 768",
        "3 < Read Response First 102 ack msn 1",
        "3 < Read Response Middle 103",
        "3 < Read Response Last 104 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let mut got = vec![0; 1280];
    pair.buffers[0].read(0, &mut got);
    assert_eq!(got, data);
    let requester = [(Counter::ImpliedNakSeqErr, 1), (Counter::RetransmittedPackets, 1)];
    assert_eq!(pair.counters(0), requester);
    assert_eq!(pair.counters(1), [(Counter::DuplicateRequest, 1), (Counter::RxReadRequests, 1)]);
}

#[test]
fn a_lost_last_read_response_costs_one_timeout() {
    let mut pair = Pair::default();
    pair.lose(1, 101, 1);
    pair.post(1, SendOp::Read(pair.remote(0)), 300);
    pair.run(5000);
    let expected = [
        "0 > Read Request 100 A at 0 len 300",
        "1 < Read Response First 100 ack msn 1",
        "1 < Read Response Last 101 ack msn 1",
        "4196.304 > Read Request 101 A at 256 len 44",
        "4197.304 < Read Response Only 101 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// The ACK of a later request arrives, but the READ response was lost.
#[test]
fn an_ack_after_a_lost_read_response_is_an_implied_nak() {
    let mut pair = Pair::default();
    pair.lose(1, 100, 1);
    pair.post(1, SendOp::Read(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(8)), 4);
    pair.run(100);
    let expected = [
        "0 > Read Request 100 A at 0 len 4",
        "0 > Write Only 101 A at 8 len 4",
        "1 < Read Response Only 100 ack msn 2",
        "1 < Acknowledge 101 ack msn 2",
        "2 > Read Request 100 A at 0 len 4",
        "2 > Write Only 101 A at 8 len 4",
        "3 < Read Response Only 100 ack msn 2",
        "3 < Acknowledge 101 ack msn 2",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
    let requester = [(Counter::ImpliedNakSeqErr, 1), (Counter::RetransmittedPackets, 2)];
    assert_eq!(pair.counters(0), requester);
}

#[test]
fn a_lost_atomic_response_is_replayed_and_the_atomic_executed_once() {
    let mut pair = Pair::default();
    pair.buffers[1].store_word(0, 40);
    pair.lose(1, 100, 1);
    pair.post(1, SendOp::FetchAdd { remote: pair.remote(0), add: 2 }, 8);
    pair.run(5000);
    let expected = [
        "0 > Fetch Add 100 A",
        "1 < Atomic Acknowledge 100 ack msn 1",
        "4194.304 > Fetch Add 100 A",
        "4195.304 < Atomic Acknowledge 100 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!((pair.buffers[0].load_word(0), pair.buffers[1].load_word(0)), (40, 42));
    assert_eq!(pair.counters(1), [(Counter::DuplicateRequest, 1), (Counter::RxAtomicRequests, 1)]);
}

fn fetch_add(pair: &Pair, psn: u32) -> Crafted<'static> {
    let mut crafted = Crafted::new(Opcode::RC_FETCH_ADD, psn, &[]);
    let remote = pair.remote(0);
    let (va, rkey) = (remote.addr, remote.rkey);
    crafted.ext.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 });
    crafted
}

#[test]
fn a_duplicate_atomic_whose_result_is_no_longer_stored_is_dropped() {
    let mut pair = Pair::default();
    for wr_id in 0..17 {
        pair.post(wr_id, SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, 8);
    }
    pair.run(100);
    assert_eq!(pair.done(0).len(), 17);
    pair.trace();
    // Sixteen results are kept, those of PSN 101 to 116.
    for (psn, answers) in [(100, 0), (101, 1), (116, 1)] {
        pair.inject(&fetch_add(&pair, psn));
        pair.run(10);
        assert_eq!(pair.packets().len(), answers, "PSN {psn}");
    }
    assert_eq!(pair.buffers[1].load_word(0), 17);
    assert_eq!(pair.state(1), QpState::Rts);
    let responder = [(Counter::DuplicateRequest, 3), (Counter::RxAtomicRequests, 17)];
    assert_eq!(pair.counters(1), responder);
}

#[test]
fn retry_cnt_is_the_number_of_retries() {
    for retries in [0, 3, 7] {
        let mut pair = Pair::new(&PairSetup::with(|options| options.retry_cnt = retries));
        pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
        for wr_id in 1..=3 {
            pair.post_flagged(wr_id, SendOp::Write(pair.remote(0)), 4, SendFlags::NONE);
        }
        let sent = u64::from(retries) + 1;
        pair.run(sent * TIMEOUT_NANOS / 1000 - 1);
        assert_eq!(pair.done(0), [], "not before the last timeout");
        pair.run(2);
        let failed = Status::WorkRequestFlushed;
        assert_eq!(pair.done(0), [(1, Status::RetryExceeded), (2, failed), (3, failed)]);
        let firsts = pair.packets().iter().filter(|line| line.contains("> Write Only 100")).count();
        assert_eq!(firsts as u64, sent);
        assert_eq!(pair.state(0), QpState::Err);
        let counters = pair.counters(0);
        assert!(counters.contains(&(Counter::LocalAckTimeoutErr, sent)));
        assert!(counters.contains(&(Counter::ReqCqeError, 1)));
        assert!(counters.contains(&(Counter::ReqCqeFlushError, 2)));
    }
}

/// Returns a pair on which end 0 writes 300 packets, more than the window, and all frames are lost.
fn write_without_responses() -> Pair {
    let mut pair = Pair::new(&PairSetup { buffer: 300 * 256, ..PairSetup::default() });
    pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
    pair.post(1, SendOp::Write(pair.remote(0)), 300 * 256);
    pair
}

/// Returns the number of packets in each burst of end 0.
fn bursts(pair: &mut Pair) -> Vec<usize> {
    let lines = pair.trace();
    let sent: Vec<_> = lines.iter().filter_map(|line| line.split_once(" > ")).collect();
    sent.chunk_by(|(at, _), (next, _)| at == next).map(<[_]>::len).collect()
}

/// Seen with rxe in a guest: 2300 packets were queued before it, nine times the window, and the
/// requester gave up while rxe processed them.
#[test]
fn each_timeout_halves_the_retransmitted_packets() {
    let mut pair = write_without_responses();
    pair.run(7 * TIMEOUT_NANOS / 1000 + 1);
    assert_eq!(bursts(&mut pair), [256, 128, 64, 32, 16, 16, 16, 16]);
}

#[test]
fn a_response_restores_the_whole_window() {
    let mut pair = write_without_responses();
    pair.run(3 * TIMEOUT_NANOS / 1000 - 1);
    bursts(&mut pair);
    pair.rig.wire.set_filter(None);
    pair.run(100);
    assert_eq!(bursts(&mut pair), [32, 256, 12]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// The same for READs, from the second retry on: they cause as many response packets.
#[test]
fn each_timeout_from_the_second_on_halves_the_retransmitted_reads() {
    let mut pair = Pair::default();
    pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
    for wr_id in 0..16 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 4);
    }
    pair.run(3 * TIMEOUT_NANOS / 1000 - 1);
    assert_eq!(bursts(&mut pair), [16, 16, 8]);
    pair.rig.wire.set_filter(None);
    pair.run(TIMEOUT_NANOS / 1000);
    assert_eq!(bursts(&mut pair), [4, 12], "after a response all READs are sent");
    assert_eq!(pair.done(0).len(), 16);
}

/// Seen with rxe in a guest behind a bridge that dropped every 50th frame: 16 READs of two packets
/// cause 50 frames per retry, so every retry lost the same response until the retries ran out.
#[test]
fn periodic_losses_do_not_use_up_the_retries() {
    for period in 20..=70 {
        let mut pair = Pair::default();
        let mut count = 0_u32;
        pair.rig.wire.set_filter(Some(Box::new(move |_, _, _| {
            count += 1;
            count.is_multiple_of(period)
        })));
        for wr_id in 0..64 {
            pair.post(wr_id, SendOp::Read(pair.remote(0)), 2 * 256);
        }
        pair.run(200_000);
        let done = pair.done(0);
        assert_eq!(done.len(), 64, "one of {period} is lost");
        let failed = done.iter().find(|(_, status)| *status != Status::Success);
        assert_eq!(failed, None, "one of {period} is lost");
    }
}

/// A NAK uses up a retry like a timeout does.
#[test]
fn a_nak_without_retries_left_ends_the_connection() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.retry_cnt = 0));
    pair.lose(0, 101, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 3 * 256);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::RetryExceeded)]);
    assert_eq!(pair.packets().len(), 4, "three packets and the NAK");
}

#[test]
fn a_lost_nak_costs_one_timeout() {
    let mut pair = Pair::default();
    pair.lose_all(&[(0, 101, 1), (1, 101, 1)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 3 * 256);
    pair.run(5000);
    let expected = [
        "0 > Write First 100 at 0 len 768",
        "0 > Write Middle 101",
        "0 > Write Last 102 A",
        "1 < Acknowledge 101 nak psn-sequence msn 0",
        "4194.304 > Write First 100 at 0 len 768",
        "4194.304 > Write Middle 101",
        "4194.304 > Write Last 102 A",
        "4195.304 < Acknowledge 102 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
}

/// Responses to nothing outstanding: older PSNs, PSNs not sent yet, and a repeated NAK.
#[test]
fn stale_and_unexpected_acks_and_naks_are_ignored() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    pair.rig.wire.set_filter(Some(Box::new(|from, _, _| from == 0)));
    pair.post(2, SendOp::Write(pair.remote(0)), 4 * 256);
    pair.run(1);
    pair.trace();
    let response = |psn, syndrome| {
        let mut crafted = Crafted::new(Opcode::RC_ACKNOWLEDGE, psn, &[]);
        crafted.ext.aeth = Some(Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(1) });
        crafted
    };
    let ignored =
        [(99, 0x1f), (100, 0x60), (100, 0x62), (105, 0x1f), (106, 0x62), (200, 0x60), (101, 0x7f)];
    for (psn, syndrome) in ignored {
        pair.inject_response(&response(psn, syndrome));
        pair.run(5);
        assert_eq!(pair.trace().len(), 0, "{psn} {syndrome:#x}");
        assert_eq!((pair.done(0).len(), pair.state(0)), (usize::from(psn == 99), QpState::Rts));
    }
    pair.inject_response(&response(102, 0x60));
    pair.run(5);
    assert_eq!(pair.packets(), ["> Write Middle 102", "> Write Middle 103", "> Write Last 104 A"]);
    pair.inject_response(&response(102, 0x60));
    pair.run(5);
    assert_eq!(pair.packets().len(), 0, "the same NAK again");
    pair.inject_response(&response(104, 0x1f));
    pair.run(5);
    assert_eq!(pair.done(0), [(2, Status::Success)]);
}

/// Progress restores all retries: two losses with one retry allowed.
#[test]
fn progress_restores_the_retries() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.retry_cnt = 1));
    pair.lose_all(&[(0, 101, 1), (0, 103, 2)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.run(100);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn an_rnr_nak_delays_the_retry_by_its_timer() {
    let times = [(1, 10), (2, 20), (12, 640), (20, 10_240), (31, 491_520), (0, 655_360)];
    for (code, micros) in times {
        assert_eq!(RnrTimer::new(code).unwrap().nanos(), micros * 1000);
        let mut pair = Pair::new(&PairSetup::with(|options| options.min_rnr_timer = code));
        pair.post(1, SendOp::Send, 10);
        pair.run(5);
        pair.post_recv(7, 100);
        pair.run(micros + 10);
        let wait = RnrTimer::new(code).unwrap();
        let expected = [
            "0 > Send Only 100 A".to_owned(),
            format!("1 < Acknowledge 100 rnr-nak {} us msn 0", wait.nanos() / 1000),
            format!("{} > Send Only 100 A", 2 + micros),
            format!("{} < Acknowledge 100 ack msn 1", 3 + micros),
        ];
        assert_eq!(pair.trace(), expected);
        assert_eq!(
            (pair.done(0), pair.done(1)),
            (vec![(1, Status::Success)], vec![(7, Status::Success)])
        );
        let requester = [(Counter::RnrNakRetryErr, 1), (Counter::RetransmittedPackets, 1)];
        assert_eq!(pair.counters(0), requester);
        assert_eq!(pair.counters(1), [(Counter::OutOfBuffer, 1)]);
    }
}

/// A turn that takes 500 us may receive the NAK at its end: the wait begins after the turn.
#[test]
fn the_wait_of_an_rnr_nak_begins_after_the_turn_that_receives_it() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.min_rnr_timer = 12));
    pair.post(1, SendOp::Send, 10);
    pair.run(2);
    assert_eq!(pair.counters(0), [(Counter::RnrNakRetryErr, 1)]);
    pair.post_recv(7, 100);
    pair.rig.now += feroce_engine::time::Duration::from_micros(500);
    pair.run(640);
    assert!(pair.done(0).is_empty(), "sent again too early: {:?}", pair.trace());
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn rnr_retry_is_the_number_of_retries() {
    for retries in [0, 1, 6] {
        let mut pair = Pair::new(&PairSetup::with(|options| options.rnr_retry = retries));
        pair.post(1, SendOp::Send, 10);
        pair.post(2, SendOp::Send, 10);
        pair.run(10_000);
        let failed = [(1, Status::RnrRetryExceeded), (2, Status::WorkRequestFlushed)];
        assert_eq!(pair.done(0), failed);
        let naks = u64::from(retries) + 1;
        assert_eq!(pair.counters(1)[0], (Counter::OutOfSequence, naks));
        assert_eq!(pair.counters(1)[1], (Counter::OutOfBuffer, naks));
        assert_eq!((pair.state(0), pair.state(1)), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn rnr_retry_seven_means_unlimited() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Send, 10);
    pair.run(300 * 642 + 100);
    assert_eq!(pair.done(0), []);
    assert_eq!(pair.counters(1), [(Counter::OutOfBuffer, 301)]);
    pair.post_recv(7, 10);
    pair.run(642);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.done(1), [(7, Status::Success)]);
}

/// Only the packet with the immediate needs a receive; the other packets are not retransmitted.
#[test]
fn a_write_with_immediate_gets_an_rnr_nak_for_its_last_packet() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::WriteImm(pair.remote(0), 9), 600);
    pair.run(5);
    pair.post_recv(7, 0);
    pair.run(1000);
    let expected = [
        "0 > Write First 100 at 0 len 600",
        "0 > Write Middle 101",
        "0 > Write Last Immediate 102 A",
        "1 < Acknowledge 102 rnr-nak 640 us msn 0",
        "642 > Write Last Immediate 102 A",
        "643 < Acknowledge 102 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(drain(&pair.cqs[1])[0].byte_len, 600);
}

/// Packets after a SEND that got an RNR NAK are dropped without a NAK and are retransmitted after
/// the SEND.
#[test]
fn packets_after_an_rnr_nak_are_dropped_silently() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Send, 300);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(5);
    pair.post_recv(7, 300);
    pair.run(1000);
    let expected = [
        "0 > Send First 100",
        "0 > Send Last 101",
        "0 > Write Only 102 A at 0 len 4",
        "1 < Acknowledge 100 rnr-nak 640 us msn 0",
        "642 > Send First 100",
        "642 > Send Last 101 A",
        "642 > Write Only 102 A at 0 len 4",
        "643 < Acknowledge 102 ack msn 2",
    ];
    assert_eq!(pair.trace(), expected);
}
