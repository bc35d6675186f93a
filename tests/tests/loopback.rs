//! Traffic between QPs of one device. No link returns a frame to its sender, so the device loops
//! such frames back itself.

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::Port;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::qp::Service;
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::datagram::DatagramQp;
use feroce_tests::{addresses, drain, gid, gid_v6, manual_config};
use feroce_wire::Psn;

/// A device without a peer: every frame that arrives was looped back.
struct LoneDevice {
    device: Device,
    far: Vec<Box<dyn Port>>,
    now: Instant,
}

impl LoneDevice {
    fn new(cores: usize) -> Self {
        let arena = Arena::new(64 << 20).unwrap();
        let (mut near, mut far) = (Vec::<Box<dyn Port>>::new(), Vec::<Box<dyn Port>>::new());
        for core in 0..cores {
            let name = format!("alone{core}");
            let (a, b) = shm_pair(&arena, ShmConfig { name, ..ShmConfig::default() }).unwrap();
            near.push(Box::new(a));
            far.push(Box::new(b));
        }
        let config = DeviceConfig { cores, ..manual_config(1) };
        let device = Device::with_ports(near, addresses(0), config).unwrap();
        Self { device, far, now: Instant::ZERO }
    }

    /// Runs the device until 100 ms have passed, and checks that no frame was sent to the link.
    fn run(&mut self) {
        let end = self.now + Duration::from_millis(100);
        loop {
            while self.device.turn(self.now) > 0 {}
            match self.device.next_deadline(self.now).filter(|&next| next <= end) {
                Some(next) => self.now = next.max(self.now + Duration::from_nanos(1)),
                None => break,
            }
        }
        self.now = end;
        let on_the_link: usize = self.far.iter_mut().map(|port| port.rx_burst()).sum();
        assert_eq!(on_the_link, 0, "looped frames are not sent to the link");
    }
}

/// Two connected QPs of one device, each with a buffer.
struct Ends {
    cqs: [CompletionQueue; 2],
    qps: [QueuePair; 2],
    buffers: [Buffer; 2],
}

fn ends(alone: &LoneDevice, service: Service, sgid_index: u32) -> Ends {
    let pd = alone.device.alloc_pd();
    let cqs = [0, 1].map(|_| alone.device.create_cq(256).unwrap());
    let buffers = [0, 1].map(|_| pd.alloc_buffer(1 << 18, Access::ALL).unwrap());
    let mut qps = [0, 1]
        .map(|end: usize| pd.create_qp(&QpInit { service, ..QpInit::new(&cqs[end]) }).unwrap());
    let psns = [Psn::new(10), Psn::new(20)];
    let options = ConnectOptions { sgid_index, ..ConnectOptions::default() };
    let points = [0, 1].map(|end: usize| qps[end].endpoint(psns[end], sgid_index).unwrap());
    for end in 0..2 {
        qps[end].connect(psns[end], &points[1 - end], &options).unwrap();
    }
    Ends { cqs, qps, buffers }
}

impl Ends {
    fn post(&mut self, wr_id: u64, op: SendOp, len: u32) {
        let sges = [self.buffers[0].region().sge(0, len)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        self.qps[0].post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
    }

    fn remote(&self) -> RemoteAddr {
        let region = self.buffers[1].region();
        RemoteAddr { addr: region.addr(), rkey: region.rkey() }
    }

    fn done(&self, end: usize) -> Vec<(u64, Status)> {
        drain(&self.cqs[end]).iter().map(|done| (done.wr_id, done.status)).collect()
    }
}

/// A message of more frames than a turn handles, and the RC operations, over IPv4 and IPv6, on one
/// core and across cores.
#[test]
fn an_rc_connection_within_a_device() {
    for (cores, index) in [(1, 0), (1, 1), (2, 0), (3, 1)] {
        let mut alone = LoneDevice::new(cores);
        let mut ends = ends(&alone, Service::Rc, index);
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n % 253).to_le_bytes()[0]).collect();
        ends.buffers[0].write(0, &bytes);
        let sges = [ends.buffers[1].region().sge(0, 1 << 18)];
        ends.qps[1].post_recv(&RecvRequest { wr_id: 9, sges: &sges }).unwrap();
        ends.post(1, SendOp::Send, 200_000);
        alone.run();
        assert_eq!(ends.done(1), [(9, Status::Success)], "{cores} cores");
        let mut got = vec![0; bytes.len()];
        ends.buffers[1].read(0, &mut got);
        assert!(got == bytes, "{cores} cores: the sent bytes");
        let remote = ends.remote();
        ends.buffers[1].write(0, &[0; 8]);
        ends.post(2, SendOp::FetchAdd { remote, add: 5 }, 8);
        ends.post(3, SendOp::Write(RemoteAddr { addr: remote.addr + 8, ..remote }), 100_000);
        ends.post(4, SendOp::Read(remote), 100_000);
        alone.run();
        let done: Vec<_> = (1..5).map(|wr_id| (wr_id, Status::Success)).collect();
        assert_eq!(ends.done(0), done, "{cores} cores");
        let mut sum = [0; 8];
        ends.buffers[0].read(0, &mut sum);
        assert_eq!(u64::from_le_bytes(sum), 5, "{cores} cores: the READ returns the sum");
        assert!(alone.device.counter(Counter::TxLoopback) > 100);
    }
}

