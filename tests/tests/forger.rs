//! A forger off the path attacks a connection over the kernel's ports, as fast as the machine
//! allows: every packet is well-formed, from the peer's address, and has a valid ICRC.
//!
//! The connection lives, the data is right, and the counters tell. Each test prints the forged
//! packets per second, the goodput and the latency beside those of a quiet link.
//! `FORGER_SECONDS=60` makes the attack longer.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use feroce_engine::counters::Counter;
use feroce_engine::device::stat::{self, Request};
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, PortKind, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::forger::{Forger, Knowledge, packets};
use feroce_tests::live::{self, ADDRESSES, BUFFER, Net, Peer, checksum};

const MESSAGE: usize = 64 << 10;
const OUTSTANDING: u64 = 8;

/// Runs in the peer's process: see `Net::peer`.
#[test]
#[ignore = "the peer of the tests below, which start it"]
fn serve() {
    live::serve();
}

/// A device in end 0 that writes to a peer in end 1.
struct Writer {
    name: String,
    _device: Device,
    cq: CompletionQueue,
    buffer: Buffer,
    qp: QueuePair,
    target: RemoteAddr,
    posted: u64,
    done: u64,
    posted_at: Vec<Instant>,
}

/// What a while of writing came to.
#[derive(Debug)]
struct Figures {
    bytes_per_second: f64,
    median: Duration,
    p99: Duration,
}

impl Writer {
    fn new(net: &Net, peer: &mut Peer, port: PortKind) -> Self {
        net.enter(0);
        let (name, config) = live::device(0, port);
        let device = Device::open(&name, config).expect("a device");
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64).unwrap());
        let buffer = pd.alloc_buffer(BUFFER, Access::ALL).unwrap();
        for word in 0..BUFFER / 8 {
            buffer.store_word(word * 8, (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let mut qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let (psn, sgid_index) = (device.random_psn().unwrap(), device.default_gid_index());
        let (far, target) = peer.connect(&qp.endpoint(psn, sgid_index).unwrap());
        // 1.1 s: the forger may have the CPU that the peer needs.
        let options = ConnectOptions { sgid_index, timeout: 18, ..ConnectOptions::default() };
        qp.connect(psn, &far, &options).unwrap();
        let name = name.split(',').next().expect("the first").to_owned();
        let posted_at = vec![Instant::now(); usize::try_from(OUTSTANDING).unwrap()];
        let (posted, done) = (0, 0);
        Self { name, _device: device, cq, buffer, qp, target, posted, done, posted_at }
    }

    /// Writes for `time`, and then until all messages are complete.
    fn write(&mut self, time: Duration) -> Figures {
        let (start, before) = (Instant::now(), self.done);
        let mut latencies = Vec::new();
        while start.elapsed() < time || self.done < self.posted {
            while start.elapsed() < time && self.posted - self.done < OUTSTANDING {
                self.post();
            }
            if let Some(completion) = self.cq.poll_one() {
                assert_eq!(completion.status, Status::Success, "after {} messages", self.done);
                let slot = usize::try_from(self.done % OUTSTANDING).unwrap();
                latencies.push(self.posted_at[slot].elapsed());
                self.done += 1;
            }
        }
        latencies.sort_unstable();
        let bytes = (self.done - before) * MESSAGE as u64;
        let part = |percent| latencies[latencies.len() * percent / 100];
        let bytes_per_second = bytes as f64 / start.elapsed().as_secs_f64();
        Figures { bytes_per_second, median: part(50), p99: part(99) }
    }

    fn post(&mut self) {
        let offset = self.posted * MESSAGE as u64 % BUFFER as u64;
        let sge = self.buffer.region().sge(offset, u32::try_from(MESSAGE).unwrap());
        let remote = RemoteAddr { addr: self.target.addr + offset, ..self.target };
        let request = SendRequest {
            wr_id: self.posted,
            op: SendOp::Write(remote),
            data: Data::Sges(std::slice::from_ref(&sge)),
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send(&request).unwrap();
        self.posted_at[usize::try_from(self.posted % OUTSTANDING).unwrap()] = Instant::now();
        self.posted += 1;
    }

    fn count(&self, counter: Counter) -> u64 {
        let own = stat::query(&self.name, &Request::default()).expect("our own device");
        own.counters[counter.name()]
    }
}

fn seconds() -> u64 {
    let text = std::env::var("FORGER_SECONDS");
    text.map_or(5, |text| text.parse().expect("FORGER_SECONDS is a number"))
}

/// Writes over `port` while a forger sends to the writer's QP, whose number it knows or not.
fn attack(port: PortKind, knows_qpn: bool) {
    let Some(net) = Net::new() else { return };
    let mut peer = net.peer(port);
    let mut writer = Writer::new(&net, &mut peer, port);
    let quiet = writer.write(Duration::from_secs(2));
    let knowledge = match knows_qpn {
        true => Knowledge::QpNumber(writer.qp.qpn()),
        false => Knowledge::Addresses,
    };
    let [to, from]: [Ipv4Addr; 2] = ADDRESSES.map(|text| text.parse().unwrap());
    let forger = Forger::start(&net, to, packets((from, to), knowledge, 4711));
    let start = Instant::now();
    let attacked = writer.write(Duration::from_secs(seconds()));
    let rate = forger.sent() as f64 / start.elapsed().as_secs_f64();
    drop(forger);
    println!(
        "{port}, {knowledge:?}: {rate:.0} forged packets per second; goodput {:.2} of a quiet \
         link's; median {:?} and p99 {:?} of 8 x 64 KiB, quiet {:?} and {:?}",
        attacked.bytes_per_second / quiet.bytes_per_second,
        attacked.median,
        attacked.p99,
        quiet.median,
        quiet.p99
    );
    let counters = [
        Counter::RxDiscards,
        Counter::RxUnusualOrigin,
        Counter::RxImplausibleMsn,
        Counter::RxUnaskedResponses,
        Counter::RpCnpIgnored,
    ];
    let counts = counters.map(|counter| writer.count(counter));
    println!("  {:?}", counters.map(Counter::name).iter().zip(counts).collect::<Vec<_>>());
    let tells = if knows_qpn { counts[1] } else { counts[0] };
    assert!(tells > 1000, "the counter tells of {tells} packets");
    assert_eq!(peer.checksum(), checksum(&writer.buffer));
}

#[test]
fn a_forger_who_knows_the_addresses_ends_no_connection() {
    for port in [PortKind::AfXdp, PortKind::Packet] {
        std::thread::scope(|scope| {
            scope.spawn(|| attack(port, false)); // A thread, because it changes its namespace.
        });
    }
}

#[test]
fn a_forger_who_knows_the_qp_number_ends_no_connection() {
    for port in [PortKind::AfXdp, PortKind::Packet] {
        std::thread::scope(|scope| {
            scope.spawn(|| attack(port, true));
        });
    }
}
