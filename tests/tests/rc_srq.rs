//! Shared receive queues with the RC service: order of receives, RNR NAKs, credits, events, errors.

use feroce_engine::device::{DeviceError, PostError, QpInit, SharedReceiveQueue, SrqInit};
use feroce_engine::memory::Access;
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{AsyncEvent, Data, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::pair::{Pair, PairSetup};
use feroce_tests::{drain, manual_config, new_rig};
use feroce_wire::Psn;

fn shared(max_wr: u32) -> PairSetup {
    PairSetup { srq: Some(SrqInit { max_wr, ..SrqInit::default() }), ..PairSetup::default() }
}

fn srq(pair: &Pair) -> SharedReceiveQueue {
    pair.srq.clone().expect("made with one")
}

#[test]
fn a_message_takes_the_oldest_receive() {
    let mut pair = Pair::new(&shared(4));
    for wr_id in 10..14 {
        pair.post_recv(wr_id, 600);
    }
    let request = RecvRequest { wr_id: 14, sges: &[] };
    assert_eq!(srq(&pair).post_recv(&request), Err(PostError::Full));
    assert_eq!(pair.qps[1].post_recv(&request), Err(PostError::SharedReceives));
    pair.post(1, SendOp::Send, 600);
    pair.post(2, SendOp::SendImm(7), 0);
    pair.post(3, SendOp::Write(pair.remote(0)), 4);
    pair.post(4, SendOp::WriteImm(pair.remote(0), 9), 4);
    pair.run(20);
    let ok = Status::Success;
    assert_eq!(pair.done(1), [(10, ok), (11, ok), (12, ok)]);
    assert_eq!(pair.done(0).len(), 4);
    assert_eq!((srq(&pair).posted(), srq(&pair).users()), (1, 1));
}

/// Without a receive there is an RNR NAK, and the message is retransmitted.
#[test]
fn an_empty_queue_causes_an_rnr_nak() {
    let mut pair = Pair::new(&shared(4));
    pair.post(1, SendOp::Send, 4);
    pair.run(10);
    assert_eq!(pair.packets(), ["> Send Only 100 A", "< Acknowledge 100 rnr-nak 640 us msn 0"]);
    pair.post_recv(10, 4);
    pair.run(1000);
    assert_eq!(pair.packets(), ["> Send Only 100 A", "< Acknowledge 100 ack msn 1"]);
    assert_eq!(pair.done(1), [(10, Status::Success)]);
}

/// The number of shared receives says nothing about one peer, so it gets no credit count and is not
/// limited.
#[test]
fn no_credits_are_sent() {
    let with_credits = PairSetup::with(|options| options.flow_control = true);
    let mut pair = Pair::new(&PairSetup { srq: shared(8).srq, ..with_credits });
    for wr_id in 10..14 {
        pair.post_recv(wr_id, 4);
    }
    (1..=4).for_each(|wr_id| pair.post(wr_id, SendOp::Send, 4));
    pair.run(50);
    let frames = pair.frames();
    let acks: Vec<_> = frames.iter().filter(|seen| seen.from == 1).collect();
    assert!(!acks.is_empty());
    for seen in acks {
        let packet = feroce_wire::Packet::parse(&seen.bytes, &[]).unwrap();
        let syndrome = packet.ext.aeth.unwrap().syndrome;
        assert_eq!(syndrome, feroce_wire::Syndrome::Ack(feroce_wire::CreditCode::UNLIMITED));
    }
    assert_eq!(pair.done(1).len(), 4);
}

/// An armed limit causes one event. If the limit is above the number of posted receives, the event
/// is raised at once. Without a limit there is no event.
#[test]
fn the_limit_event_comes_once() {
    let mut pair = Pair::new(&shared(8));
    let srq = srq(&pair);
    (10..16).for_each(|wr_id| pair.post_recv(wr_id, 4));
    pair.post(1, SendOp::Send, 4);
    pair.run(10);
    assert_eq!(pair.events(1), []);
    srq.arm_limit(4).unwrap();
    assert_eq!((pair.events(1), srq.limit()), (vec![], 4));
    pair.post(2, SendOp::Send, 4);
    pair.run(10);
    assert_eq!(
        (pair.events(1), srq.posted()),
        (vec![], 4),
        "four receives are not below the limit of four"
    );
    pair.post(3, SendOp::Send, 4);
    pair.post(4, SendOp::Send, 4);
    pair.run(10);
    let event = AsyncEvent::SrqLimitReached(srq.id());
    assert_eq!((pair.events(1), srq.limit()), (vec![event], 0));
    srq.arm_limit(3).unwrap();
    assert_eq!(pair.events(1), [event], "two are posted");
    srq.arm_limit(1).unwrap();
    srq.arm_limit(0).unwrap();
    pair.post(5, SendOp::Send, 4);
    pair.post(6, SendOp::Send, 4);
    pair.run(10);
    assert_eq!(pair.events(1), []);
    assert!(matches!(srq.arm_limit(9), Err(DeviceError::Limit { limit: 8, .. })));
}

/// A QP in ERR flushes the one receive that its message has taken, and reports that it takes no
/// more.
/// o11-5.2.5.
#[test]
fn err_flushes_the_taken_receive_and_causes_an_event() {
    let mut pair = Pair::new(&shared(4));
    pair.post_recv(10, 600);
    pair.post_recv(11, 600);
    pair.lose(0, 101, u32::MAX); // The message stays incomplete.
    pair.post(1, SendOp::Send, 600);
    pair.run(10);
    assert_eq!((pair.done(1), srq(&pair).posted()), (vec![], 1));
    let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
    pair.qps[1].modify(&error).unwrap();
    assert_eq!(pair.done(1), [(10, Status::WorkRequestFlushed)]);
    assert_eq!(pair.events(1), [AsyncEvent::LastWqeReached(pair.qps[1].qpn())]);
    pair.qps[1].modify(&error).unwrap();
    assert_eq!((pair.events(1), srq(&pair).posted()), (vec![], 1));
}

/// A QP that is destroyed or reset in the middle of a message frees the receive's slot, without a
/// completion.
#[test]
fn a_reset_frees_the_slot_of_the_taken_receive() {
    let mut pair = Pair::new(&shared(1));
    pair.post_recv(10, 600);
    pair.lose(0, 101, u32::MAX);
    pair.post(1, SendOp::Send, 600);
    pair.run(10);
    let request = RecvRequest { wr_id: 11, sges: &[] };
    assert_eq!(
        srq(&pair).post_recv(&request),
        Err(PostError::Full),
        "the incomplete message holds the slot"
    );
    let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
    pair.qps[1].modify(&reset).unwrap();
    assert_eq!((pair.done(1), pair.events(1)), (vec![], vec![]));
    assert_eq!(srq(&pair).post_recv(&request), Ok(()));
}

/// A receive uses memory of the queue's protection domain, not of the QP's.
#[test]
fn receives_use_the_protection_domain_of_the_queue() {
    let mut rig = new_rig(&manual_config(1), Duration::from_micros(1));
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let other = rig.devices[1].alloc_pd();
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(64).unwrap());
    let srq = other.create_srq(&SrqInit::default()).unwrap();
    let here = other.alloc_buffer(64, Access::LOCAL_WRITE).unwrap();
    let there = pds[1].alloc_buffer(64, Access::LOCAL_WRITE).unwrap();
    let inits = [QpInit::new(&cqs[0]), QpInit { srq: Some(&srq), ..QpInit::new(&cqs[1]) }];
    let options = feroce_engine::device::ConnectOptions::default();
    let psns = [Psn::new(1), Psn::new(2)];
    let mut qps = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options);
    for (wr_id, region) in [(1, here.region()), (2, there.region())] {
        srq.post_recv(&RecvRequest { wr_id, sges: &[region.sge(0, 64)] }).unwrap();
        let data = Data::Inline(&[b"data"]);
        let flags = SendFlags::SIGNALED;
        qps[0].post_send(&SendRequest { wr_id, op: SendOp::Send, data, flags }).unwrap();
    }
    rig.run_for(Duration::from_micros(50));
    let done =
        |end: usize| drain(&cqs[end]).iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>();
    assert_eq!(done(1), [(1, Status::Success), (2, Status::LocalProtection)]);
    assert_eq!(done(0), [(1, Status::Success), (2, Status::RemoteOperational)]);
    assert_eq!(here.load_byte(3), b'a');
}