#[test]
fn a_uc_connection_within_a_device() {
    let mut alone = LoneDevice::new(1);
    let mut ends = ends(&alone, Service::Uc, 0);
    ends.buffers[0].write(0, &[7; 100_000]);
    ends.post(1, SendOp::Write(ends.remote()), 100_000);
    alone.run();
    assert_eq!(ends.done(0), [(1, Status::Success)]);
    let mut got = vec![0; 100_001];
    ends.buffers[1].read(0, &mut got);
    assert!(got[..100_000].iter().all(|&byte| byte == 7) && got[100_000] == 0);
}

/// A QP may be its own peer.
#[test]
fn a_qp_connected_to_itself() {
    let mut alone = LoneDevice::new(1);
    let pd = alone.device.alloc_pd();
    let cq = alone.device.create_cq(16).unwrap();
    let buffer = pd.alloc_buffer(4096, Access::ALL).unwrap();
    let mut qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let itself = qp.endpoint(Psn::new(5), 0).unwrap();
    qp.connect(Psn::new(5), &itself, &ConnectOptions::default()).unwrap();
    buffer.write(0, b"to myself");
    let (from, into) = ([buffer.region().sge(0, 9)], [buffer.region().sge(100, 9)]);
    qp.post_recv(&RecvRequest { wr_id: 1, sges: &into }).unwrap();
    let (op, data, flags) = (SendOp::Send, Data::Sges(&from), SendFlags::SIGNALED);
    qp.post_send(&SendRequest { wr_id: 2, op, data, flags }).unwrap();
    alone.run();
    assert_eq!(drain(&cq).len(), 2);
    let mut bytes = [0; 9];
    buffer.read(100, &mut bytes);
    assert_eq!(&bytes, b"to myself");
}

/// Datagrams to other QPs of the device and to the sending QP itself, on one core and across cores.
#[test]
fn datagrams_within_a_device() {
    for cores in [1, 2] {
        let mut alone = LoneDevice::new(cores);
        let pd = alone.device.alloc_pd();
        let mut qps = [0, 1, 2].map(|_| DatagramQp::new(&alone.device, &pd, |_| {}));
        for to in [gid(0), gid_v6(0)] {
            let path = feroce_engine::device::Path::new(to, u32::from(to == gid_v6(0)));
            let ah = pd.create_ah(&path).unwrap();
            qps.iter_mut().for_each(|qp| qp.receive(1));
            for other in 0..3 {
                let qpn = qps[other].qp.qpn();
                qps[0].send(SendOp::Send, &[u8::try_from(other).unwrap(); 100], &ah, qpn).unwrap();
                alone.run();
            }
            for (number, qp) in qps.iter_mut().enumerate() {
                let done: Vec<_> = qp.done().into_iter().filter(|d| d.datagram.is_some()).collect();
                let payload = vec![u8::try_from(number).unwrap(); 100];
                assert_eq!((done.len(), qp.received(&done[0]).1), (1, payload), "{cores} cores");
            }
        }
    }
}

/// Loopback frames need no room in the port. Frames that wait for room are sent later.
#[test]
fn a_full_port_does_not_delay_loopback() {
    let mut alone = LoneDevice::new(1);
    let pd = alone.device.alloc_pd();
    let mut remote_sender = DatagramQp::new(&alone.device, &pd, |init| init.max_send_wr = 2048);
    let ah = pd.create_ah(&feroce_engine::device::Path::new(gid(1), 0)).unwrap();
    for _ in 0..1024 {
        remote_sender
            .send(SendOp::Send, b"to a full ring", &ah, feroce_wire::Qpn::masked(0x99))
            .unwrap();
    }
    for _ in 0..100 {
        alone.device.turn(alone.now);
        remote_sender.done();
    }
    assert!(remote_sender.qp.sends_posted() > 0, "the ring of the port is full");
    let mut ends = ends(&alone, Service::Rc, 0);
    ends.post(1, SendOp::Write(ends.remote()), 100_000);
    for _ in 0..1000 {
        alone.device.turn(alone.now);
    }
    assert_eq!(ends.done(0), [(1, Status::Success)]);
    while remote_sender.qp.sends_posted() > 0 {
        assert!(alone.far[0].rx_burst() > 0, "the device sends more frames when there is room");
        alone.device.turn(alone.now);
        remote_sender.done();
    }
}
