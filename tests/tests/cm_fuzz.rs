//! Random MADs for a CM endpoint with identifiers in several states.
//!
//! The endpoint never panics, sends at most two MADs for each received one, and holds nothing after
//! all identifiers are destroyed.

use feroce_engine::cm::{CmError, CmId, EventKind, ObjectCounts, Source};
use feroce_engine::time::Duration;
use feroce_tests::cm::{DEVICE, PORT, Pair, address, parameters, random};
use feroce_wire::cm::{CmMad, CmMessage, PortSpace};

/// Inputs per run.
const INPUTS: u64 = 2000;
/// MADs per input.
const MADS: u32 = 40;

/// A pair of endpoints with identifiers in several states, and the messages sent so far, which
/// contain the communication IDs of these identifiers.
fn busy_pair(seed: u64) -> (Pair, Vec<CmMessage>) {
    let mut pair = Pair::new(seed);
    pair.listen(0, PortSpace::Tcp, "0.0.0.0", 0);
    pair.listen(0, PortSpace::Udp, "::", 0);
    for count in 0..6 {
        let space = if count == 5 { PortSpace::Udp } else { PortSpace::Tcp };
        pair.connect(1, space, 0x50 + count, b"");
        pair.run_until(u64::from(count) * 4 + 1);
        pair.delivered.retain(|(_, _, event)| event.kind == EventKind::ConnectRequest);
        let id = pair.expect(0, EventKind::ConnectRequest).id;
        if count == 0 || count == 5 {
            continue;
        }
        pair.accept(0, id, 0x70 + count, b"");
        pair.run_until(u64::from(count) * 4 + 2);
        pair.delivered.retain(|(_, _, event)| event.kind == EventKind::ConnectResponse);
        let active = pair.expect(1, EventKind::ConnectResponse).id;
        if count > 1 {
            pair.ends[1].establish(active, b"").expect("accepted");
            pair.flush();
            pair.run_until(u64::from(count) * 4 + 3);
            assert_eq!(pair.ends[0].state(id), Ok(feroce_engine::cm::State::Established));
        }
        if count > 2 {
            pair.ends[usize::from(count > 3)]
                .disconnect([id, active][usize::from(count > 3)], pair.now)
                .expect("connected");
            pair.flush();
        }
    }
    // End 0 also has a REQ and a SIDR_REQ outstanding. From here on every message is lost.
    pair.delivery = Box::new(|_, _| Vec::new());
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = pair.route(0, space, false, PORT);
        pair.ends[0].connect(id, &parameters(0x90), b"", pair.now).expect("a route");
    }
    pair.flush();
    let sent = pair.sent_messages.iter().map(|said| said.message).collect();
    (pair, sent)
}

#[test]
fn random_mads_do_no_harm() {
    for seed in 0..INPUTS {
        let mut draw = random(seed);
        let (mut pair, sent) = busy_pair(seed % 8);
        for _ in 0..MADS {
            let message = sent[draw() as usize % sent.len()];
            let mut mad = CmMad { transaction: 1, modifier: 0, message }.to_bytes();
            for _ in 0..draw() % 6 {
                // Communication ids and the fields near them change more often than the rest.
                let at = 24 + draw() as usize % if draw().is_multiple_of(2) { 16 } else { 232 };
                mad[at] = draw().to_be_bytes()[0];
            }
            if draw().is_multiple_of(4) {
                mad[17] = 0x10 + draw().to_be_bytes()[0] % 11;
            }
            let from =
                Source { device: DEVICE, local: address(0, false), remote: address(1, false) };
            let _ = pair.ends[0].receive(&mad, &from, pair.now);
            let mut responses = 0;
            while pair.ends[0].transmit().is_some() {
                responses += 1;
            }
            assert!(responses <= 2, "seed {seed}: {responses} MADs sent");
            if draw().is_multiple_of(3) {
                pair.now += Duration::from_millis(u64::from(draw() % 3000));
                pair.ends[0].expire(pair.now);
                while pair.ends[0].transmit().is_some() {}
            }
        }
        destroy_everything(&mut pair);
    }
}

/// Destroys all identifiers of end 0 and checks that nothing is left of them.
fn destroy_everything(pair: &mut Pair) {
    while pair.ends[0].event().is_some() {}
    for number in 0..400 {
        match pair.ends[0].destroy(CmId::from_number(number), pair.now) {
            Ok(()) | Err(CmError::Unknown) => {}
            Err(error) => panic!("{error}"),
        }
    }
    pair.now += Duration::from_secs(1000);
    while let Some(deadline) = pair.ends[0].next_deadline() {
        pair.now = pair.now.max(deadline);
        pair.ends[0].expire(pair.now);
        while pair.ends[0].transmit().is_some() {}
    }
    assert_eq!(pair.ends[0].object_counts(), ObjectCounts::default());
}
