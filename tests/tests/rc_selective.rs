//! Selective repeat, as traces: only what was lost is sent again.

use feroce_engine::counters::Counter;
use feroce_engine::device::{DeviceConfig, Endpoint};
use feroce_engine::memory::Access;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::{SendFlags, SendOp, Status};
use feroce_tests::pair::{Crafted, FIRST_PSN, Pair, PairSetup};
use feroce_tests::{drain, manual_config};
use feroce_wire::{Aeth, Msn, NakCode, Opcode, Psn, Sack, Syndrome};

fn pair() -> Pair {
    let config = DeviceConfig { selective_repeat: true, ..manual_config(1) };
    Pair::new(&PairSetup { config, ..PairSetup::default() })
}

fn fill(pair: &mut Pair, end: usize, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (1..=251).cycle().take(len).collect();
    pair.buffers[end].write(0, &bytes);
    bytes
}

fn memory(pair: &Pair, end: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pair.buffers[end].read(0, &mut bytes);
    bytes
}

#[test]
fn one_lost_packet_is_one_packet_more() {
    let mut pair = pair();
    let sent = fill(&mut pair, 0, 6 * 256);
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
        "1 < Acknowledge 102 nak psn-sequence msn 0 sack [103, 104, 105]",
        "2 > Write Middle 102 A",
        "3 < Acknowledge 105 ack msn 1",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(memory(&pair, 1, sent.len()), sent);
    let requester = [(Counter::PacketSeqErr, 1), (Counter::RetransmittedPackets, 1)];
    assert_eq!(pair.counters(0), requester);
    let counters = pair.counters(1);
    assert!(counters.contains(&(Counter::HeldPackets, 3)), "{counters:?}");
}

/// A program may wait for the last byte of a WRITE. All bytes before it must be there then.
#[test]
fn nothing_behind_a_gap_is_stored() {
    let mut pair = pair();
    let sent = fill(&mut pair, 0, 4 * 256);
    pair.lose(0, 101, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4 * 256);
    pair.run(1);
    let mut expected = sent[..256].to_vec();
    expected.resize(sent.len(), 0);
    assert_eq!(memory(&pair, 1, sent.len()), expected, "only the packet before the gap");
    pair.run(100);
    assert_eq!(memory(&pair, 1, sent.len()), sent);
}

