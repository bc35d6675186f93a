//! Packets that an RC requester sends, as traces: acknowledge requests, fence, solicited events,
//! initiator depth, lengths, end-to-end credits, header fields.

use feroce_engine::counters::Counter;
use feroce_engine::device::{ConnectOptions, QpInit};
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{RemoteAddr, SendFlags, SendOp, Sge, Status};
use feroce_tests::pair::{Crafted, FIRST_PSN, Pair, PairSetup};
use feroce_tests::{drain, gid};
use feroce_wire::{
    Aeth, CreditCode, Ecn, IpHeader, Key, Msn, Opcode, Packet, PathMtu, Psn, Syndrome,
};

const SIGNALED: SendFlags = SendFlags::SIGNALED;

#[test]
fn an_ack_is_requested_at_least_every_sixteen_packets() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 40 * 256);
    pair.run(100);
    let packets = pair.packets();
    let requesting: Vec<&str> =
        packets.iter().filter(|line| line.ends_with(" A")).map(String::as_str).collect();
    // One burst carries all requests, so one ACK acknowledges them: the newest.
    let expected = ["> Write Middle 115 A", "> Write Middle 131 A", "> Write Last 139 A"];
    assert_eq!(requesting, expected);
    let acks: Vec<&String> = packets.iter().filter(|line| line.starts_with('<')).collect();
    assert_eq!(acks, ["< Acknowledge 139 ack msn 1"]);
}

#[test]
fn messages_posted_together_share_ack_requests() {
    let mut pair = Pair::default();
    for wr_id in 0..20 {
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 4);
    }
    pair.run(100);
    let packets = pair.packets();
    let requesting = packets.iter().filter(|line| line.contains(" A ")).count();
    assert_eq!(requesting, 2, "the sixteenth and the last");
    assert_eq!(packets.last().unwrap(), "< Acknowledge 119 ack msn 20");
    assert_eq!(pair.done(0).len(), 20);
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    for (flags, fenced) in [(SIGNALED, false), (SIGNALED | SendFlags::FENCE, true)] {
        let mut pair = Pair::default();
        pair.post(1, SendOp::Read(pair.remote(0)), 4);
        pair.post(2, SendOp::FetchAdd { remote: pair.remote(8), add: 1 }, 8);
        pair.post_flagged(3, SendOp::Write(pair.remote(16)), 4, flags);
        pair.run(100);
        let write = if fenced {
            "2 > Write Only 102 A at 16 len 4"
        } else {
            "0 > Write Only 102 A at 16 len 4"
        };
        assert!(pair.trace().contains(&write.to_owned()), "fenced: {fenced}");
        assert_eq!(pair.done(0).len(), 3);
    }
}

#[test]
fn the_solicited_bit_is_on_the_last_packet_that_consumes_a_receive() {
    let mut pair = Pair::default();
    pair.post_recv(7, 300);
    pair.post_recv(8, 0);
    let flags = SIGNALED | SendFlags::SOLICITED;
    pair.post_flagged(1, SendOp::Send, 300, flags);
    pair.post_flagged(2, SendOp::WriteImm(pair.remote(0), 1), 4, flags);
    pair.post_flagged(3, SendOp::Write(pair.remote(0)), 4, flags);
    pair.run(100);
    let expected = [
        "> Send First 100",
        "> Send Last 101 S",
        "> Write Only Immediate 102 S at 0 len 4",
        "> Write Only 103 A at 0 len 4",
        "< Acknowledge 103 ack msn 3",
    ];
    assert_eq!(pair.packets(), expected);
    assert!(drain(&pair.cqs[1]).iter().all(|done| done.solicited));
}

