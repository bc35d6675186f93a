//! WRITEs and READs that are split into several messages (`Split`): the packets on the wire, and
//! the completions.

use feroce_engine::device::{ConnectOptions, DeviceConfig, Split};
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::{RemoteAddr, SendFlags, SendOp, Status};
use feroce_tests::manual_config;
use feroce_tests::pair::{Pair, PairSetup};

fn splitting() -> PairSetup {
    PairSetup::with(|options| options.split = Split::Always)
}

/// Like [`splitting`], with a depth that allows split READs.
fn deep() -> PairSetup {
    PairSetup::with(|options| (options.split, options.max_rd_atomic) = (Split::Always, Some(64)))
}

/// Returns a pair whose peer has accepted WRITEs to both ends of its buffer: messages 1 and 2, PSNs
/// 100 and 101.
fn with_accepted_writes(setup: &PairSetup) -> Pair {
    with_accepted(SendOp::Write, setup)
}

/// Like [`with_accepted_writes`], for READs.
fn with_accepted_reads(setup: &PairSetup) -> Pair {
    with_accepted(SendOp::Read, setup)
}

fn with_accepted(op: fn(RemoteAddr) -> SendOp, setup: &PairSetup) -> Pair {
    let mut pair = Pair::new(setup);
    for offset in [0, pair.buffers[1].region().len() - 1] {
        pair.post(0, op(pair.remote(offset)), 1);
    }
    pair.run(100);
    assert_eq!(pair.done(0), [(0, Status::Success); 2]);
    pair.packets(); // Discards the trace.
    pair
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect()
}

/// Posts `op` for `len` bytes at `offset` of the peer's buffer. Expects the packets `expected`,
/// success, and that the data moved from end `from` to the other.
fn expect_moved(
    mut pair: Pair,
    op: fn(RemoteAddr) -> SendOp,
    (from, offset, len): (usize, u64, u32),
    expected: &[&str],
) {
    let size = usize::try_from(len).expect("small");
    let at = |end: usize| if end == 0 { 0 } else { usize::try_from(offset).expect("small") };
    pair.buffers[from].write(at(from), &pattern(size));
    pair.post(1, op(pair.remote(offset)), len);
    pair.run(100);
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let mut arrived = vec![0; size];
    pair.buffers[1 - from].read(at(1 - from), &mut arrived);
    assert!(arrived == pattern(size), "the data arrived");
}

/// Expects `expected` for a WRITE of 600 bytes.
fn expect_written(pair: Pair, expected: &[&str]) {
    expect_moved(pair, SendOp::Write, (0, 0, 600), expected);
}

/// Expects `expected` for a READ of 1100 bytes at offset 256.
fn expect_read(pair: Pair, expected: &[&str]) {
    expect_moved(pair, SendOp::Read, (1, 256, 1100), expected);
}

#[test]
fn a_long_write_is_split_into_single_packet_writes() {
    let expected = [
        "> Write Only 102 at 0 len 256",
        "> Write Only 103 at 256 len 256",
        "> Write Only 104 A at 512 len 88",
        "< Acknowledge 104 ack msn 5",
    ];
    expect_written(with_accepted_writes(&splitting()), &expected);
}

#[test]
fn retransmission_of_a_split_write_starts_at_the_lost_part() {
    let mut pair = with_accepted_writes(&splitting());
    pair.lose(0, 103, 1);
    let expected = [
        "> Write Only 102 at 0 len 256",
        "> Write Only 103 at 256 len 256",
        "> Write Only 104 A at 512 len 88",
        "< Acknowledge 103 nak psn-sequence msn 3",
        "> Write Only 103 at 256 len 256",
        "> Write Only 104 A at 512 len 88",
        "< Acknowledge 104 ack msn 5",
    ];
    expect_written(pair, &expected);
}

/// The peer may refuse this WRITE, so it is not split: the peer checks the whole message before it
/// writes.
#[test]
fn a_write_that_the_peer_may_refuse_is_not_split() {
    let mut pair = with_accepted_writes(&splitting());
    pair.buffers[0].write(0, &pattern(600));
    let end = pair.buffers[1].region().len();
    pair.post(1, SendOp::Write(pair.remote(end - 300)), 600);
    pair.run(100);
    let packets = pair.packets();
    assert_eq!(packets[0], format!("> Write First 102 at {} len 600", end - 300));
    assert_eq!(packets.last().unwrap(), "< Acknowledge 102 nak remote-access msn 2");
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
    let mut arrived = vec![0; 299];
    pair.buffers[1].read(usize::try_from(end).expect("small") - 300, &mut arrived);
    assert!(arrived == [0; 299], "nothing of it was written");
}

