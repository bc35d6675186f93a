//! WRITEs and READs that go as several messages (`Split`): what is on the wire, and who is told what.

use feroce_engine::device::{ConnectOptions, DeviceConfig, Split};
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::{RemoteAddr, SendFlags, SendOp, Status};
use feroce_tests::manual_config;
use feroce_tests::pair::{Pair, PairSetup};

fn splitting() -> PairSetup {
    PairSetup::with(|options| options.split = Split::Always)
}

/// The same with room for the parts of READs.
fn deep() -> PairSetup {
    PairSetup::with(|options| (options.split, options.max_rd_atomic) = (Split::Always, Some(64)))
}

/// The peer has accepted WRITEs to both ends of its buffer: messages 1 and 2, PSNs 100 and 101.
fn on_known_ground(setup: &PairSetup) -> Pair {
    known_by(SendOp::Write, setup)
}

/// The same of READs.
fn on_ground_known_by_reads(setup: &PairSetup) -> Pair {
    known_by(SendOp::Read, setup)
}

fn known_by(op: fn(RemoteAddr) -> SendOp, setup: &PairSetup) -> Pair {
    let mut pair = Pair::new(setup);
    for offset in [0, pair.buffers[1].region().len() - 1] {
        pair.post(0, op(pair.remote(offset)), 1);
    }
    pair.run(100);
    assert_eq!(pair.done(0), [(0, Status::Success); 2]);
    pair.packets(); // Not of interest.
    pair
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect()
}

/// A request about `len` bytes at `offset` of the peer takes the packets `expected`, and succeeds: they went from the end `from` to the other.
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
    let mut came = vec![0; size];
    pair.buffers[1 - from].read(at(1 - from), &mut came);
    assert!(came == pattern(size), "what was moved");
}

/// A WRITE of 600 bytes.
fn expect_written(pair: Pair, expected: &[&str]) {
    expect_moved(pair, SendOp::Write, (0, 0, 600), expected);
}

/// A READ of 1100 bytes at 256.
fn expect_read(pair: Pair, expected: &[&str]) {
    expect_moved(pair, SendOp::Read, (1, 256, 1100), expected);
}

#[test]
fn a_long_write_goes_as_writes_of_a_packet_each() {
    let expected = [
        "> Write Only 102 at 0 len 256",
        "> Write Only 103 at 256 len 256",
        "> Write Only 104 A at 512 len 88",
        "< Acknowledge 104 ack msn 5",
    ];
    expect_written(on_known_ground(&splitting()), &expected);
}

#[test]
fn what_was_lost_of_one_goes_again_from_there() {
    let mut pair = on_known_ground(&splitting());
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

/// The peer checks a message as a whole.
#[test]
fn where_the_peer_may_refuse_a_write_stays_whole_and_writes_nothing() {
    let mut pair = on_known_ground(&splitting());
    pair.buffers[0].write(0, &pattern(600));
    let end = pair.buffers[1].region().len();
    pair.post(1, SendOp::Write(pair.remote(end - 300)), 600);
    pair.run(100);
    let packets = pair.packets();
    assert_eq!(packets[0], format!("> Write First 102 at {} len 600", end - 300));
    assert_eq!(packets.last().unwrap(), "< Acknowledge 102 nak remote-access msn 2");
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
    let mut came = vec![0; 299];
    pair.buffers[1].read(usize::try_from(end).expect("small") - 300, &mut came);
    assert!(came == [0; 299], "nothing of it was written");
}

/// The first WRITE to a place finds out; the next is split.
#[test]
fn what_the_peer_has_accepted_is_remembered_until_the_qp_is_reset() {
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

/// It may answer no more than others do.
#[test]
fn no_more_is_asked_of_a_peer_without_super_frames_than_of_others() {
    let mut setup = PairSetup::default();
    setup.options[0].split = Split::Always;
    let mut pair = on_ground_known_by_reads(&setup);
    (0..40).for_each(|n| pair.post(n, SendOp::Read(pair.remote(0)), 80 * 256));
    pair.run(2000);
    assert_eq!(pair.done(0).len(), 40);
    let ahead = pair.packets().iter().take_while(|line| line.starts_with('>')).count();
    assert_eq!(ahead, 16);
}

/// The peer's program learns how long a WRITE with an immediate was; the peer drops a UC message of which a packet was lost, and its
/// credits count messages.
#[test]
fn messages_whose_ends_the_peer_needs_stay_whole() {
    let mut with_immediate = on_known_ground(&splitting());
    with_immediate.post_recv(7, 0);
    with_immediate.post(1, SendOp::WriteImm(with_immediate.remote(0), 5), 300);
    with_immediate.run(100);
    let expected = [
        "> Write First 102 at 0 len 300",
        "> Write Last Immediate 103 A",
        "< Acknowledge 103 ack msn 3",
    ];
    assert_eq!(with_immediate.packets(), expected);

    let mut unreliable = on_known_ground(&PairSetup { service: Service::Uc, ..splitting() });
    unreliable.post(1, SendOp::Write(unreliable.remote(0)), 300);
    unreliable.run(100);
    let expected = ["> UC RDMA Write First 102 at 0 len 300", "> UC RDMA Write Last 103"];
    assert_eq!(unreliable.packets(), expected);

    let credits = |options: &mut ConnectOptions| {
        (options.split, options.flow_control) = (Split::Always, true);
    };
    let mut counted = on_known_ground(&PairSetup::with(credits));
    counted.post(1, SendOp::Write(counted.remote(0)), 300);
    counted.run(100);
    assert_eq!(counted.packets()[..2], ["> Write First 102 at 0 len 300", "> Write Last 103 A"]);
}

/// Long ones fill super-frames anyway, and are fewer messages.
#[test]
fn a_message_of_more_than_two_super_frames_stays_whole() {
    for (len, opcode) in [(120 << 10, "Write Only"), ((120 << 10) + 1, "Write First")] {
        let mut pair = on_known_ground(&PairSetup { buffer: 1 << 17, ..splitting() });
        pair.post(1, SendOp::Write(pair.remote(0)), len);
        pair.run(100);
        assert!(pair.packets()[0].contains(opcode), "{len} bytes");
    }
}

/// PSNs of the packets of a WRITE that ask for an acknowledgement.
fn asking(window: u32, packets: u32) -> Vec<String> {
    let config = DeviceConfig { window, ..manual_config(1) };
    let mut pair = on_known_ground(&PairSetup { config, ..splitting() });
    pair.post(1, SendOp::Write(pair.remote(0)), packets * 256);
    pair.run(1000);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let asking = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0] == ">" && words.contains(&"A")).then(|| words[3].to_owned())
    };
    pair.packets().iter().filter_map(asking).collect()
}