/// With a depth of two, the third READ is sent after the first response.
#[test]
fn reads_outstanding_respect_the_initiator_depth() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.max_rd_atomic = Some(2)));
    for wr_id in 0..4 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 4);
    }
    pair.post(4, SendOp::Write(pair.remote(0)), 4);
    pair.run(100);
    let expected = [
        "0 > Read Request 100 A at 0 len 4",
        "0 > Read Request 101 A at 0 len 4",
        "1 < Read Response Only 100 ack msn 2",
        "1 < Read Response Only 101 ack msn 2",
        "2 > Read Request 102 A at 0 len 4",
        "2 > Read Request 103 A at 0 len 4",
        "2 > Write Only 104 A at 0 len 4",
        "3 < Read Response Only 102 ack msn 5",
        "3 < Read Response Only 103 ack msn 5",
        "3 < Acknowledge 104 ack msn 5",
    ];
    assert_eq!(pair.trace(), expected);
}

#[test]
fn a_read_without_initiator_depth_is_a_local_error() {
    let mut setup = PairSetup::default();
    setup.options[0].max_rd_atomic = Some(0);
    let mut pair = Pair::new(&setup);
    pair.post(1, SendOp::Read(pair.remote(0)), 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::LocalQpOperation)]);
    assert_eq!(pair.trace().len(), 0);
}

/// Messages without data need no valid local or remote key (C9-88).
#[test]
fn messages_without_data_need_no_key() {
    let mut pair = Pair::default();
    pair.post_recv(7, 0);
    let nowhere = RemoteAddr { addr: 0xdead, rkey: Key(0xdead_beef) };
    let none = Sge { addr: 1, length: 0, lkey: Key(0xdead_beef) };
    pair.post_sges(1, SendOp::Send, &[none], SIGNALED);
    pair.post_sges(2, SendOp::Write(nowhere), &[none], SIGNALED);
    pair.post_sges(3, SendOp::Read(nowhere), &[], SIGNALED);
    pair.run(100);
    let (done, ok) = (pair.done(0), Status::Success);
    assert_eq!(done, [(1, ok), (2, ok), (3, ok)]);
    assert_eq!(pair.done(1), [(7, ok)]);
    let packets = pair.packets();
    assert_eq!(packets.last().unwrap(), "< Read Response Only 102 ack msn 3");
}

/// Returns 2^31 bytes as sixteen entries for the same 128 MiB.
fn longest(pair: &Pair) -> Vec<Sge> {
    vec![pair.buffers[0].region().sge(0, 1 << 27); 16]
}

fn setup_for_longest() -> PairSetup {
    let mut setup = PairSetup { buffer: 1 << 27, ..PairSetup::default() };
    setup.config.arena_bytes = 1 << 29;
    setup
}

/// C9-94.
#[test]
fn messages_of_two_gibibytes_are_sent() {
    for mtu in PathMtu::ALL {
        let mut setup = setup_for_longest();
        setup.options.iter_mut().for_each(|options| options.path_mtu = Some(mtu));
        let mut pair = Pair::new(&setup);
        pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
        let sges = longest(&pair);
        pair.post_sges(1, SendOp::Read(pair.remote(0)), &sges, SIGNALED);
        pair.run(1);
        assert_eq!(pair.packets(), ["> Read Request 100 A at 0 len 2147483648"]);
        let next = pair.qps[0].query().sq_psn.unwrap();
        let packets = (1 << 31) / mtu.bytes();
        assert_eq!(next, Psn::new(FIRST_PSN[0]).add(packets), "{mtu}");

        let mut pair = Pair::new(&setup);
        pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
        let sges = longest(&pair);
        pair.post_sges(1, SendOp::Write(pair.remote(0)), &sges, SIGNALED);
        pair.run(1);
        let lines = pair.packets();
        assert_eq!(lines.len(), 256, "one window");
        assert_eq!(lines[0], "> Write First 100 at 0 len 2147483648");
        assert_eq!(lines[1], "> Write Middle 101");
        assert_eq!(lines[255], "> Write Middle 355 A");
    }
}

