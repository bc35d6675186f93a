//! Any bytes for an endpoint of connection management that is in the middle of everything: it never panics, answers each MAD with
//! few, and leaves nothing behind when its program goes.

use feroce_engine::cm::{CmError, CmId, EventKind, ObjectCounts, Source};
use feroce_engine::time::Duration;
use feroce_tests::cm::{DEVICE, PORT, Pair, address, parameters, random};
use feroce_wire::cm::{CmMad, CmMessage, PortSpace};

/// Inputs of a run.
const INPUTS: u64 = 2000;
/// MADs of an input.
const MADS: u32 = 40;

/// An endpoint with identifiers in several states, their names in messages that were heard on the wire.
fn busy(seed: u64) -> (Pair, Vec<CmMessage>) {
    let mut pair = Pair::new(seed);
    pair.listen(0, PortSpace::Tcp, "0.0.0.0", 0);
    pair.listen(0, PortSpace::Udp, "::", 0);
    for count in 0..6 {
        let space = if count == 5 { PortSpace::Udp } else { PortSpace::Tcp };
        pair.dial(1, space, 0x50 + count, b"");
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
    // A question and a request of its own are under way, and stay so.
    pair.delivery = Box::new(|_, _| Vec::new());
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = pair.route(0, space, false, PORT);
        pair.ends[0].connect(id, &parameters(0x90), b"", pair.now).expect("a route");
    }
    pair.flush();
    let heard = pair.sent_messages.iter().map(|said| said.message).collect();
    (pair, heard)
}

#[test]
fn any_bytes() {
    for seed in 0..INPUTS {
        let mut draw = random(seed);
        let (mut pair, heard) = busy(seed % 8);
        for _ in 0..MADS {
            let message = heard[draw() as usize % heard.len()];
            let mut mad = CmMad { transaction: 1, modifier: 0, message }.to_bytes();
            for _ in 0..draw() % 6 {
                // The names and what is near them more often than the rest.
                let at = 24 + draw() as usize % if draw().is_multiple_of(2) { 16 } else { 232 };
                mad[at] = draw().to_be_bytes()[0];
            }
            if draw().is_multiple_of(4) {
                mad[17] = 0x10 + draw().to_be_bytes()[0] % 11;
            }
            let from =
                Source { device: DEVICE, local: address(0, false), remote: address(1, false) };
            let _ = pair.ends[0].receive(&mad, &from, pair.now);
            let mut answers = 0;
            while pair.ends[0].transmit().is_some() {
                answers += 1;
            }
            assert!(answers <= 2, "seed {seed}: {answers} answers");
            if draw().is_multiple_of(3) {
                pair.now += Duration::from_millis(u64::from(draw() % 3000));
                pair.ends[0].expire(pair.now);
                while pair.ends[0].transmit().is_some() {}
            }
        }
        everything_goes(&mut pair);
    }
}

fn everything_goes(pair: &mut Pair) {
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