#[test]
fn several_losses_are_repeated_together() {
    let mut pair = pair();
    pair.lose_all(&[(0, 100, 1), (0, 103, 1), (0, 104, 1)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 7 * 256);
    pair.run(100);
    let expected = [
        "1 < Acknowledge 100 nak psn-sequence msn 0 sack [101, 102, 105, 106]",
        "2 > Write First 100 A at 0 len 1792",
        "2 > Write Middle 103 A",
        "2 > Write Middle 104 A",
        "3 < Acknowledge 106 ack msn 1",
    ];
    assert_eq!(pair.trace()[7..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// The second loss of packet 101 shows because 105, which was sent after it, has arrived.
#[test]
fn a_repeated_packet_that_is_lost_again_needs_no_timeout() {
    let mut pair = pair();
    pair.lose(0, 101, 2);
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.run(2);
    pair.post(2, SendOp::Write(pair.remote(0)), 2 * 256);
    pair.run(100);
    let expected = [
        "1 < Acknowledge 101 nak psn-sequence msn 0 sack [102, 103, 104]",
        "2 > Write Middle 101 A",
        "2 > Write First 105 at 0 len 512",
        "2 > Write Last 106 A",
        "3 < Acknowledge 101 nak psn-sequence msn 0 sack [102, 103, 104, 105, 106]",
        "4 > Write Middle 101 A",
        "5 < Acknowledge 106 ack msn 2",
    ];
    assert_eq!(pair.trace()[5..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
}

/// A lost packet whose region is gone is not taken for sent: its request fails as soon as it is the
/// oldest, not after a timeout.
#[test]
fn a_lost_packet_of_a_deregistered_region_fails_in_order() {
    let mut pair = pair();
    let region = pair.pds[0].alloc_buffer(4096, Access::ALL).unwrap();
    pair.lose_all(&[(0, 100, 1), (0, 101, 1)]);
    pair.post(1, SendOp::Write(pair.remote(0)), 256);
    let sges = [region.region().sge(0, 512)];
    pair.post_sges(2, SendOp::Write(pair.remote(0)), &sges, SendFlags::SIGNALED);
    pair.run(1);
    drop(region);
    pair.run(100);
    let expected = [
        "1 < Acknowledge 100 nak psn-sequence msn 0 sack [102]",
        "2 > Write Only 100 A at 0 len 256",
        "3 < Acknowledge 100 ack msn 1",
    ];
    assert_eq!(pair.trace()[3..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::LocalProtection)]);
}

/// The acknowledgement of the repeated packet 101 shows that the packets after 102 may be lost.
/// RFC 8985, tail loss probe.
#[test]
fn a_lost_tail_behind_a_gap_needs_no_timeout() {
    let mut pair = pair();
    pair.lose_all(&[(0, 101, 1), (0, 103, 1), (0, 104, 1)]);
    let sent = fill(&mut pair, 0, 5 * 256);
    pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
    pair.run(100);
    let expected = [
        "1 < Acknowledge 101 nak psn-sequence msn 0 sack [102]",
        "2 > Write Middle 101 A",
        "3 < Acknowledge 102 ack msn 0",
        "4 > Write Last 104 A",
        "5 < Acknowledge 103 nak psn-sequence msn 0 sack [104]",
        "6 > Write Middle 103 A",
        "7 < Acknowledge 104 ack msn 1",
    ];
    assert_eq!(pair.trace()[5..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(memory(&pair, 1, sent.len()), sent);
}

/// A READ request is repeated whole, although it covers the PSNs of its responses.
#[test]
fn a_lost_read_request_behind_a_gap_needs_no_timeout() {
    let mut pair = pair();
    pair.lose_all(&[(0, 100, 1), (0, 102, 1)]);
    let sent = fill(&mut pair, 1, 3 * 256);
    pair.post(1, SendOp::Write(pair.remote(1024)), 2);
    pair.post(2, SendOp::Write(pair.remote(1024)), 2);
    pair.post(3, SendOp::Read(pair.remote(0)), 3 * 256);
    pair.run(100);
    let expected = [
        "1 < Acknowledge 100 nak psn-sequence msn 0 sack [101]",
        "2 > Write Only 100 A at 1024 len 2",
        "3 < Acknowledge 101 ack msn 2",
        "4 > Read Request 102 A at 0 len 768",
        "5 < Read Response First 102 ack msn 3",
        "5 < Read Response Middle 103",
        "5 < Read Response Last 104 ack msn 3",
    ];
    assert_eq!(pair.trace()[3..], expected);
    assert_eq!(memory(&pair, 0, sent.len()), sent);
}

#[test]
fn a_lost_last_packet_costs_one_timeout() {
    let mut pair = pair();
    pair.lose(0, 102, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 3 * 256);
    pair.run(5000);
    let trace = pair.trace();
    assert_eq!(trace[3], "4194.304 > Write First 100 at 0 len 768", "as without selective repeat");
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn receives_complete_in_order_whichever_packet_was_lost() {
    for lost in 100..106 {
        let mut pair = pair();
        for wr_id in 1..=4 {
            pair.post_recv(wr_id, 600);
        }
        pair.lose(0, lost, 1);
        for (wr_id, len) in [(1, 300), (2, 10), (3, 512), (4, 0)] {
            pair.post(wr_id, SendOp::Send, len);
        }
        pair.run(10_000);
        let done: Vec<_> =
            drain(&pair.cqs[1]).iter().map(|done| (done.wr_id, done.byte_len)).collect();
        assert_eq!(done, [(1, 300), (2, 10), (3, 512), (4, 0)], "lost {lost}");
        assert_eq!(pair.done(0).len(), 4, "lost {lost}");
        // The last packet has none behind it that could show its loss.
        let held = pair.rig.devices[1].counter(Counter::HeldPackets);
        assert_eq!(held, u64::from(105 - lost), "lost {lost}");
    }
}

/// Response packets 101, 102 and 105 of one READ are lost.
#[test]
fn only_lost_responses_are_requested_again() {
    let mut pair = pair();
    let sent = fill(&mut pair, 1, 8 * 256);
    pair.lose_all(&[(1, 101, 1), (1, 102, 1), (1, 105, 1)]);
    pair.post(1, SendOp::Read(pair.remote(0)), 8 * 256);
    pair.run(100);
    let expected = [
        "2 > Read Request 101 A at 256 len 512",
        "2 > Read Request 105 A at 1280 len 256",
        "3 < Read Response First 101 ack msn 1",
        "3 < Read Response Last 102 ack msn 1",
        "3 < Read Response Only 105 ack msn 1",
    ];
    assert_eq!(pair.trace()[9..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(memory(&pair, 0, sent.len()), sent);
}

#[test]
fn a_lost_read_request_is_repeated_alone() {
    let mut pair = pair();
    let sent = fill(&mut pair, 1, 512);
    pair.lose(0, 102, 1);
    for wr_id in 1..=3 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 512);
    }
    pair.run(100);
    let trace = pair.trace();
    let requests: Vec<&str> =
        trace.iter().filter(|line| line.contains(" > ")).map(String::as_str).collect();
    let expected = [
        "0 > Read Request 100 A at 0 len 512",
        "0 > Read Request 102 A at 0 len 512",
        "0 > Read Request 104 A at 0 len 512",
        "2 > Read Request 102 A at 0 len 512",
    ];
    assert_eq!(requests, expected, "{trace:#?}");
    assert_eq!(pair.done(0), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(memory(&pair, 0, sent.len()), sent);
}

/// The READs behind the one that lacks a response use nothing of the peer's depth any more.
#[test]
fn reads_go_on_behind_a_lost_response() {
    let config = DeviceConfig { selective_repeat: true, ..manual_config(1) };
    let mut setup = PairSetup { config, ..PairSetup::default() };
    setup.options.iter_mut().for_each(|options| options.max_rd_atomic = Some(2));
    let mut pair = Pair::new(&setup);
    pair.lose(1, 100, 1);
    for wr_id in 1..=4 {
        pair.post(wr_id, SendOp::Read(pair.remote(0)), 4);
    }
    pair.run(100);
    let expected = [
        "0 > Read Request 100 A at 0 len 4",
        "0 > Read Request 101 A at 0 len 4",
        "1 < Read Response Only 100 ack msn 2",
        "1 < Read Response Only 101 ack msn 2",
        "2 > Read Request 100 A at 0 len 4",
        "2 > Read Request 102 A at 0 len 4",
        "3 < Read Response Only 100 ack msn 3",
        "3 < Read Response Only 102 ack msn 3",
        "4 > Read Request 103 A at 0 len 4",
        "5 < Read Response Only 103 ack msn 4",
    ];
    assert_eq!(pair.trace(), expected);
    assert_eq!(pair.done(0).len(), 4);
}

/// C9-105.
#[test]
fn an_atomic_whose_response_was_lost_is_executed_once() {
    let mut pair = pair();
    pair.lose(1, 100, 1);
    pair.post(1, SendOp::FetchAdd { remote: pair.remote(0), add: 5 }, 8);
    pair.post(2, SendOp::FetchAdd { remote: pair.remote(0), add: 7 }, 8);
    pair.run(100);
    let requests: Vec<String> =
        pair.packets().into_iter().filter(|line| line.starts_with('>')).collect();
    assert_eq!(requests, ["> Fetch Add 100 A", "> Fetch Add 101 A", "> Fetch Add 100 A"]);
    assert_eq!(pair.done(0).len(), 2);
    assert_eq!(memory(&pair, 1, 8), 12u64.to_ne_bytes());
}

/// No receive for a message behind a gap: the requester goes back, as the specification demands.
#[test]
fn a_message_without_a_receive_behind_a_gap_is_sent_again() {
    let mut pair = pair();
    pair.post_recv(1, 4);
    pair.lose(0, 100, 1);
    for wr_id in 1..=3 {
        pair.post(wr_id, SendOp::Send, 4);
    }
    pair.run(10);
    pair.post_recv(2, 4);
    pair.post_recv(3, 4);
    pair.run(10_000);
    assert_eq!(pair.done(0), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(pair.done(1), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)));
    let expected = [
        "> Send Only 100",
        "> Send Only 101",
        "> Send Only 102 A",
        "< Acknowledge 100 nak psn-sequence msn 0 sack [101, 102]",
        "> Send Only 100 A",
        "< Acknowledge 101 rnr-nak 640 us msn 1",
        "> Send Only 101 A",
        "> Send Only 102 A",
        "< Acknowledge 102 ack msn 3",
    ];
    assert_eq!(pair.packets(), expected);
}

/// A packet behind a gap that must be rejected is rejected when it is its turn.
#[test]
fn an_invalid_packet_behind_a_gap_is_rejected_in_order() {
    let mut pair = pair();
    pair.lose(0, 100, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(1 << 40)), 4);
    pair.post(3, SendOp::Write(pair.remote(0)), 4);
    pair.run(100);
    assert_eq!(
        pair.done(0),
        [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::WorkRequestFlushed),]
    );
    assert_eq!(pair.state(1), QpState::Err);
    let expected = [
        "< Acknowledge 100 nak psn-sequence msn 0 sack [101, 102]",
        "> Write Only 100 A at 0 len 4",
        "< Acknowledge 101 nak remote-access msn 1",
    ];
    assert_eq!(pair.packets()[3..], expected);
}

/// Packets beyond the map are dropped. Once the gap is filled, a NAK requests everything from the
/// first missing packet.
#[test]
fn packets_too_far_ahead_to_be_held_are_requested_later() {
    let mut pair = pair();
    pair.lose(0, 100, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4);
    pair.post(2, SendOp::Write(pair.remote(0)), 4);
    pair.run(1);
    for psn in [101 + Sack::SPAN, 102 + Sack::SPAN] {
        let far = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[7; 4]).reth(pair.remote(0), 4);
        pair.inject(&far);
    }
    pair.run(100);
    let expected = [
        "< Acknowledge 100 nak psn-sequence msn 0 sack [101]",
        "> Write Only 100 A at 0 len 4",
        "< Acknowledge 100 nak psn-sequence msn 0 sack [101]",
        "< Acknowledge 102 nak psn-sequence msn 2",
    ];
    assert_eq!(pair.packets()[2..], expected);
    assert_eq!(pair.done(0), [(1, Status::Success), (2, Status::Success)]);
}

/// Both the devices and the endpoints that are exchanged must offer it.
#[test]
fn without_an_agreement_the_requester_goes_back() {
    for (device, endpoint) in [(true, false), (false, true), (false, false)] {
        let config = DeviceConfig { selective_repeat: device, ..manual_config(1) };
        let mut pair = Pair::new(&PairSetup { config, ..PairSetup::default() });
        let ends = [0, 1].map(|end: usize| {
            let offered = pair.qps[end].endpoint(Psn::new(FIRST_PSN[end]), 0).unwrap();
            assert_eq!(offered.selective_repeat, device);
            Endpoint { selective_repeat: endpoint, ..offered }
        });
        pair.connect_to(&ends);
        pair.lose(0, 102, 1);
        pair.post(1, SendOp::Write(pair.remote(0)), 5 * 256);
        pair.run(100);
        let expected = [
            "1 < Acknowledge 102 nak psn-sequence msn 0",
            "2 > Write Middle 102",
            "2 > Write Middle 103",
            "2 > Write Last 104 A",
            "3 < Acknowledge 104 ack msn 1",
        ];
        assert_eq!(pair.trace()[5..], expected, "{device} {endpoint}");
        assert_eq!(pair.frames().len(), 0);
    }
}

/// A map that claims what was never sent changes nothing.
#[test]
fn a_forged_map_costs_time_and_no_data() {
    let mut pair = pair();
    let sent = fill(&mut pair, 0, 4 * 256);
    pair.lose(0, 101, 1);
    pair.post(1, SendOp::Write(pair.remote(0)), 4 * 256);
    pair.run(1);
    let mut map = [0; Sack::MAX_LEN];
    let mut sack = Sack::default();
    (1..=Sack::SPAN).for_each(|distance| sack.insert(distance));
    sack.write(&mut map);
    let syndrome = Syndrome::Nak(NakCode::PsnSequence);
    let mut nak = Crafted::new(Opcode::RC_ACKNOWLEDGE, 100, &map);
    nak.ext.aeth = Some(Aeth { syndrome, msn: Msn::new(0) });
    pair.inject_response(&nak);
    pair.run(10_000);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(memory(&pair, 1, sent.len()), sent);
    let trace = pair.trace();
    assert!(trace[5..].iter().any(|line| line == "2 > Write Middle 101 A"), "{trace:#?}");
    // Nothing of it is left: a READ of more packets than a map names goes as ever.
    pair.post(2, SendOp::Read(pair.remote(0)), 200 * 256);
    pair.run(100);
    assert_eq!(pair.done(0), [(2, Status::Success)]);
}

/// A READ of more response packets than the scoreboard covers, which loses the first one, one far
/// behind, or both, once or twice.
#[test]
fn a_long_read_recovers_from_losses_without_a_timeout() {
    const PACKETS: usize = 1500;
    for losses in [&[(1, 100, 1)][..], &[(1, 900, 1)], &[(1, 100, 1), (1, 900, 1), (1, 1400, 1)]] {
        let config = DeviceConfig { selective_repeat: true, ..manual_config(1) };
        let buffer = PACKETS * 256;
        let mut pair = Pair::new(&PairSetup { config, buffer, ..PairSetup::default() });
        let sent = fill(&mut pair, 1, buffer);
        pair.lose_all(losses);
        pair.post(1, SendOp::Read(pair.remote(0)), u32::try_from(buffer).unwrap());
        pair.run(3000);
        assert_eq!(pair.done(0), [(1, Status::Success)], "{losses:?}");
        assert!(memory(&pair, 0, buffer) == sent, "{losses:?}");
        let trace = pair.trace();
        let requested: u32 = trace
            .iter()
            .filter(|line| line.contains(" > Read Request"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap() / 256)
            .sum();
        assert!(requested < 2 * 1500 + 100, "{requested} packets were requested, {losses:?}");
    }
}

/// The peer keeps the results of as many atomics as may be in flight behind a lost response.
#[test]
fn an_atomic_whose_response_is_lost_twice_is_answered_the_third_time() {
    let mut pair = pair();
    pair.lose(1, 100, 2);
    for wr_id in 0..60 {
        pair.post(wr_id, SendOp::FetchAdd { remote: pair.remote(0), add: 1 }, 8);
    }
    pair.run(1000);
    assert_eq!(pair.done(0).len(), 60);
    assert_eq!(memory(&pair, 1, 8), 60u64.to_ne_bytes());
    assert_eq!(pair.rig.devices[0].counter(Counter::LocalAckTimeoutErr), 0);
}

/// The memory of a device has room for 1024 packets.
#[test]
fn a_qp_that_ends_behind_a_gap_returns_its_memory() {
    let mut pair = pair();
    let psns = FIRST_PSN.map(Psn::new);
    for round in 0..12 {
        let ends = [0, 1].map(|end: usize| pair.qps[end].endpoint(psns[end], 0).unwrap());
        if round % 2 == 1 {
            let failed = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
            pair.qps[1].modify(&failed).unwrap();
        }
        pair.connect_to(&ends);
        pair.lose(0, 100, 1);
        pair.post(1, SendOp::Write(pair.remote(0)), 200 * 256);
        pair.run(1);
        let held = pair.rig.devices[1].counter(Counter::HeldPackets);
        assert_eq!(held, 199 * (round + 1), "round {round}");
        pair.rig.wire.clear();
    }
}

#[test]
fn a_qp_that_does_not_offer_it_refuses_it() {
    let wanted = QpAttributes {
        state: Some(QpState::Rtr),
        selective_repeat: Some(true),
        ..QpAttributes::default()
    };
    for (device, service) in [(false, Service::Rc), (true, Service::Uc)] {
        let config = DeviceConfig { selective_repeat: device, ..manual_config(1) };
        let mut pair = Pair::new(&PairSetup { config, service, ..PairSetup::default() });
        assert!(!pair.qps[0].offers_selective_repeat());
        for state in [QpState::Rts, QpState::Err] {
            let wanted = QpAttributes { state: Some(state), ..wanted };
            assert!(pair.qps[0].modify(&wanted).is_err(), "{device} {service:?} {state:?}");
        }
    }
}