/// A READ of 2^31 bytes at an MTU of 256 uses half of the PSN space, so no later request may be
/// sent yet.
#[test]
fn nothing_is_sent_beyond_half_the_psn_space() {
    let mut pair = Pair::new(&setup_for_longest());
    pair.rig.wire.set_filter(Some(Box::new(|_, _, _| true)));
    let sges = longest(&pair);
    pair.post_sges(1, SendOp::Read(pair.remote(0)), &sges, SIGNALED);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(1);
    assert_eq!(pair.packets().len(), 1);
}

/// C9-94.
#[test]
fn a_message_above_two_gibibytes_is_a_local_length_error() {
    for op in [SendOp::Send, SendOp::Read(RemoteAddr { addr: 0, rkey: Key(0) })] {
        let mut pair = Pair::new(&setup_for_longest());
        let mut sges = longest(&pair);
        sges[3].length += 1;
        pair.post_sges(1, op, &sges, SIGNALED);
        pair.post(2, SendOp::Write(pair.remote(0)), 4);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::LocalLength), (2, Status::WorkRequestFlushed)]);
        assert_eq!(pair.trace().len(), 0);
        assert_eq!(pair.state(0), QpState::Err);
        let counters = [(Counter::ReqCqeError, 1), (Counter::ReqCqeFlushError, 1)];
        assert_eq!(pair.counters(0), counters);
    }
}

/// A local error completes in order, and the requests before it are acknowledged without a timeout.
#[test]
fn a_local_error_completes_after_the_requests_before_it() {
    let mut pair = Pair::new(&PairSetup::with(|options| options.timeout = 0));
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    let foreign = Sge { lkey: Key(0xdead_beef), ..pair.buffers[0].region().sge(0, 4) };
    pair.post_sges(2, SendOp::Write(pair.remote(0)), &[foreign], SIGNALED);
    pair.post(3, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    let expected =
        [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WorkRequestFlushed)];
    assert_eq!(pair.done(0), expected);
    assert_eq!(pair.trace(), ["0 > Write Only 100 A at 0 len 4", "1 < Acknowledge 100 ack msn 1"]);
}

fn with_credits() -> PairSetup {
    PairSetup::with(|options| options.flow_control = true)
}

/// The first SEND requests an ACK; the credits in the ACK limit the next SENDs.
#[test]
fn sends_outstanding_never_exceed_the_credits() {
    let mut pair = Pair::new(&with_credits());
    for wr_id in 0..4 {
        pair.post_recv(wr_id, 100);
    }
    for wr_id in 0..5 {
        pair.post(wr_id, SendOp::Send, 4);
    }
    pair.run(100);
    let expected = [
        "0 > Send Only 100 A",
        "1 < Acknowledge 100 ack credits 3 msn 1",
        "2 > Send Only 101 A",
        "2 > Send Only 102 A",
        "2 > Send Only 103 A",
        "3 < Acknowledge 103 ack credits 0 msn 4",
        "4 > Send Only 104 A",
        "5 < Acknowledge 104 rnr-nak 640 us msn 4",
    ];
    assert_eq!(pair.trace(), expected);
}

#[test]
fn without_credits_one_send_at_a_time_probes() {
    let mut pair = Pair::new(&with_credits());
    pair.post_recv(7, 100);
    for wr_id in 0..3 {
        pair.post(wr_id, SendOp::Send, 4);
    }
    pair.run(10);
    let expected = [
        "0 > Send Only 100 A",
        "1 < Acknowledge 100 ack credits 0 msn 1",
        "2 > Send Only 101 A",
        "3 < Acknowledge 101 rnr-nak 640 us msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    // Two more receives: the next ACKs bring credits.
    pair.post_recv(8, 100);
    pair.post_recv(9, 100);
    pair.run(1000);
    let expected = [
        "644 > Send Only 101 A",
        "645 < Acknowledge 101 ack credits 1 msn 2",
        "646 > Send Only 102 A",
        "647 < Acknowledge 102 ack credits 0 msn 3",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0).len(), 3);
}

