//! Programs spin on the last byte of a WRITE: when this byte is visible, all bytes before it must
//! be visible.
//!
//! One thread runs the devices, another spins. This property of the MR access check shows only
//! between two processors; the other properties are tested in `engine/src/memory/access.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::Buffer;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::drain;
use feroce_tests::pair::{Pair, PairSetup};
use feroce_wire::PathMtu;

/// Number of WRITEs of each length.
const ROUNDS: usize = 1000;

/// Lengths in bytes: around those that are stored word by word, one packet, more than one packet.
const LENGTHS: [usize; 7] = [9, 33, 64, 200, 4093, 4096, 10_000];

/// Offset of the data in the buffer, a multiple of 8 bytes. Data of odd length ends unaligned.
const OFFSET: usize = 8;

/// The value of every byte of round `round`. Consecutive rounds have different values.
fn value(round: usize) -> u8 {
    u8::try_from(round % 255).expect("below 255") + 1
}

/// Waits for the last byte of each round. Fails if a byte before it is still that of the previous
/// round.
fn watch(buffer: &Buffer, len: usize, watched: &AtomicUsize) -> Result<(), String> {
    let mut bytes = vec![0; len - 1];
    for round in 0..ROUNDS {
        let mut spins = 0_u32;
        while buffer.load_byte(OFFSET + len - 1) != value(round) {
            spins += 1;
            // With fewer processors than threads, the writing thread needs time to run.
            if spins.is_multiple_of(1 << 14) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
        buffer.read(OFFSET, &mut bytes);
        watched.store(round + 1, Ordering::Release);
        if let Some(at) = bytes.iter().position(|&byte| byte != value(round)) {
            watched.store(ROUNDS, Ordering::Release);
            return Err(format!(
                "round {round}: the last of {len} bytes is visible, byte {at} is not"
            ));
        }
    }
    Ok(())
}

#[test]
fn the_last_byte_arrives_last() {
    for len in LENGTHS {
        let setup = PairSetup::with(|options| options.path_mtu = Some(PathMtu::Mtu4096));
        let Pair { mut rig, mut qps, cqs, buffers, pds: _pds, .. } = Pair::new(&setup);
        let to = buffers[1].region();
        let remote = RemoteAddr { addr: to.addr() + OFFSET as u64, rkey: to.rkey() };
        let sges = [buffers[0].region().sge(0, u32::try_from(len).expect("short"))];
        let watched = AtomicUsize::new(0);
        let (target, watched) = (&buffers[1], &watched);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(move || watch(target, len, watched));
            for round in 0..ROUNDS {
                buffers[0].write(0, &vec![value(round); len]);
                let (op, data) = (SendOp::Write(remote), Data::Sges(&sges));
                let write = SendRequest { wr_id: 0, op, data, flags: SendFlags::SIGNALED };
                qps[0].post_send(&write).expect("posted");
                rig.run_for(Duration::from_micros(10));
                assert!(drain(&cqs[0]).iter().all(|completion| completion.is_success()));
                while watched.load(Ordering::Acquire) <= round {
                    std::thread::yield_now();
                }
            }
            watcher.join().expect("the watcher ends").unwrap_or_else(|why| panic!("{why}"));
        });
    }
}
