//! A port without room for frames: QPs behind a port that moves no frame end in an error; QPs
//! behind a slow port wait.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use feroce_conform::gated_port::GatedPort;
use feroce_engine::counters::Counter;
use feroce_engine::device::{CompletionQueue, ConnectOptions, Device, QpInit, QueuePair};
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::Port;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::qp::{QpAttrMask, QpState, attributes::QpAttributes};
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::{addresses, gid, manual_config};
use feroce_wire::{Key, Psn, Qpn};

/// Number of frames that the port takes before it is full. The other end does not read them.
const SLOTS: usize = 16;

/// A device on a port whose other end does not read, in virtual time.
struct Sender {
    device: Device,
    cq: CompletionQueue,
    far: ShmPort,
    done: Vec<(u64, Status, u64)>,
    millisecond: u64,
    _arena: Arc<Arena>,
}

impl Sender {
    /// Creates the device on a port that moves no frame once it is full, or on a slow port.
    fn new(is_slow: bool) -> Self {
        let arena = Arena::new(64 << 20).unwrap();
        let (inner, far) =
            shm_pair(&arena, ShmConfig { slots: SLOTS, ..ShmConfig::default() }).expect("a pair");
        let port: Box<dyn Port> = match is_slow {
            true => Box::new(GatedPort::new(inner, Arc::new(AtomicUsize::new(SLOTS)))),
            false => Box::new(inner),
        };
        let device = Device::with_ports(vec![port], addresses(0), manual_config(1)).expect("one");
        let cq = device.create_cq(256).unwrap();
        Self { device, cq, far, done: Vec::new(), millisecond: 0, _arena: arena }
    }

    /// Connects a QP whose peer does not respond. With `timeout` 10 it gives up after four timeouts
    /// of 4.2 ms; with 0 it never gives up.
    fn connect(&self, qpn: u32, timeout: u8) -> QueuePair {
        let mut qp = self.device.alloc_pd().create_qp(&QpInit::new(&self.cq)).unwrap();
        let mut peer = qp.endpoint(Psn::new(1), 1).unwrap();
        (peer.gid, peer.qpn) = (gid(1), Qpn::new(qpn).unwrap());
        let options = ConnectOptions { timeout, retry_cnt: 3, ..ConnectOptions::default() };
        qp.connect(Psn::new(1), &peer, &options).unwrap();
        qp
    }

    /// Runs until the time `end`, in milliseconds.
    fn run(&mut self, end: u64) {
        while self.millisecond < end {
            self.millisecond += 1;
            let now = Instant::from_nanos(self.millisecond * 1_000_000);
            while self.device.turn(now) > 0 {}
            while let Some(done) = self.cq.poll_one() {
                self.done.push((done.wr_id, done.status, self.millisecond));
            }
        }
    }
}

fn post(qp: &mut QueuePair, wr_ids: std::ops::Range<u64>) {
    // A WRITE of no bytes is one packet, and needs no key (C9-88).
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Key::from_parts(0, 0) });
    for wr_id in wr_ids {
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendRequest { wr_id, op, data: Data::Sges(&[]), flags }).unwrap();
    }
}

/// Like a qdisc that holds back every frame: sent packets are not acknowledged, and neither their
/// retries nor the first request of a later QP can be sent. The port is full at 1 ms and counts as
/// stuck 20 ms later. The first QP has had one timeout by then, and three follow (5 ms each in
/// turns of 1 ms): 36 ms. The later QP posts to a port that is already stuck: four timeouts from
/// the turn at 51 ms on, which end at 71 ms.
#[test]
fn requests_behind_a_port_that_moves_no_frame_end_in_an_error() {
    let mut sender = Sender::new(false);
    let (mut first, mut later) = (sender.connect(17, 10), sender.connect(18, 10));
    post(&mut first, 0..64);
    sender.run(50);
    assert_eq!(sender.done.first(), Some(&(0, Status::RetryExceeded, 36)));
    assert_eq!(sender.done.len(), 64);
    post(&mut later, 64..65);
    sender.run(100);
    assert_eq!(sender.done.last(), Some(&(64, Status::RetryExceeded, 71)));
    assert!([&first, &later].iter().all(|qp| qp.query().state == Some(QpState::Err)));
    assert_eq!(sender.done.len(), 65);
}

/// The QP whose packets were sent times out; the QP whose packet could not be sent yet does not.
#[test]
fn requests_behind_a_slow_port_wait() {
    let mut sender = Sender::new(true);
    let (mut first, mut later) = (sender.connect(17, 10), sender.connect(18, 10));
    post(&mut first, 0..16);
    sender.run(1);
    post(&mut later, 16..17);
    sender.run(1000);
    assert_eq!(later.query().state, Some(QpState::Rts));
    assert!(sender.done.iter().all(|(wr_id, ..)| *wr_id < 16), "{:?}", sender.done);
}

/// A QP in SQD starts no request, so an unsent request must not time out.
#[test]
fn a_drained_qp_behind_a_stuck_port_does_not_time_out() {
    let mut sender = Sender::new(false);
    let (mut first, mut drained) = (sender.connect(17, 10), sender.connect(18, 10));
    post(&mut first, 0..16);
    sender.run(1);
    post(&mut drained, 16..17);
    let sqd = QpAttributes { state: Some(QpState::Sqd), ..QpAttributes::default() };
    assert_eq!(sqd.mask(), QpAttrMask::STATE);
    drained.modify(&sqd).unwrap();
    sender.run(1000);
    assert_eq!(drained.query().state, Some(QpState::Sqd));
    assert!(sender.done.iter().all(|(wr_id, ..)| *wr_id < 16), "{:?}", sender.done);
}

/// The port moves frames again before the end of the timer that ran while the port was stuck. A
/// packet that is sent then has its full timeout.
#[test]
fn a_packet_that_is_sent_late_has_its_full_timeout() {
    let mut sender = Sender::new(false);
    let (mut first, mut later) = (sender.connect(17, 0), sender.connect(18, 10));
    post(&mut first, 0..16);
    sender.run(1);
    post(&mut later, 16..17);
    // Full from 1 ms on, so that the timers run from 21 ms to 25.2 ms.
    sender.run(24);
    while sender.far.rx_burst() > 0 {}
    sender.run(25);
    let timeouts = |sender: &Sender| sender.device.counter(Counter::LocalAckTimeoutErr);
    let before = timeouts(&sender);
    sender.run(29);
    assert_eq!(timeouts(&sender), before);
    sender.run(30);
    assert!(timeouts(&sender) > before, "the packet was sent and is not acknowledged");
}
