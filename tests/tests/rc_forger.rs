//! A forger who is not on the path: it knows the addresses and even the QP number of a connection,
//! but sees none of its packets, so it must guess PSN, source port and message number. In virtual
//! time, with the PSN guessed right.

use feroce_engine::counters::Counter;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::verbs::{SendOp, Status};
use feroce_tests::pair::{Crafted, FIRST_PSN, Pair, PairSetup};
use feroce_wire::{Aeth, MacAddr, Msn, NakCode, Opcode, Syndrome};

/// Messages after which the habits of a peer are known.
const LEARNED: u32 = 20;

/// A pair after [`LEARNED`] WRITEs each way, and the UDP source port of each end.
fn talking_pair() -> (Pair, [u16; 2]) {
    let mut pair = Pair::default();
    for n in 0..LEARNED {
        pair.post(u64::from(n), SendOp::Write(pair.remote(0)), 64);
        pair.run(10);
    }
    assert_eq!(pair.done(0).len(), LEARNED as usize);
    pair.trace(); // Forgets it.
    let ports = [0, 1].map(|end| pair.source_port(end));
    (pair, ports)
}

/// The PSN of the next request of end 0.
const NEXT: u32 = FIRST_PSN[0] + LEARNED;

fn fatal_nak(psn: u32, msn: u32, port: u16) -> Crafted<'static> {
    let mut crafted = Crafted::new(Opcode::RC_ACKNOWLEDGE, psn, &[]);
    let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
    crafted.bth.ack_req = false;
    crafted.ext.aeth = Some(Aeth { syndrome, msn: Msn::new(msn) });
    crafted.source_port = Some(port);
    crafted
}

fn count(pair: &Pair, end: usize, counter: Counter) -> u64 {
    pair.counters(end).iter().find(|(of, _)| *of == counter).map_or(0, |(_, value)| *value)
}

/// Posts a WRITE, lets end 1 answer `forged` before its real answer, and returns how it ended.
fn write_with(pair: &mut Pair, forged: &[Crafted<'_>]) -> Vec<(u64, Status)> {
    pair.post(1000, SendOp::Write(pair.remote(0)), 64);
    pair.run(0);
    forged.iter().for_each(|crafted| pair.inject_response(crafted));
    pair.run(100);
    pair.done(0)
}

#[test]
fn a_nak_from_another_port_or_address_is_dropped() {
    for mac in [None, Some(MacAddr([2, 0, 0, 0, 0, 0x66]))] {
        let (mut pair, ports) = talking_pair();
        let port = if mac.is_some() { ports[1] } else { ports[1] ^ 1 };
        for n in 0..50 {
            let mut nak = fatal_nak(NEXT + n, LEARNED + n, port);
            nak.source_mac = mac;
            let copies = [nak.clone(), nak.clone(), nak];
            assert_eq!(write_with(&mut pair, &copies), [(1000, Status::Success)]);
        }
        assert_eq!(pair.state(0), QpState::Rts);
        assert_eq!(count(&pair, 0, Counter::RxUnusualOrigin), 150);
    }
}

#[test]
fn a_nak_with_an_impossible_message_number_is_dropped() {
    let (mut pair, ports) = talking_pair();
    for n in 0..50 {
        let nak = fatal_nak(NEXT + n, LEARNED + n + 0x1000, ports[1]);
        let copies = [nak.clone(), nak.clone(), nak];
        assert_eq!(write_with(&mut pair, &copies), [(1000, Status::Success)]);
    }
    assert_eq!(count(&pair, 0, Counter::RxImplausibleMsn), 150);
}

#[test]
fn a_nak_of_no_outstanding_packet_is_counted() {
    let (mut pair, ports) = talking_pair();
    pair.inject_response(&fatal_nak(NEXT + 5000, LEARNED, ports[1]));
    pair.run(10);
    assert_eq!(count(&pair, 0, Counter::RxUnaskedResponses), 1);
    assert_eq!(pair.state(0), QpState::Rts);
}

/// The forger who guesses all of it wins: a NAK of the peer itself looks the same.
#[test]
fn the_peers_own_nak_ends_the_connection() {
    let (mut pair, ports) = talking_pair();
    let nak = fatal_nak(NEXT, LEARNED, ports[1]);
    assert_eq!(write_with(&mut pair, &[nak]), [(1000, Status::RemoteAccess)]);
}

#[test]
fn requests_from_another_port_are_neither_executed_nor_answered() {
    let (mut pair, ports) = talking_pair();
    let target = pair.remote(0);
    for psn in [NEXT, NEXT + 1, NEXT + 1000, NEXT - 1] {
        let mut write = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[7; 4]).reth(target, 4);
        write.source_port = Some(ports[0] ^ 1);
        pair.inject(&write);
        pair.run(10);
        assert_eq!(pair.packets().len(), 0, "PSN {psn}");
    }
    assert_ne!(pair.buffers[1].load_byte(0), 7);
    assert_eq!(count(&pair, 1, Counter::RxUnusualOrigin), 4);
    assert_eq!(write_with(&mut pair, &[]), [(1000, Status::Success)]);
}

/// A peer whose port changes, as after a failover, is followed after 5 ms: its retries reach the
/// QP. What it repeats may have been executed already, if the response was lost in the failover.
#[test]
fn a_peer_that_changes_its_port_is_followed() {
    for is_new in [true, false] {
        let (mut pair, ports) = talking_pair();
        let psn = if is_new { NEXT } else { NEXT - 1 };
        let target = pair.remote(0);
        let mut write = Crafted::new(Opcode::RC_WRITE_ONLY, psn, &[7; 4]).reth(target, 4);
        write.source_port = Some(ports[0] ^ 1);
        for _ in 0..2 {
            pair.inject(&write);
            pair.run(10);
            assert_eq!(pair.packets().len(), 0);
        }
        pair.run(6000);
        pair.inject(&write);
        pair.run(10);
        let msn = LEARNED + u32::from(is_new);
        assert_eq!(pair.packets(), [format!("< Acknowledge {psn} ack msn {msn}")]);
        assert_eq!(pair.buffers[1].load_byte(0) == 7, is_new);
    }
}

/// UC repeats nothing: all later messages would be lost if only the expected PSN could tell that
/// the peer's port has changed.
#[test]
fn a_uc_peer_that_changes_its_port_is_followed() {
    let mut pair = Pair::new(&PairSetup { service: Service::Uc, ..PairSetup::default() });
    for n in 0..LEARNED {
        pair.post(u64::from(n), SendOp::Write(pair.remote(0)), 64);
        pair.run(10);
    }
    let (target, port) = (pair.remote(0), pair.source_port(0));
    let mut arrived = 0;
    for n in 0..10 {
        let payload = [100 + n; 4];
        let psn = NEXT + u32::from(n);
        let mut write = Crafted::new(Opcode::UC_WRITE_ONLY, psn, &payload).reth(target, 4);
        write.source_port = Some(port ^ 1);
        pair.inject(&write);
        pair.run(1000);
        arrived += u8::from(pair.buffers[1].load_byte(0) == 100 + n);
    }
    assert_eq!(arrived, 5, "those of the first 5 ms are lost");
}