/// The first WRITE to a range is sent whole; after the peer accepted it, the next one is split.
#[test]
fn accepted_ranges_are_remembered_until_the_qp_is_reset() {
    let mut pair = Pair::new(&splitting());
    for opcode in ["Write First", "Write Only"] {
        pair.post(1, SendOp::Write(pair.remote(0)), 600);
        pair.run(100);
        assert!(pair.packets()[0].contains(opcode));
        assert_eq!(pair.done(0), [(1, Status::Success)]);
    }
    for qp in &mut pair.qps {
        qp.modify(&QpAttributes { state: Some(QpState::Reset), ..Default::default() }).unwrap();
    }
    pair.connect();
    pair.post(1, SendOp::Write(pair.remote(0)), 600);
    pair.run(100);
    assert!(pair.packets()[0].contains("Write First"));
}

/// A peer without super-frames may have no more responder resources than other peers, so at most 16
/// READs are outstanding.
#[test]
fn a_peer_without_super_frames_gets_sixteen_reads_at_once() {
    let mut setup = PairSetup::default();
    setup.options[0].split = Split::Always;
    setup.config.read_window = 40 * 80;
    let mut pair = with_accepted_reads(&setup);
    (0..40).for_each(|n| pair.post(n, SendOp::Read(pair.remote(0)), 80 * 256));
    pair.run(2000);
    assert_eq!(pair.done(0).len(), 40);
    let ahead = pair.packets().iter().take_while(|line| line.starts_with('>')).count();
    assert_eq!(ahead, 16);
}

/// The length of a WRITE with immediate is reported to the peer's program, the peer drops a UC
/// message with a lost packet, and credits count messages. None of these are split.
#[test]
fn writes_with_immediate_uc_writes_and_writes_with_credits_are_not_split() {
    let mut with_immediate = with_accepted_writes(&splitting());
    with_immediate.post_recv(7, 0);
    with_immediate.post(1, SendOp::WriteImm(with_immediate.remote(0), 5), 300);
    with_immediate.run(100);
    let expected = [
        "> Write First 102 at 0 len 300",
        "> Write Last Immediate 103 A",
        "< Acknowledge 103 ack msn 3",
    ];
    assert_eq!(with_immediate.packets(), expected);

    let mut unreliable = with_accepted_writes(&PairSetup { service: Service::Uc, ..splitting() });
    unreliable.post(1, SendOp::Write(unreliable.remote(0)), 300);
    unreliable.run(100);
    let expected = ["> UC RDMA Write First 102 at 0 len 300", "> UC RDMA Write Last 103"];
    assert_eq!(unreliable.packets(), expected);

    let credits = |options: &mut ConnectOptions| {
        (options.split, options.flow_control) = (Split::Always, true);
    };
    let mut counted = with_accepted_writes(&PairSetup::with(credits));
    counted.post(1, SendOp::Write(counted.remote(0)), 300);
    counted.run(100);
    assert_eq!(counted.packets()[..2], ["> Write First 102 at 0 len 300", "> Write Last 103 A"]);
}

/// Long messages fill super-frames without split, and are fewer messages.
#[test]
fn a_message_of_more_than_two_super_frames_is_not_split() {
    for (len, opcode) in [(120 << 10, "Write Only"), ((120 << 10) + 1, "Write First")] {
        let mut pair = with_accepted_writes(&PairSetup { buffer: 1 << 17, ..splitting() });
        pair.post(1, SendOp::Write(pair.remote(0)), len);
        pair.run(100);
        assert!(pair.packets()[0].contains(opcode), "{len} bytes");
    }
}

/// Returns the PSNs of the packets of a WRITE that have AckReq set.
fn psns_with_ack_request(window: u32, packets: u32) -> Vec<String> {
    let config = DeviceConfig { window, ..manual_config(1) };
    let mut pair = with_accepted_writes(&PairSetup { config, ..splitting() });
    pair.post(1, SendOp::Write(pair.remote(0)), packets * 256);
    pair.run(1000);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let psn_with_ack_request = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0] == ">" && words.contains(&"A")).then(|| words[3].to_owned())
    };
    pair.packets().iter().filter_map(psn_with_ack_request).collect()
}

#[test]
fn an_ack_is_requested_every_64_packets_and_twice_per_window() {
    assert_eq!(psns_with_ack_request(256, 130), ["165", "229", "231"]);
    assert_eq!(psns_with_ack_request(64, 70), ["133", "165", "171"]);
    assert_eq!(psns_with_ack_request(32, 40), ["117", "133", "141"]);
}