/// Threads post while QPs consume: each receive is used once, and each message is complete.
#[test]
fn threads_post_while_qps_consume() {
    const QPS: usize = 4;
    const EACH: u64 = 2000;
    let mut rig = new_rig(&manual_config(3), Duration::from_micros(1));
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(16_384).unwrap());
    let srq = pds[1].create_srq(&SrqInit { max_wr: 64, max_sge: 1 }).unwrap();
    let total = QPS as u64 * EACH;
    let len = usize::try_from(total).unwrap() * 300;
    let buffers = [0, 1].map(|end| pds[end].alloc_buffer(len, Access::LOCAL_WRITE).unwrap());
    let (base, lkey) = (buffers[1].region().addr(), buffers[1].region().lkey());
    let options = feroce_engine::device::ConnectOptions {
        path_mtu: feroce_wire::PathMtu::from_bytes(256),
        timeout: 10,
        min_rnr_timer: 1,
        ..Default::default()
    };
    let mut pairs: Vec<_> = (0..QPS)
        .map(|_| {
            let inits = [
                QpInit { max_send_wr: 2048, ..QpInit::new(&cqs[0]) },
                QpInit { srq: Some(&srq), ..QpInit::new(&cqs[1]) },
            ];
            let psns = [Psn::new(0xff_fff0), Psn::new(9)];
            rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options)
        })
        .collect();
    for (qp, pair) in pairs.iter_mut().enumerate() {
        for n in 0..EACH {
            // Messages of two packets, filled with the index of their QP.
            buffers[0].write(qp * 300, &[u8::try_from(qp).unwrap(); 300]);
            let sges = [buffers[0].region().sge(qp as u64 * 300, 300)];
            let data = Data::Sges(&sges);
            let request = SendRequest { wr_id: n, op: SendOp::Send, data, flags: SendFlags::NONE };
            pair[0].post_send(&request).unwrap();
        }
    }
    let mut used = vec![false; usize::try_from(total).unwrap()];
    std::thread::scope(|scope| {
        for poster in 0..2u64 {
            let srq = &srq;
            scope.spawn(move || {
                for n in 0..total / 2 {
                    let wr_id = n * 2 + poster;
                    let addr = base + wr_id * 300;
                    let sges = [feroce_engine::verbs::Sge { addr, length: 300, lkey }];
                    while srq.post_recv(&RecvRequest { wr_id, sges: &sges }).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut received = 0;
        while received < total {
            rig.run_for(Duration::from_micros(20));
            for done in drain(&cqs[1]) {
                assert!(done.is_success() && done.byte_len == 300);
                let mut bytes = [0; 300];
                let at = usize::try_from(done.wr_id * 300).unwrap();
                buffers[1].read(at, &mut bytes);
                assert!(bytes.iter().all(|&byte| byte == bytes[0]), "of one message");
                let used = &mut used[usize::try_from(done.wr_id).unwrap()];
                assert!(!std::mem::replace(used, true), "{} was used twice", done.wr_id);
                received += 1;
            }
        }
    });
    assert_eq!(srq.posted(), 0);
}
