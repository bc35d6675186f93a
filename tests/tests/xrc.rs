//! The XRC service: one target QP receives for all shared receive queues of an XRC domain.

use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, PostError, ProtectionDomain, QpInit, QueuePair,
    SharedReceiveQueue, SrqInit, XrcDomain,
};
use feroce_engine::memory::Access;
use feroce_engine::qp::Service;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{
    AsyncEvent, Data, Notify, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_tests::{Rig, drain, manual_config, new_rig};
use feroce_wire::{Packet, PathMtu, Psn, Transport};

const OK: Status = Status::Success;

/// A shared receive queue with its CQ, protection domain and buffer.
struct Queue {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    buffer: Buffer,
}

/// End 0 sends; end 1 receives for two shared receive queues of one XRC domain.
struct Xrc {
    rig: Rig,
    cq: CompletionQueue,
    ini: QueuePair,
    tgt: QueuePair,
    source: Buffer,
    domain: XrcDomain,
    queues: [Queue; 2],
}

impl Xrc {
    fn new() -> Self {
        let rig = new_rig(&manual_config(1), Duration::from_micros(1));
        let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
        let cqs = [0, 1].map(|end| rig.devices[end].create_cq(256).unwrap());
        let domain = rig.devices[1].open_xrcd();
        let queues = [0, 1].map(|_| {
            let pd = rig.devices[1].alloc_pd();
            let cq = rig.devices[1].create_cq(256).unwrap();
            let srq = pd.create_xrc_srq(&SrqInit::default(), &domain, &cq).unwrap();
            let buffer = pd.alloc_buffer(8192, Access::ALL).unwrap();
            Queue { pd, cq, srq, buffer }
        });
        let inits = [
            QpInit { service: Service::XrcIni, ..QpInit::new(&cqs[0]) },
            QpInit { service: Service::XrcTgt, xrc_domain: Some(&domain), ..QpInit::new(&cqs[1]) },
        ];
        let options = ConnectOptions {
            path_mtu: PathMtu::from_bytes(256),
            timeout: 10,
            ..ConnectOptions::default()
        };
        let psns = [Psn::new(100), Psn::new(5000)];
        let [ini, tgt] = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options);
        let source = pds[0].alloc_buffer(8192, Access::ALL).unwrap();
        let [cq, _] = cqs;
        Self { rig, cq, ini, tgt, source, domain, queues }
    }

    fn receive(&self, queue: usize, wr_id: u64, len: u32) {
        let Queue { srq, buffer, .. } = &self.queues[queue];
        srq.post_recv(&RecvRequest { wr_id, sges: &[buffer.region().sge(4096, len)] }).unwrap();
    }

    fn post(&mut self, wr_id: u64, op: SendOp, len: u32, srqn: u32) {
        let sges = [self.source.region().sge(0, len)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.ini.post_send_xrc(&SendRequest { wr_id, op, data, flags }, srqn).unwrap();
    }

    fn srqn(&self, queue: usize) -> u32 {
        self.queues[queue].srq.id().0
    }

    fn remote(&self, queue: usize) -> RemoteAddr {
        let region = self.queues[queue].buffer.region();
        RemoteAddr { addr: region.addr(), rkey: region.rkey() }
    }

    fn run(&mut self, micros: u64) {
        self.rig.run_for(Duration::from_micros(micros));
    }
}

fn done(cq: &CompletionQueue) -> Vec<(u64, Status)> {
    drain(cq).iter().map(|done| (done.wr_id, done.status)).collect()
}

#[test]
fn a_message_goes_to_the_shared_receive_queue_that_it_names() {
    let mut xrc = Xrc::new();
    xrc.rig.wire.set_record(true);
    (0..2).for_each(|queue| xrc.receive(queue, 10 + queue as u64, 1000));
    xrc.source.write(0, &[7; 600]);
    let [first, second] = [0, 1].map(|queue| xrc.srqn(queue));
    xrc.post(1, SendOp::Send, 600, second);
    xrc.post(2, SendOp::SendImm(5), 0, first);
    xrc.run(20);
    assert_eq!(done(&xrc.cq), [(1, OK), (2, OK)]);
    let received = drain(&xrc.queues[1].cq);
    assert_eq!((received[0].wr_id, received[0].byte_len), (11, 600));
    assert_eq!((received[0].qp, received.len()), (xrc.tgt.qpn(), 1));
    assert_eq!(done(&xrc.queues[0].cq), [(10, OK)]);
    let mut bytes = [0; 601];
    xrc.queues[1].buffer.read(4096, &mut bytes);
    assert!(bytes[..600].iter().all(|&byte| byte == 7) && bytes[600] == 0);
    for seen in xrc.rig.wire.take_record() {
        let packet = Packet::parse(&seen.bytes, &[]).unwrap();
        assert_eq!(packet.info.transport, Transport::Xrc);
        let names = packet.ext.xrceth.map(|xrc| xrc.srqn);
        let expected = if packet.bth.psn.value() < 103 { second } else { first };
        assert_eq!(names, (seen.from == 0).then_some(expected), "every request, no response");
    }
}

/// Every operation reaches memory of the protection domain of its queue, with packet loss.
#[test]
fn every_operation_reaches_the_domain_of_its_queue() {
    let mut xrc = Xrc::new();
    let mut count = 0;
    xrc.rig.wire.set_filter(Some(Box::new(move |_, _, _| {
        count += 1;
        count % 7 == 3
    })));
    for queue in 0..2 {
        let (srqn, remote) = (xrc.srqn(queue), xrc.remote(queue));
        xrc.receive(queue, 10, 8);
        xrc.source.write(0, &[8; 1000]);
        xrc.post(1, SendOp::Write(remote), 1000, srqn);
        xrc.post(2, SendOp::Read(remote), 2000, srqn);
        xrc.post(3, SendOp::FetchAdd { remote, add: 1 }, 8, srqn);
        xrc.post(4, SendOp::WriteImm(remote, 9), 0, srqn);
        xrc.run(100_000);
        assert_eq!(done(&xrc.cq), [(1, OK), (2, OK), (3, OK), (4, OK)]);
        assert_eq!(done(&xrc.queues[queue].cq), [(10, OK)]);
        assert_eq!(xrc.queues[queue].buffer.load_word(0), 0x0808_0808_0808_0809);
    }
}

/// READs for two protection domains are executed in the right one, although their responses wait
/// together.
#[test]
fn responses_use_the_protection_domain_of_their_queue() {
    let mut xrc = Xrc::new();
    for queue in 0..2 {
        xrc.queues[queue].buffer.write(0, &[u8::try_from(queue).unwrap() + 1; 2000]);
    }
    let ends = [0, 1].map(|queue| (xrc.srqn(queue), xrc.remote(queue)));
    for (wr_id, (srqn, remote)) in (1..).zip(ends) {
        xrc.post(wr_id, SendOp::Read(remote), 2000, srqn);
    }
    xrc.run(50);
    assert_eq!(done(&xrc.cq), [(1, OK), (2, OK)]);
    assert_eq!((xrc.source.load_byte(0), xrc.source.load_byte(1999)), (2, 2));
}

#[test]
fn requests_with_an_invalid_queue_or_key_are_refused() {
    for case in 0..4 {
        let mut xrc = Xrc::new();
        let elsewhere = xrc.rig.devices[1].open_xrcd();
        let Queue { pd, cq, .. } = &xrc.queues[0];
        let other = pd.create_xrc_srq(&SrqInit::default(), &elsewhere, cq).unwrap();
        let plain = pd.create_srq(&SrqInit::default()).unwrap();
        let (op, srqn, expected) = match case {
            0 => (SendOp::Send, 0xff_ff00, Status::RemoteInvalidRequest),
            1 => (SendOp::Send, other.id().0, Status::RemoteInvalidRequest),
            2 => (SendOp::Send, plain.id().0, Status::RemoteInvalidRequest),
            // Memory of the other queue's protection domain.
            _ => (SendOp::Write(xrc.remote(1)), xrc.srqn(0), Status::RemoteAccess),
        };
        xrc.post(1, op, 4, srqn);
        xrc.run(20);
        assert_eq!(done(&xrc.cq), [(1, expected)], "case {case}");
        let event = match case {
            3 => AsyncEvent::QpAccessError(xrc.tgt.qpn()),
            _ => AsyncEvent::QpRequestError(xrc.tgt.qpn()),
        };
        assert_eq!(xrc.rig.devices[1].poll_event(), Some(event));
    }
}

#[test]
fn an_empty_queue_causes_an_rnr_nak_even_if_another_has_receives() {
    let mut xrc = Xrc::new();
    xrc.receive(1, 11, 8);
    let srqn = xrc.srqn(0);
    xrc.post(1, SendOp::Send, 4, srqn);
    xrc.run(20);
    assert_eq!((done(&xrc.cq), xrc.queues[1].srq.posted()), (vec![], 1));
    xrc.receive(0, 10, 8);
    xrc.run(1000);
    assert_eq!((done(&xrc.cq), done(&xrc.queues[0].cq)), (vec![(1, OK)], vec![(10, OK)]));
}

/// Like `a_response_message_overtakes_the_ack_unless_an_event_woke_the_program`, but the program
/// sends its response message on another QP, whose own acknowledgement arrived before the request
/// message.
#[test]
fn a_woken_program_sends_after_the_acknowledgement() {
    let (acknowledgement, response) = (Transport::Xrc, Transport::Rc);
    let polls = [response, acknowledgement];
    let sleeps = [acknowledgement, response];
    for (notify, expected) in [(None, polls), (Some(Notify::Any), sleeps)] {
        let mut xrc = Xrc::new();
        let cqs = [0, 1].map(|end| xrc.rig.devices[end].create_cq(16).unwrap());
        let pds = [0, 1].map(|end| xrc.rig.devices[end].alloc_pd());
        let inits = [0, 1].map(|end: usize| QpInit::new(&cqs[end]));
        let psns = [Psn::new(1), Psn::new(9)];
        let [mut near, mut back] =
            xrc.rig.connect(pds.each_ref(), inits.each_ref(), psns, &ConnectOptions::default());
        xrc.receive(0, 10, 8);
        if let Some(notify) = notify {
            xrc.queues[0].cq.request_notify(notify);
        }
        let empty = SendRequest {
            wr_id: 1,
            op: SendOp::Send,
            data: Data::Sges(&[]),
            flags: SendFlags::SIGNALED,
        };
        (0..2).for_each(|_| near.post_recv(&RecvRequest { wr_id: 2, sges: &[] }).unwrap());
        back.post_send(&empty).unwrap();
        xrc.rig.turn_and_carry(1);
        xrc.rig.devices[0].turn(xrc.rig.now);
        let srqn = xrc.srqn(0);
        xrc.post(3, SendOp::Send, 8, srqn);
        xrc.rig.turn_and_carry(0);
        xrc.rig.devices[1].turn(xrc.rig.now);
        assert_eq!((done(&cqs[1]), done(&xrc.queues[0].cq)), (vec![(1, OK)], vec![(10, OK)]));
        back.post_send(&empty).unwrap();
        xrc.rig.wire.set_record(true);
        xrc.run(20);
        let seen = xrc.rig.wire.take_record();
        let transport = |bytes| Packet::parse(bytes, &[]).unwrap().info.transport;
        let order: Vec<_> = seen.iter().map(|seen| transport(&seen.bytes)).collect();
        assert_eq!(order[..2], expected, "{notify:?}");
    }
}

#[test]
fn initiator_and_target_refuse_operations_of_the_other() {
    let mut xrc = Xrc::new();
    let sges = [xrc.source.region().sge(0, 8)];
    let request =
        |op| SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags: SendFlags::NONE };
    assert_eq!(xrc.ini.post_send(&request(SendOp::Send)), Err(PostError::Destination));
    assert_eq!(xrc.tgt.post_send_xrc(&request(SendOp::Send), 1), Err(PostError::Operation));
    let receive = RecvRequest { wr_id: 1, sges: &[] };
    assert_eq!(xrc.ini.post_recv(&receive), Err(PostError::SharedReceives));
    assert_eq!(xrc.tgt.post_recv(&receive), Err(PostError::SharedReceives));
    let cq = xrc.rig.devices[1].create_cq(1).unwrap();
    let target = QpInit { service: Service::XrcTgt, ..QpInit::new(&cq) };
    assert!(xrc.queues[0].pd.create_qp(&target).is_err(), "an XRC domain is required");
    // A destroyed queue is unknown to the target QP. A queue that no QP was created with has no
    // users.
    assert_eq!(xrc.queues[0].srq.users(), 0);
    let number = xrc.srqn(0);
    let spare = xrc.queues[1].pd.create_xrc_srq(&SrqInit::default(), &xrc.domain, &cq).unwrap();
    drop(std::mem::replace(&mut xrc.queues[0].srq, spare));
    xrc.post(1, SendOp::Send, 4, number);
    xrc.run(20);
    assert_eq!(done(&xrc.cq), [(1, Status::RemoteInvalidRequest)]);
}

#[test]
fn an_operation_that_xrc_lacks_completes_in_error() {
    let mut xrc = Xrc::new();
    xrc.post(1, SendOp::AtomicWrite(xrc.remote(0)), 8, xrc.srqn(0));
    xrc.run(20);
    assert_eq!(done(&xrc.cq), [(1, Status::LocalQpOperation)]);
}
