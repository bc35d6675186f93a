//! Turns fuzz input into what hostile programs do to a daemon: messages at the control socket, any
//! value anywhere in the memory of their rings, and frames. Another input is what arrives from the
//! link.
//!
//! After each step a neighbour, a program at the same daemon, exchanges a frame with its peer, and
//! every frame that left the host is checked. At the end a new program must be able to attach.
//!
//! The fuzz target `daemon` of `engine/fuzz` calls [`feed`]; the test below calls it with random
//! inputs.

mod input;
mod network;
mod world;

use self::input::Input;
use self::world::World;
use crate::port::daemon::protocol::{Answer, Request, VERSION};
use crate::time::Duration;

/// Programs of the attacker at the same time.
const HOSTILE: usize = 4;

/// Lets hostile programs act as `data` says.
///
/// # Panics
/// If the daemon panics, a frame leaves the host that no program may send, or the neighbour notices
/// anything.
pub fn feed(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    while !input.is_empty() {
        step(&mut world, &mut input);
        world.check_neighbour();
    }
    world.check_newcomer();
}

/// Acts once.
fn step(world: &mut World, input: &mut Input<'_>) {
    let kind = input.byte() % 16;
    let chosen = usize::from(input.byte()) % HOSTILE;
    match kind {
        0 => world.connect(chosen),
        1 => {
            world.connect(chosen);
            let program = "evil".to_owned();
            world.call(chosen, &Request::Attach { version: VERSION, program });
            world.call(chosen, &Request::Ready);
            if let Some(Answer::Slice(first)) = world.call(chosen, &Request::QpnSlice) {
                let remote_qpn = first ^ 0x80_0000;
                let remote = network::PEER.into();
                world.call(chosen, &Request::Connect { qpn: first, remote, remote_qpn });
            }
            world.call(chosen, &world::path_to_peer());
        }
        2..=5 => {
            let request = input.request(&world.qpns(chosen));
            world.call(chosen, &request);
        }
        6 => world.send_bytes(chosen, input.bytes()),
        7 => {
            let request = input.request(&world.qpns(chosen));
            let mut message = world::message(&request);
            input.damage(&mut message);
            world.send_bytes(chosen, &message);
        }
        8 => world.corrupt(chosen, input.word(), input.word()),
        9..=11 => {
            let frame = input.frame(&world.qpns(chosen));
            world.send_frame(chosen, &frame, usize::from(input.byte()));
        }
        12 => {
            let frame = input.frame_from_link(&world.qpns(chosen));
            world.arrive_for_others(&frame);
        }
        13 => world.take_frames(chosen),
        14 => world.advance(Duration::from_nanos(1 << (input.byte() % 38))),
        _ => world.close(chosen),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Inputs that a fuzzer has found: those that once failed, and those that reach most code.
    #[test]
    fn known_inputs_harm_nobody_else() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        for kind in ["regressions/daemon", "seeds/daemon"] {
            let files = std::fs::read_dir(folder.join(kind)).expect(kind);
            let mut count = 0;
            for file in files {
                let path = file.expect(kind).path();
                eprintln!("{}", path.display()); // Shown if it fails.
                super::feed(&std::fs::read(path).expect(kind));
                count += 1;
            }
            assert!(count > 0, "{kind}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn random_inputs_harm_nobody_else(data in prop::collection::vec(any::<u8>(), 0..600)) {
            super::feed(&data);
        }
    }
}
