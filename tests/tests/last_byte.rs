//! Programs spin on the last byte of a WRITE: when it has arrived, all before it must be there.
//!
//! One thread turns the devices, another spins. The other properties of the memory door are tested where it
//! is; this one shows only between two processors.

use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::Buffer;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::drain;
use feroce_tests::pair::{Pair, PairSetup};
use feroce_wire::PathMtu;

/// WRITEs of each length.
const ROUNDS: usize = 1000;

/// Shorter than a word, around the lengths that are stored word by word, a packet, more than one.
const LENGTHS: [usize; 7] = [9, 33, 64, 200, 4093, 4096, 10_000];

/// Where the bytes go: not aligned for the lengths that are odd.
const OFFSET: usize = 8;

/// The value of every byte of round `round`: another than that of the round before.
fn value(round: usize) -> u8 {
    u8::try_from(round % 255).expect("below 255") + 1
}

/// Waits for the last byte of each round; fails if a byte before it is still of the round before.
fn watch(buffer: &Buffer, len: usize, watched: &AtomicUsize) -> Result<(), String> {
    let mut bytes = vec![0; len - 1];
    for round in 0..ROUNDS {
        let mut spins = 0_u32;
        while buffer.load_byte(OFFSET + len - 1) != value(round) {
            spins += 1;
            // With fewer processors than threads, the one that writes must get its turn.
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
                "round {round}: the last of {len} bytes is there, byte {at} is not"
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
