//! A connection that uses the whole PSN space and wraps around.

use feroce_engine::device::{ConnectOptions, Device, QpInit};
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::{addresses, manual_config};
use feroce_wire::{Key, Psn};

/// WRITEs posted at a time; the last one is signaled.
const BATCH: u64 = 64;

/// Serial numbers change their order after half of the PSN space, and repeat after all of it.
#[test]
fn writes_wrap_around_the_whole_psn_space() {
    let arena = Arena::new(64 << 20).unwrap();
    let (a, b) = shm_pair(&arena, ShmConfig::default()).unwrap();
    let open = |end, port| {
        Device::with_ports(vec![Box::new(port)], addresses(end), manual_config(1)).unwrap()
    };
    let devices = [open(0, a), open(1, b)];
    let cqs = [0, 1].map(|end| devices[end].create_cq(256).unwrap());
    let mut qps =
        [0, 1].map(|end| devices[end].alloc_pd().create_qp(&QpInit::new(&cqs[end])).unwrap());
    let psn = Psn::new(1);
    let ends = [0, 1].map(|end| qps[end].endpoint(psn, 0).unwrap());
    for end in 0..2 {
        qps[end].connect(psn, &ends[1 - end], &ConnectOptions::default()).unwrap();
    }
    // A WRITE of 0 bytes is one packet and needs no key (C9-88).
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Key::from_parts(0, 0) });
    let mut now = Instant::ZERO;
    for batch in 0..((1 << 24) + 4096) / BATCH {
        for n in 1..=BATCH {
            let flags = if n == BATCH { SendFlags::SIGNALED } else { SendFlags::NONE };
            let request = SendRequest { wr_id: batch, op, data: Data::Sges(&[]), flags };
            qps[0].post_send(&request).unwrap();
        }
        now += Duration::from_micros(1);
        while devices.iter().map(|device| device.turn(now)).sum::<usize>() > 0 {}
        let done = cqs[0].poll_one().unwrap_or_else(|| panic!("stuck after batch {batch}"));
        assert!(done.is_success() && done.wr_id == batch, "{done:?}");
    }
}
