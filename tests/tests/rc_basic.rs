//! All RC operations between two devices in virtual time, without faults.

use feroce_engine::counters::Counter;
use feroce_engine::device::{Buffer, ConnectOptions, PostError, QpInit, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{
    CompletionOpcode, Data, Extra, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_tests::{Rig, drain, manual_config, new_rig};
use feroce_wire::{PathMtu, Psn};

const LEN: usize = 1 << 20;

struct Pair {
    rig: Rig,
    cqs: [feroce_engine::device::CompletionQueue; 2],
    qps: [QueuePair; 2],
    buffers: [Buffer; 2],
}

fn pair(options: &ConnectOptions) -> Pair {
    let rig = new_rig(&manual_config(1), Duration::from_micros(1));
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(1024).unwrap());
    let buffers = [0, 1].map(|end| pds[end].alloc_buffer(2 * LEN, Access::ALL).unwrap());
    let inits = [0, 1].map(|end| QpInit { max_send_sge: 4, ..QpInit::new(&cqs[end]) });
    let psns = [Psn::new(0xff_fffd), Psn::new(0xff_fff0)];
    let qps = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, options);
    Pair { rig, cqs, qps, buffers }
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 7 % 251).unwrap() ^ salt).collect()
}

fn remote(buffer: &Buffer, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: buffer.region().addr() + offset, rkey: buffer.region().rkey() }
}

/// The core of an idle QP learns of a batch when it ends, also if a request was refused.
#[test]
fn a_batch_is_sent_when_it_ends() {
    let mut pair = pair(&ConnectOptions::default());
    let sent = |pair: &Pair| pair.rig.devices[0].counter(Counter::PortXmitPackets);
    let to = remote(&pair.buffers[1], 0);
    let sge = pair.buffers[0].region().sge(0, 64);
    let (few, many) = ([sge], [sge; 5]);
    let write = |wr_id, sges| SendRequest {
        wr_id,
        op: SendOp::Write(to),
        data: Data::Sges(sges),
        flags: SendFlags::SIGNALED,
    };
    pair.rig.settle();
    let now = pair.rig.now;
    let mut batch = pair.qps[0].batch();
    batch.post_send(&write(1, &few)).unwrap();
    pair.rig.devices[0].turn(now);
    assert_eq!(pair.rig.devices[0].counter(Counter::PortXmitPackets), 0);
    assert_eq!(batch.post_send(&write(2, &many)), Err(PostError::TooManySges));
    batch.post_send(&write(3, &few)).unwrap();
    drop(batch);
    pair.rig.devices[0].turn(now);
    assert_eq!(sent(&pair), 2);
    pair.rig.run_for(Duration::from_millis(1));
    let completed: Vec<u64> = drain(&pair.cqs[0]).iter().map(|done| done.wr_id).collect();
    assert_eq!(completed, [1, 3]);
}

#[test]
fn every_operation_works_at_every_mtu_and_edge_length() {
    for mtu in PathMtu::ALL {
        let options = ConnectOptions { path_mtu: Some(mtu), ..ConnectOptions::default() };
        let mut pair = pair(&options);
        let m = mtu.bytes() as usize;
        for (n, len) in [0, 1, 3, m - 1, m, m + 1, 65_537, LEN].into_iter().enumerate() {
            let data = pattern(len, u8::try_from(n).unwrap());
            let zeros = vec![0; LEN];
            for op in 0..5 {
                pair.buffers[0].write(0, &zeros);
                pair.buffers[1].write(0, &zeros);
                let from = if op == 4 { 1 } else { 0 };
                pair.buffers[from].write(0, &data);
                let to = remote(&pair.buffers[1], 0);
                let op = match op {
                    0 => SendOp::Send,
                    1 => SendOp::SendImm(77),
                    2 => SendOp::Write(to),
                    3 => SendOp::WriteImm(to, 78),
                    _ => SendOp::Read(to),
                };
                if op.consumes_receive() {
                    let sge = pair.buffers[1].region().sge(0, u32::try_from(LEN).unwrap());
                    pair.qps[1].post_recv(&RecvRequest { wr_id: 5, sges: &[sge] }).unwrap();
                }
                let sge = pair.buffers[0].region().sge(0, u32::try_from(len).unwrap());
                let request = SendRequest {
                    wr_id: 9,
                    op,
                    data: Data::Sges(&[sge]),
                    flags: SendFlags::SIGNALED,
                };
                pair.qps[0].post_send(&request).unwrap();
                pair.rig.run_for(Duration::from_millis(5));
                let sent = drain(&pair.cqs[0]);
                assert_eq!(sent.len(), 1, "{op:?} {len} at {m}");
                assert_eq!((sent[0].status, sent[0].wr_id), (Status::Success, 9), "{op:?} {len}");
                let received = drain(&pair.cqs[1]);
                assert_eq!(received.len(), usize::from(op.consumes_receive()), "{op:?}");
                if let [receive] = received[..] {
                    assert_eq!(receive.status, Status::Success);
                    assert_eq!(receive.byte_len as usize, len);
                    let (opcode, extra) = match op {
                        SendOp::WriteImm(..) => {
                            (CompletionOpcode::ReceiveRdmaWithImmediate, Extra::Immediate(78))
                        }
                        SendOp::SendImm(_) => (CompletionOpcode::Receive, Extra::Immediate(77)),
                        _ => (CompletionOpcode::Receive, Extra::None),
                    };
                    assert_eq!((receive.opcode, receive.extra), (opcode, extra));
                }
                let mut got = vec![1; len];
                pair.buffers[1 - from].read(0, &mut got);
                assert_eq!(got, data, "{op:?} {len} at {m}");
            }
        }
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut pair = pair(&ConnectOptions::default());
    pair.buffers[1].store_word(0, 40);
    let to = remote(&pair.buffers[1], 0);
    let ops = [
        (SendOp::FetchAdd { remote: to, add: 2 }, 40, 42),
        (SendOp::CompareSwap { remote: to, compare: 42, swap: 7 }, 42, 7),
        (SendOp::CompareSwap { remote: to, compare: 42, swap: 9 }, 7, 7),
        (SendOp::FetchAdd { remote: to, add: u64::MAX }, 7, 6),
    ];
    for (op, before, after) in ops {
        let sge = pair.buffers[0].region().sge(8, 8);
        let data = Data::Sges(std::slice::from_ref(&sge));
        let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
        pair.qps[0].post_send(&request).unwrap();
        pair.rig.run_for(Duration::from_millis(1));
        let done = drain(&pair.cqs[0]);
        assert_eq!((done.len(), done[0].status, done[0].byte_len), (1, Status::Success, 8));
        assert_eq!(pair.buffers[0].load_word(8), before);
        assert_eq!(pair.buffers[1].load_word(0), after);
    }
}
