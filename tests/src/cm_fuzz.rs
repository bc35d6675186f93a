//! Turns fuzz input into what happens to a communication management endpoint: messages of a peer,
//! changed or not, commands of its program, and time. The fuzz target `cm` of `engine/fuzz` uses
//! this module; `tests/tests/fuzz_smoke.rs` runs it on the stored inputs.
//!
//! The endpoint never panics, sends at most two messages for each received one, and holds nothing
//! after all identifiers are destroyed.

use feroce_engine::cm::{CmError, CmId, EventKind, ObjectCounts, Source, State};
use feroce_engine::time::Duration;
use feroce_wire::MAD_LEN;
use feroce_wire::cm::{CmMad, CmMessage, PortSpace, RejectReason};

use crate::cm::{DEVICE, PORT, Pair, address, parameters};

/// Length of the header of a MAD.
const HEADER: usize = 24;
/// Offset of the low byte of the attribute, which says what message it is.
const ATTRIBUTE: usize = 17;
/// First attribute of a message of communication management, and the number of them.
const ATTRIBUTES: (u8, u8) = (0x10, 11);
/// Numbers of identifiers that commands name: the first ones that the endpoint makes.
const NAMED: u32 = 48;
/// Most messages that the peer knows.
const MOST_KNOWN: usize = 256;
/// Most new connections of an input.
const MOST_CONNECTS: u32 = 32;

/// Returns two endpoints with identifiers in several states; from now on all messages are lost.
///
/// # Panics
/// If an endpoint refuses.
pub fn busy_pair(seed: u64) -> Pair {
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
            assert_eq!(pair.ends[0].state(id), Ok(State::Established));
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
    pair
}

/// The messages that both ends of `pair` have sent.
pub fn sent_messages(pair: &Pair) -> Vec<CmMessage> {
    pair.sent_messages.iter().map(|sent| sent.message).collect()
}

/// Destroys all identifiers of end 0 and checks that nothing is left of them.
///
/// # Panics
/// If something is left.
pub fn destroy_everything(pair: &mut Pair) {
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

/// Gives `mad` to end 0, which has nothing to send, and takes what it sends.
///
/// # Panics
/// If it sends more than two messages.
pub fn receive(pair: &mut Pair, mad: &[u8]) {
    let from = Source { device: DEVICE, local: address(0, false), remote: address(1, false) };
    let _ = pair.ends[0].receive(mad, &from, pair.now);
    let responses = std::iter::from_fn(|| pair.ends[0].transmit()).count();
    assert!(responses <= 2, "{responses} messages sent for one");
}

/// Reads the input byte by byte; returns zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

/// Feeds `data` to an endpoint with identifiers in several states.
///
/// # Panics
/// If the endpoint panics, sends too much, or keeps something of a destroyed identifier.
pub fn feed(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut pair = busy_pair(u64::from(bytes.next() % 4));
    let mut known: Vec<[u8; MAD_LEN]> = sent_messages(&pair)
        .into_iter()
        .map(|message| CmMad { transaction: 1, modifier: 0, message }.to_bytes())
        .collect();
    let mut connects = 0;
    while !bytes.0.is_empty() {
        match bytes.next() % 8 {
            0..=3 => {
                let mad = changed(&known, &mut bytes);
                receive(&mut pair, &mad);
            }
            4 => while pair.ends[0].event().is_some() {},
            5 | 6 => connects = command(&mut pair, &mut bytes, connects),
            _ => {
                pair.now += Duration::from_millis(1 << (bytes.next() % 16));
                pair.ends[0].expire(pair.now);
            }
        }
        // What the endpoint sends by itself is known to the peer, who can change it.
        while let Some(sent) = pair.ends[0].transmit() {
            if known.len() < MOST_KNOWN {
                known.push(sent.mad);
            }
        }
    }
    destroy_everything(&mut pair);
}

/// Returns one of the `known` messages, with up to seven bytes changed.
fn changed(known: &[[u8; MAD_LEN]], bytes: &mut Bytes<'_>) -> [u8; MAD_LEN] {
    let mut mad = known[usize::from(bytes.next()) % known.len()];
    let how = bytes.next();
    for _ in 0..how & 7 {
        let at = usize::from(bytes.next());
        // Communication IDs and the fields near them change more often than the rest.
        let at = if how & 8 == 0 { HEADER + at % 24 } else { at };
        mad[at] = bytes.next();
    }
    if how & 16 != 0 {
        mad[ATTRIBUTE] = ATTRIBUTES.0 + bytes.next() % ATTRIBUTES.1;
    }
    mad
}

/// Runs a command of the program. Returns the number of connections that it has requested.
fn command(pair: &mut Pair, bytes: &mut Bytes<'_>, connects: u32) -> u32 {
    let id = CmId::from_number(u32::from(bytes.next()) % NAMED);
    let what = bytes.next();
    let (end, now) = (&mut pair.ends[0], pair.now);
    let qpn = u32::from(bytes.next());
    // A command for a state that the identifier is not in is refused.
    let _ = match what % 8 {
        0 => end.accept(id, &parameters(qpn), b"x", now),
        1 => end.reject(id, RejectReason(u16::from(what >> 3)), b"", now),
        2 => end.establish(id, b""),
        3 => end.disconnect(id, now),
        4 => end.destroy(id, now),
        5 => end.notify_established(id),
        6 => end.take_request(id),
        _ if connects < MOST_CONNECTS => {
            while pair.ends[0].event().is_some() {}
            let space = if what & 8 == 0 { PortSpace::Tcp } else { PortSpace::Udp };
            let id = pair.route(0, space, what & 16 != 0, PORT);
            let requested = pair.ends[0].connect(id, &parameters(qpn), b"", now);
            requested.expect("it has a route");
            return connects + 1;
        }
        _ => Ok(()),
    };
    connects
}