#[test]
fn writes_need_no_credits() {
    let mut pair = Pair::new(&with_credits());
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    assert_eq!(
        pair.trace()[..2],
        ["0 > Write Only 100 A at 0 len 4", "0 > Write Only 101 A at 0 len 4"]
    );
}

/// An ACK that acknowledges nothing new brings credits, because the peer has posted receives.
#[test]
fn an_unsolicited_ack_brings_credits() {
    let mut pair = Pair::new(&with_credits());
    pair.post_recv(7, 100);
    pair.post(0, SendOp::Send, 4);
    pair.run(10);
    for wr_id in 1..4 {
        pair.post_recv(wr_id, 100);
    }
    let mut ack = Crafted::new(Opcode::RC_ACKNOWLEDGE, 100, &[]);
    let syndrome = Syndrome::Ack(CreditCode::for_credits(3));
    ack.ext.aeth = Some(Aeth { syndrome, msn: Msn::new(1) });
    pair.inject_response(&ack);
    pair.run(10);
    pair.trace();
    for wr_id in 1..4 {
        pair.post(wr_id, SendOp::Send, 4);
    }
    pair.run(10);
    let expected = [
        "20 > Send Only 101 A",
        "20 > Send Only 102 A",
        "20 > Send Only 103 A",
        "21 < Acknowledge 103 ack credits 0 msn 4",
    ];
    assert_eq!(pair.trace(), expected);
}

/// A peer that negotiated no credits but sends a credit count of 0 (as a ConnectX does) limits
/// nothing.
#[test]
fn credits_that_were_not_negotiated_are_ignored() {
    let mut setup = PairSetup::default();
    setup.options[1].flow_control = true;
    let mut pair = Pair::new(&setup);
    for wr_id in 0..3 {
        pair.post_recv(wr_id, 100);
    }
    pair.post(0, SendOp::Send, 4);
    pair.run(10);
    pair.post_recv(3, 100);
    for wr_id in 1..4 {
        pair.post(wr_id, SendOp::Send, 4);
    }
    pair.run(10);
    let expected = [
        "0 > Send Only 100 A",
        "1 < Acknowledge 100 ack credits 2 msn 1",
        "10 > Send Only 101",
        "10 > Send Only 102",
        "10 > Send Only 103 A",
        "11 < Acknowledge 103 ack credits 0 msn 4",
    ];
    assert_eq!(pair.trace(), expected);
}

/// C9-148.
#[test]
fn the_msn_counts_completed_messages_of_every_kind() {
    let mut pair = Pair::default();
    pair.post_recv(7, 600);
    let ops = [
        (SendOp::Write(pair.remote(0)), 600, 1),
        (SendOp::Send, 600, 2),
        (SendOp::Read(pair.remote(0)), 600, 3),
        (SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, 8, 4),
        (SendOp::Write(pair.remote(0)), 0, 5),
    ];
    for (op, len, msn) in ops {
        pair.post(1, op, len);
        pair.run(10);
        let last = pair.trace().pop().unwrap();
        assert!(last.ends_with(&format!("ack msn {msn}")), "{last}");
    }
}

fn first_frame(setup: &PairSetup) -> Vec<u8> {
    let mut pair = Pair::new(setup);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    pair.frames().swap_remove(0).bytes
}

#[test]
fn every_packet_has_the_required_header_fields() {
    let mut pair = Pair::default();
    for wr_id in 0..3 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 600);
    }
    pair.run(100);
    let mut expected_ids = [1, 1];
    for seen in pair.frames() {
        let packet = Packet::parse(&seen.bytes, &[]).unwrap();
        let IpHeader::V4(ip) = packet.ip else { panic!("not IPv4") };
        assert!(packet.icrc_valid() && packet.bth.mig_req && ip.dont_fragment);
        assert_eq!((ip.ttl, ip.tos, packet.udp.checksum, packet.bth.reserved6), (64, 0, 0, 0));
        assert_eq!(ip.identification, expected_ids[seen.from], "the IPv4 ID increments");
        expected_ids[seen.from] += 1;
    }
    assert_eq!(expected_ids, [4, 10]);
}