#[test]
fn a_long_read_is_split_into_reads_of_two_packets() {
    let expected = [
        "> Read Request 102 at 256 len 512",
        "> Read Request 104 at 768 len 512",
        "> Read Request 106 A at 1280 len 76",
        "< Read Response First 102 ack msn 5",
        "< Read Response Last 103 ack msn 5",
        "< Read Response First 104 ack msn 5",
        "< Read Response Last 105 ack msn 5",
        "< Read Response Only 106 ack msn 5",
    ];
    expect_read(with_accepted_reads(&deep()), &expected);
}

/// The peer may refuse this READ, so it is not split: the peer checks the whole message first.
#[test]
fn a_read_that_the_peer_may_refuse_is_not_split() {
    let mut pair = with_accepted_reads(&deep());
    let end = pair.buffers[1].region().len();
    pair.post(1, SendOp::Read(pair.remote(end - 1000)), 1100);
    pair.run(100);
    let request = format!("> Read Request 102 A at {} len 1100", end - 1000);
    assert_eq!(pair.packets(), [&request, "< Acknowledge 102 nak remote-access msn 2"]);
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
}

/// The requester requests the rest of the part with the lost packet, and the later parts, whose
/// responses were dropped.
#[test]
fn a_split_read_is_requested_again_from_the_lost_packet() {
    let mut pair = with_accepted_reads(&deep());
    pair.lose(1, 103, 1);
    let expected = [
        "> Read Request 102 at 256 len 512",
        "> Read Request 104 at 768 len 512",
        "> Read Request 106 A at 1280 len 76",
        "< Read Response First 102 ack msn 5",
        "< Read Response Last 103 ack msn 5",
        "< Read Response First 104 ack msn 5",
        "< Read Response Last 105 ack msn 5",
        "< Read Response Only 106 ack msn 5",
        "> Read Request 103 at 512 len 256",
        "> Read Request 104 at 768 len 512",
        "> Read Request 106 A at 1280 len 76",
        "< Read Response Only 103 ack msn 5",
        "< Read Response First 104 ack msn 5",
        "< Read Response Last 105 ack msn 5",
        "< Read Response Only 106 ack msn 5",
    ];
    expect_read(pair, &expected);
}

#[test]
fn parts_count_against_the_depth_and_a_small_depth_prevents_splitting() {
    let mut pair = with_accepted_reads(&PairSetup::with(|options| {
        (options.split, options.max_rd_atomic) = (Split::Always, Some(32));
    }));
    pair.post(1, SendOp::Read(pair.remote(0)), 80 * 256);
    pair.run(200);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let packets = pair.packets();
    let ahead = packets.iter().take_while(|line| line.starts_with('>')).count();
    let requests = packets.iter().filter(|line| line.starts_with('>')).count();
    assert_eq!((ahead, requests), (32, 40));

    let shallow = |options: &mut ConnectOptions| {
        (options.split, options.max_rd_atomic) = (Split::Always, Some(31));
    };
    let mut pair = with_accepted_reads(&PairSetup::with(shallow));
    pair.post(1, SendOp::Read(pair.remote(0)), 80 * 256);
    pair.run(200);
    assert_eq!(pair.packets()[0], "> Read Request 102 A at 0 len 20480");
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// The depth for parts of READs would allow too much data in flight for READs that are not split.
#[test]
fn at_most_sixteen_whole_reads_are_outstanding_at_a_depth_of_64() {
    let mut setup = PairSetup { buffer: 1 << 17, ..deep() };
    setup.config.read_window = 1 << 16;
    let mut pair = with_accepted_reads(&setup);
    let long = (120 << 10) + 1;
    (0..20).for_each(|n| pair.post(n, SendOp::Read(pair.remote(0)), long));
    pair.run(2000);
    let packets = pair.packets();
    let ahead = packets.iter().take_while(|line| line.starts_with('>')).count();
    assert_eq!(ahead, 16);
    assert_eq!(pair.done(0).len(), 20);
}

/// The fenced WRITE waits for all parts of the READ before it.
#[test]
fn a_fence_waits_for_all_parts_of_a_read() {
    let mut pair = with_accepted_reads(&deep());
    pair.post(1, SendOp::Read(pair.remote(0)), 1100);
    pair.post_flagged(2, SendOp::Write(pair.remote(0)), 8, SendFlags::SIGNALED | SendFlags::FENCE);
    pair.run(100);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
    let packets = pair.packets();
    let of = |what: &str| packets.iter().position(|line| line.contains(what)).unwrap();
    assert!(of("Write Only 107") > of("Read Response Only 106"));
}
