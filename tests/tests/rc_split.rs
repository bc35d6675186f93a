//! WRITEs that go as a message per packet (`split_writes`): what is on the wire, and who is told what.

use feroce_engine::device::{ConnectOptions, DeviceConfig};
use feroce_engine::qp::Service;
use feroce_engine::verbs::{SendOp, Status};
use feroce_tests::manual_config;
use feroce_tests::pair::{Pair, PairSetup};

fn splitting() -> PairSetup {
    PairSetup::with(|options| options.split_writes = true)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect()
}

/// A WRITE of 600 bytes takes the packets `expected`, and succeeds: they are there.
fn expect_written(mut pair: Pair, expected: &[&str]) {
    pair.buffers[0].write(0, &pattern(600));
    pair.post(1, SendOp::Write(pair.remote(0)), 600);
    pair.run(100);
    assert_eq!(pair.packets(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let mut came = vec![0; 600];
    pair.buffers[1].read(0, &mut came);
    assert!(came == pattern(600), "what was written");
}

#[test]
fn a_long_write_goes_as_writes_of_a_packet_each() {
    let expected = [
        "> Write Only 100 at 0 len 256",
        "> Write Only 101 at 256 len 256",
        "> Write Only 102 A at 512 len 88",
        "< Acknowledge 102 ack msn 3",
    ];
    expect_written(Pair::new(&splitting()), &expected);
}

#[test]
fn what_was_lost_of_one_goes_again_from_there() {
    let mut pair = Pair::new(&splitting());
    pair.lose(0, 101, 1);
    let expected = [
        "> Write Only 100 at 0 len 256",
        "> Write Only 101 at 256 len 256",
        "> Write Only 102 A at 512 len 88",
        "< Acknowledge 101 nak psn-sequence msn 1",
        "> Write Only 101 at 256 len 256",
        "> Write Only 102 A at 512 len 88",
        "< Acknowledge 102 ack msn 3",
    ];
    expect_written(pair, &expected);
}

/// Its packets are checked one by one.
#[test]
fn what_leaves_the_region_is_refused_from_there_on() {
    let mut pair = Pair::new(&splitting());
    pair.buffers[0].write(0, &pattern(600));
    let end = pair.buffers[1].region().len();
    pair.post(1, SendOp::Write(pair.remote(end - 300)), 600);
    pair.run(100);
    assert_eq!(pair.packets().last().unwrap(), "< Acknowledge 101 nak remote-access msn 1");
    assert_eq!(pair.done(0), [(1, Status::RemoteAccess)]);
    let mut came = vec![0; 300];
    pair.buffers[1].read(usize::try_from(end).expect("small") - 300, &mut came);
    assert!(came[..256] == pattern(256) && came[256..] == [0; 44], "the first packet and no more");
}

/// The peer's program learns how long a WRITE with an immediate was; the peer drops a UC message of which a packet was lost, and its
/// credits count messages.
#[test]
fn messages_whose_ends_the_peer_needs_stay_whole() {
    let mut with_immediate = Pair::new(&splitting());
    with_immediate.post_recv(7, 0);
    with_immediate.post(1, SendOp::WriteImm(with_immediate.remote(0), 5), 300);
    with_immediate.run(100);
    let expected = [
        "> Write First 100 at 0 len 300",
        "> Write Last Immediate 101 A",
        "< Acknowledge 101 ack msn 1",
    ];
    assert_eq!(with_immediate.packets(), expected);

    let mut unreliable = Pair::new(&PairSetup { service: Service::Uc, ..splitting() });
    unreliable.post(1, SendOp::Write(unreliable.remote(0)), 300);
    unreliable.run(100);
    let expected = ["> UC RDMA Write First 100 at 0 len 300", "> UC RDMA Write Last 101"];
    assert_eq!(unreliable.packets(), expected);

    let credits = |options: &mut ConnectOptions| {
        (options.split_writes, options.flow_control) = (true, true);
    };
    let mut counted = Pair::new(&PairSetup::with(credits));
    counted.post(1, SendOp::Write(counted.remote(0)), 300);
    counted.run(100);
    assert_eq!(counted.packets()[..2], ["> Write First 100 at 0 len 300", "> Write Last 101 A"]);
}

/// PSNs of the packets of a WRITE that ask for an acknowledgement.
fn asking(window: u32, packets: u32) -> Vec<String> {
    let config = DeviceConfig { window, ..manual_config(1) };
    let mut pair = Pair::new(&PairSetup { config, ..splitting() });
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
fn an_ack_is_asked_for_once_a_burst_and_twice_a_window() {
    assert_eq!(asking(256, 130), ["163", "227", "229"]);
    assert_eq!(asking(64, 70), ["131", "163", "169"]);
    assert_eq!(asking(32, 40), ["115", "131", "139"]);
}