#[test]
fn an_ack_is_asked_for_once_in_64_packets_and_twice_a_window() {
    assert_eq!(asking(256, 130), ["165", "229", "231"]);
    assert_eq!(asking(64, 70), ["133", "165", "171"]);
    assert_eq!(asking(32, 40), ["117", "133", "141"]);
}

#[test]
fn a_long_read_goes_as_reads_of_two_packets_each() {
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
    expect_read(on_ground_known_by_reads(&deep()), &expected);
}

/// The peer checks a READ as a whole, too.
#[test]
fn where_the_peer_may_refuse_a_read_stays_whole_and_reads_nothing() {
    let mut pair = on_ground_known_by_reads(&deep());
    let end = pair.buffers[1].region().len();
    pair.post(1, SendOp::Read(pair.remote(end - 1000)), 1100);
    pair.run(100);
    let asked = format!("> Read Request 102 A at {} len 1100", end - 1000);
    assert_eq!(pair.packets(), [&asked, "< Acknowledge 102 nak remote-access msn 2"]);
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
}

/// The part of which a packet was lost is asked for from there, and those behind it, whose answers were dropped.
#[test]
fn what_was_lost_of_an_answer_is_asked_for_again() {
    let mut pair = on_ground_known_by_reads(&deep());
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
fn parts_count_against_the_depth_and_a_shallow_one_leaves_reads_whole() {
    let mut pair = on_ground_known_by_reads(&PairSetup::with(|options| {
        (options.split, options.max_rd_atomic) = (Split::Always, Some(32));
    }));
    pair.post(1, SendOp::Read(pair.remote(0)), 80 * 256);
    pair.run(200);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let packets = pair.packets();
    let ahead = packets.iter().take_while(|line| line.starts_with('>')).count();
    let asked = packets.iter().filter(|line| line.starts_with('>')).count();
    assert_eq!((ahead, asked), (32, 40));

    let shallow = |options: &mut ConnectOptions| {
        (options.split, options.max_rd_atomic) = (Split::Always, Some(31));
    };
    let mut pair = on_ground_known_by_reads(&PairSetup::with(shallow));
    pair.post(1, SendOp::Read(pair.remote(0)), 80 * 256);
    pair.run(200);
    assert_eq!(pair.packets()[0], "> Read Request 102 A at 0 len 20480");
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// A depth for parts would be much in flight of READs that are not split.
#[test]
fn sixteen_whole_reads_are_in_flight_where_sixty_four_parts_may_be() {
    let mut pair = on_ground_known_by_reads(&PairSetup { buffer: 1 << 17, ..deep() });
    let long = (120 << 10) + 1;
    (0..20).for_each(|n| pair.post(n, SendOp::Read(pair.remote(0)), long));
    pair.run(2000);
    let packets = pair.packets();
    let ahead = packets.iter().take_while(|line| line.starts_with('>')).count();
    assert_eq!(ahead, 16);
    assert_eq!(pair.done(0).len(), 20);
}

/// It waits for the parts of the READ ahead of it.
#[test]
fn a_fence_waits_for_all_parts() {
    let mut pair = on_ground_known_by_reads(&deep());
    pair.post(1, SendOp::Read(pair.remote(0)), 1100);
    pair.post_flagged(2, SendOp::Write(pair.remote(0)), 8, SendFlags::SIGNALED | SendFlags::FENCE);
    pair.run(100);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
    let packets = pair.packets();
    let of = |what: &str| packets.iter().position(|line| line.contains(what)).unwrap();
    assert!(of("Write Only 107") > of("Read Response Only 106"));
}