#[test]
fn the_ipv4_id_skips_zero() {
    let mut pair = Pair::default();
    let mut ids = std::collections::VecDeque::new();
    for wr_id in 0..300 {
        pair.post(wr_id, SendOp::Write(pair.remote(0)), 220 * 256);
        pair.run(100);
        for seen in pair.frames().iter().filter(|seen| seen.from == 0) {
            let IpHeader::V4(ip) = Packet::parse(&seen.bytes, &[]).unwrap().ip else { panic!() };
            ids.push_back(ip.identification);
        }
        pair.done(0);
    }
    let wrap = ids.iter().position(|&id| id == u16::MAX).expect("66000 packets");
    assert_eq!(ids[wrap + 1], 1);
    assert!(!ids.contains(&0));
}

#[test]
fn packets_are_ecn_capable_if_configured() {
    let ecn = |bytes: &[u8]| Packet::parse(bytes, &[]).unwrap().ip.ecn();
    assert_eq!(ecn(&first_frame(&PairSetup::default())), Ecn::NotEct);
    let mut setup = PairSetup::default();
    setup.config.ecn = true;
    assert_eq!(ecn(&first_frame(&setup)), Ecn::Ect0);
    let with_class = PairSetup::with(|options| options.traffic_class = 0x68);
    let bytes = first_frame(&with_class);
    assert_eq!(Packet::parse(&bytes, &[]).unwrap().ip.traffic_class(), 0x68);
}

#[test]
fn the_source_port_depends_on_the_qp_and_is_the_same_in_both_directions() {
    let mut ports = std::collections::BTreeSet::new();
    let mut pair = Pair::default();
    for _ in 0..8 {
        pair.post(1, SendOp::Write(pair.remote(0)), 4);
        pair.run(10);
        let both: Vec<u16> = pair
            .frames()
            .iter()
            .map(|seen| Packet::parse(&seen.bytes, &[]).unwrap().udp.src_port)
            .collect();
        assert_eq!(both.len(), 2);
        assert_eq!(both[0], both[1]);
        assert!(both[0] >= 0xc000);
        ports.insert(both[0]);
        for end in 0..2 {
            let init = QpInit { max_send_sge: 16, ..QpInit::new(&pair.cqs[end]) };
            pair.qps[end] = pair.pds[end].create_qp(&init).unwrap();
        }
        pair.connect();
    }
    assert_eq!(ports.len(), 8);
}

#[test]
fn a_write_works_over_ipv6() {
    let mut setup = PairSetup::with(|options| options.sgid_index = 1);
    setup.options[0] = ConnectOptions { access: Access::NONE, ..setup.options[0] };
    let mut pair = Pair::new(&setup);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let frame = &pair.frames()[0].bytes;
    let packet = Packet::parse(frame, &[]).unwrap();
    assert!(packet.ip.src().is_ipv6() && packet.icrc_valid());
    assert_ne!(gid(0).ip(), packet.ip.src());
}

#[test]
fn all_packets_and_bytes_are_counted() {
    let mut pair = Pair::default();
    pair.post(1, SendOp::Write(pair.remote(0)), 5);
    pair.run(10);
    let value = |end: usize, counter| pair.rig.devices[end].counter(counter);
    // BTH 12, RETH 16, payload 5, pad 3, ICRC 4; BTH 12, AETH 4, ICRC 4.
    for (end, sent, received) in [(0, 40, 20), (1, 20, 40)] {
        assert_eq!(
            (value(end, Counter::PortXmitPackets), value(end, Counter::PortXmitData)),
            (1, sent)
        );
        assert_eq!(
            (value(end, Counter::PortRcvPackets), value(end, Counter::PortRcvData)),
            (1, received)
        );
        assert_eq!(value(end, Counter::AcksSent), end as u64);
    }
}
