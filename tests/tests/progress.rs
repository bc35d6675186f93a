//! Progress without polling, with real threads: the device of a program that never polls responds
//! to READs and receives WRITEs, and a program that only spins on the last byte of its buffer sees
//! each WRITE as a whole.

use std::sync::atomic::{AtomicU32, Ordering};

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Driver, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::ports::{PortResources, RigPorts};
use feroce_tests::{addresses, manual_config};
use feroce_wire::{PathMtu, Psn};

const BUFFER: usize = 64 << 10;

/// A requester that polls, and a peer whose program only accesses its buffer.
struct Rig {
    cq: CompletionQueue,
    qp: QueuePair,
    near: Buffer,
    far: Buffer,
    // Unused, but dropping them would close the connection.
    _peer: (QueuePair, CompletionQueue, [Device; 2], PortResources),
}

fn rig() -> Rig {
    let config = DeviceConfig { driver: Driver::Helper, seed: None, ..manual_config(0) };
    let (ports, resources) = RigPorts::cable();
    let mut end = 0..2;
    let devices = ports.map(|port| {
        let addresses = addresses(end.next().unwrap());
        Device::with_ports(vec![port], addresses, config.clone()).unwrap()
    });
    let pds = devices.each_ref().map(Device::alloc_pd);
    let cqs = devices.each_ref().map(|device| device.create_cq(64).unwrap());
    let [near, far] = pds.each_ref().map(|pd| pd.alloc_buffer(BUFFER, Access::ALL).unwrap());
    let mut qps = [0, 1].map(|end| pds[end].create_qp(&QpInit::new(&cqs[end])).unwrap());
    // A timeout of seconds: the peer's thread may wait for a CPU, and nothing is lost here.
    let path_mtu = Some(PathMtu::Mtu4096);
    let options = ConnectOptions { path_mtu, timeout: 20, ..ConnectOptions::default() };
    let psns = [Psn::new(0xff_f000), Psn::new(5)];
    let ends = [0, 1].map(|end| qps[end].endpoint(psns[end], 0).unwrap());
    for end in 0..2 {
        qps[end].connect(psns[end], &ends[1 - end], &options).unwrap();
    }
    let ([qp, peer_qp], [cq, peer_cq]) = (qps, cqs);
    Rig { cq, qp, near, far, _peer: (peer_qp, peer_cq, devices, resources) }
}

/// Posts one request and polls until it completes.
fn run(
    qp: &mut QueuePair,
    cq: &CompletionQueue,
    near: &Buffer,
    (offset, len): (usize, usize),
    op: SendOp,
) {
    let sge = near.region().sge(offset as u64, u32::try_from(len).unwrap());
    let data = Data::Sges(std::slice::from_ref(&sge));
    qp.post_send(&SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED }).unwrap();
    let done = loop {
        match cq.poll_one() {
            Some(done) => break done,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(done.status, Status::Success);
}

/// The offset and length of a round. They vary in the number of packets, the alignment and the
/// tail.
fn shape(round: u32) -> (usize, usize) {
    const LENGTHS: [usize; 14] = [1, 2, 7, 8, 9, 15, 16, 63, 65, 1025, 4095, 4096, 8191, 10_007];
    let round = round as usize;
    (round / LENGTHS.len() % 17, LENGTHS[round % LENGTHS.len()])
}

/// Byte `at` of the WRITE of `round`; never 0.
fn byte(round: u32, at: usize) -> u8 {
    u8::try_from((round as usize * 31 + at * 7) % 255 + 1).unwrap()
}

fn bytes(round: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(round, at)).collect()
}

#[test]
fn a_program_that_never_polls_answers_reads_and_writes() {
    let Rig { cq, mut qp, near, far, _peer } = rig();
    let remote = |offset: usize| RemoteAddr {
        addr: far.region().addr() + offset as u64,
        rkey: far.region().rkey(),
    };
    for round in 0..3_000 {
        let (offset, len) = shape(round);
        let data = bytes(round, len);
        near.write(offset, &data);
        run(&mut qp, &cq, &near, (offset, len), SendOp::Write(remote(offset)));
        near.write(offset, &vec![0; len]);
        run(&mut qp, &cq, &near, (offset, len), SendOp::Read(remote(offset)));
        let mut back = vec![0; len];
        near.read(offset, &mut back);
        assert_eq!(back, data, "round {round}: {len} bytes at {offset}");
        if len >= 8 {
            let word = remote(offset.next_multiple_of(8));
            run(&mut qp, &cq, &near, (0, 8), SendOp::FetchAdd { remote: word, add: 1 });
        }
    }
}

#[test]
fn a_reader_that_spins_on_the_last_byte_sees_the_whole_write() {
    const ROUNDS: u32 = 40_000;
    let Rig { cq, mut qp, near, far, _peer } = rig();
    let (ready, stopped) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let spinner = scope.spawn(|| {
            let _stop = StopOnDrop(&stopped);
            let mut got = vec![0; BUFFER];
            for round in 0..ROUNDS {
                let (offset, len) = shape(round);
                far.write(offset, &vec![0; len]);
                ready.store(round + 1, Ordering::Release);
                spin_until(|| far.load_byte(offset + len - 1) != 0);
                let got = &mut got[..len];
                // Read from the back: a reader from the front would always stay behind a writer
                // that copies from the front.
                for at in (0..len).rev() {
                    got[at] = far.load_byte(offset + at);
                }
                assert_eq!(got, bytes(round, len), "round {round}: {len} bytes at {offset}");
            }
        });
        for round in 0..ROUNDS {
            let (offset, len) = shape(round);
            near.write(offset, &bytes(round, len));
            spin_until(|| {
                ready.load(Ordering::Acquire) > round || stopped.load(Ordering::Acquire) > 0
            });
            if stopped.load(Ordering::Acquire) > 0 {
                break; // The spinner failed; the join below reports its panic.
            }
            let (addr, rkey) = (far.region().addr() + offset as u64, far.region().rkey());
            let op = SendOp::Write(RemoteAddr { addr, rkey });
            run(&mut qp, &cq, &near, (offset, len), op);
        }
        spinner.join().unwrap();
    });
}

/// Sets the flag when dropped, so that the other thread learns of a normal end and of a panic.
struct StopOnDrop<'a>(&'a AtomicU32);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
    }
}

/// Spins until `done` returns true, and yields at times, because the machine may have fewer CPUs
/// than this test has threads.
fn spin_until(mut done: impl FnMut() -> bool) {
    while !done() {
        for _ in 0..1000 {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}
