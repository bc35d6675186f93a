//! Flow control at an endpoint, in virtual time: pauses are obeyed to the nanosecond by their priority and by no other, and a receive ring that
//! fills asks for one.

use feroce_congestion::{Params, Rate};
use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::counters::Counter;
use feroce_engine::device::{ConnectOptions, Device, DeviceConfig, OpenError, QpInit};
use feroce_engine::memory::arena::Arena;
use feroce_engine::memory::{Access, WindowBind, WindowType};
use feroce_engine::pfc::{PfcConfig, Priorities, Thresholds};
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, Priority};
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::qp::{QpState, Service};
use feroce_engine::time::{Duration, Instant};
use feroce_engine::verbs::{Data, LocalOp, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::pair::{Pair, PairSetup};
use feroce_tests::wire::{Seen, WireFaults};
use feroce_tests::{MACS, addresses, manual_config};
use feroce_wire::{FlowControl, FlowControlFrame, Opcode, Packet, PathMtu, Psn, pause};

const P3: u8 = 1 << 3;
/// DSCP 24: priority 3.
const CLASS_3: u8 = 3 << 5;
/// 1000 quanta at 10 Gb/s.
const PAUSE: Duration = Duration::from_nanos(51_200);

fn pfc(priorities: u8) -> PfcConfig {
    PfcConfig {
        priorities: Priorities::from_bits(priorities),
        rate: Some(Rate::from_gbps(10)),
        ..PfcConfig::default()
    }
}

fn setup(priorities: u8) -> PairSetup {
    let mut setup = PairSetup::with(|options| {
        options.path_mtu = PathMtu::from_bytes(1024);
        options.timeout = 14;
        options.traffic_class = CLASS_3;
    });
    setup.config.pfc = pfc(priorities);
    setup.buffer = 4 << 20;
    setup
}

fn frame(control: FlowControl) -> [u8; pause::FRAME_LEN] {
    FlowControlFrame { src: MACS[1], control }.to_bytes()
}

fn xoff(enabled: u8, quanta: u16) -> [u8; pause::FRAME_LEN] {
    frame(FlowControl::Pfc { enabled, quanta: [quanta; 8] })
}

/// A frame of flow control reaches end `to` at once.
fn tell(pair: &mut Pair, to: usize, frame: &[u8]) {
    pair.rig.wire.set_delay(Duration::ZERO);
    pair.rig.wire.inject(to, frame, pair.rig.now);
    pair.rig.wire.set_delay(Duration::from_micros(1));
    pair.rig.settle();
}

fn write(pair: &mut Pair, wr_id: u64, len: u32) {
    let remote = pair.remote(0);
    pair.post(wr_id, SendOp::Write(remote), len);
}

fn times(frames: &[Seen], from: usize) -> Vec<u64> {
    frames.iter().filter(|seen| seen.from == from).map(|seen| seen.at.as_nanos()).collect()
}

fn count(pair: &Pair, end: usize, counter: Counter) -> u64 {
    pair.rig.devices[end].counter(counter)
}

#[test]
fn a_paused_priority_sleeps_until_its_pause_ends() {
    let mut pair = Pair::new(&setup(P3));
    pair.run(5);
    tell(&mut pair, 0, &xoff(P3, 1000));
    write(&mut pair, 1, 3000);
    pair.rig.settle();
    let end = pair.rig.now + PAUSE;
    assert_eq!(pair.rig.devices[0].next_deadline(pair.rig.now), Some(end), "it does not spin");
    pair.run(1000);
    // Three packets with data, one acknowledgement.
    let frames = pair.frames();
    assert_eq!(times(&frames, 0), [end.as_nanos(); 3]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let expected = [(Counter::RxPause, 1), (Counter::RxPaused3, 51)];
    assert_eq!(pair.counters(0), expected);
}

#[test]
fn xon_lets_go_at_once_and_a_refresh_holds_on() {
    let mut pair = Pair::new(&setup(P3));
    tell(&mut pair, 0, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 1000);
    pair.run(40);
    tell(&mut pair, 0, &xoff(P3, 1000)); // Sooner than the first would have ended.
    pair.run(30);
    tell(&mut pair, 0, &xoff(P3, u16::MAX));
    pair.run(2000);
    assert_eq!(times(&pair.frames(), 0), [0; 0]);
    tell(&mut pair, 0, &xoff(P3, 0));
    pair.run(10);
    assert_eq!(times(&pair.frames(), 0), [2_070_000]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!((count(&pair, 0, Counter::RxPause), count(&pair, 0, Counter::RxPaused3)), (4, 2070));
}

#[test]
fn acknowledgements_wait_with_their_priority() {
    let mut pair = Pair::new(&setup(P3));
    tell(&mut pair, 1, &xoff(P3, 1000));
    write(&mut pair, 1, 1000);
    pair.run(50);
    assert_eq!((times(&pair.frames(), 1), pair.done(0)), (vec![], vec![]));
    pair.run(10);
    assert_eq!(times(&pair.frames(), 1), [51_200]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn nobody_else_waits() {
    // Another priority is paused; the same, but it is not ours; this one by a frame that no receiver obeys.
    let mut tagged = xoff(P3, u16::MAX).to_vec();
    tagged.splice(12..12, [0x81, 0, 0x60, 0]);
    for (obeyed, told) in
        [(P3, xoff(!P3, u16::MAX).to_vec()), (!P3, xoff(P3, u16::MAX).to_vec()), (P3, tagged)]
    {
        let mut pair = Pair::new(&setup(obeyed));
        tell(&mut pair, 0, &told);
        write(&mut pair, 1, 1000);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::Success)]);
    }
    // And without flow control, the frame is none of ours.
    let mut pair = Pair::new(&setup(0));
    tell(&mut pair, 0, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 1000);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.counters(0), [(Counter::PortRcvErrors, 1)]);
}

#[test]
fn pause_stops_every_priority() {
    let mut pair = Pair::new(&setup(1 << 5));
    tell(&mut pair, 0, &frame(FlowControl::Pause { quanta: 1000 }));
    write(&mut pair, 1, 1000);
    pair.run(100);
    assert_eq!(times(&pair.frames(), 0), [51_200]);
}

#[test]
fn the_tag_says_the_priority_or_the_map_of_dscps() {
    let paused = |setup: &PairSetup, priority: u8| {
        let mut pair = Pair::new(setup);
        tell(&mut pair, 0, &xoff(1 << priority, 1000));
        write(&mut pair, 1, 1000);
        pair.run(10);
        pair.done(0).is_empty()
    };
    let mut tagged = setup(0xff);
    for options in &mut tagged.options {
        (options.sgid_index, options.service_level) = (2, 5);
    }
    let mut mapped = setup(0xff);
    mapped.config.pfc.dscp = "24:6".parse().unwrap();
    for (setup, own) in [(&tagged, 5), (&mapped, 6), (&setup(0xff), 3)] {
        let seen: Vec<u8> = (0..8).filter(|&priority| paused(setup, priority)).collect();
        assert_eq!(seen, [own]);
    }
}

#[test]
fn cnps_wait_with_their_own_priority() {
    let params = Params::named("paper").expect("a set");
    let congestion = CongestionConfig { control: Control::DCQCN, params, burst: 64 << 10 };
    for (priority, cnp_at, ack_at) in [(6, 51_200, 1_000), (3, 1_000, 51_200)] {
        let mut setup = setup(P3 | 1 << 6);
        setup.config.congestion = congestion;
        let mut pair = Pair::new(&setup);
        let marks = WireFaults { mark: 1_000_000, ..WireFaults::default() };
        pair.rig.wire.set_faults(marks, 1);
        tell(&mut pair, 1, &xoff(1 << priority, 1000));
        write(&mut pair, 1, 1000);
        pair.run(100);
        let frames = pair.frames();
        let (cnps, acks): (Vec<_>, Vec<_>) = frames
            .into_iter()
            .filter(|seen| seen.from == 1)
            .partition(|seen| Packet::parse(&seen.bytes, &[]).unwrap().bth.opcode == Opcode::CNP);
        assert_eq!((times(&cnps, 1), times(&acks, 1)), (vec![cnp_at], vec![ack_at]));
    }
}

/// Each would cut the peer's rate at once, as often as the pause has CNP intervals.
#[test]
fn cnps_do_not_pile_up_in_a_pause() {
    let params = Params::named("paper").expect("a set");
    let mut setup = setup(1 << 6);
    setup.config.congestion = CongestionConfig { control: Control::DCQCN, params, burst: 64 << 10 };
    let mut pair = Pair::new(&setup);
    pair.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
    tell(&mut pair, 1, &xoff(1 << 6, 6000)); // 307.2 us
    for message in 1..=5 {
        write(&mut pair, message, 1000);
        pair.run(60);
    }
    assert_eq!(pair.done(0).len(), 5, "acknowledgements are of another priority");
    pair.run(100);
    let is_cnp = |seen: &&Seen| Packet::parse(&seen.bytes, &[]).unwrap().bth.opcode == Opcode::CNP;
    assert_eq!(pair.frames().iter().filter(is_cnp).count(), 1);
}

/// One QP's frames are tagged, so that its CNPs are of the priority that the parameter says; the other's are of that of their DSCP.
#[test]
fn cnps_of_another_priority_do_not_wait_behind() {
    let params = Params::named("paper").expect("a set");
    let mut setup = setup(1 << 5 | 1 << 6);
    setup.config.pfc.dscp = "48:5".parse().unwrap();
    setup.config.congestion = CongestionConfig { control: Control::DCQCN, params, burst: 64 << 10 };
    for options in &mut setup.options {
        options.sgid_index = 2;
    }
    let mut pair = Pair::new(&setup);
    let init = [0, 1].map(|end: usize| QpInit::new(&pair.cqs[end]));
    let [pd_0, pd_1] = &pair.pds;
    let psns = [Psn::new(7), Psn::new(9)];
    let options = ConnectOptions::default();
    let mut untagged = pair.rig.connect([pd_0, pd_1], [&init[0], &init[1]], psns, &options);
    pair.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
    tell(&mut pair, 1, &xoff(1 << 6, 1000));
    write(&mut pair, 1, 1000);
    let sge = pair.buffers[0].region().sge(0, 1000);
    let (op, data) = (SendOp::Write(pair.remote(0)), Data::Sges(&[sge]));
    let request = SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED };
    untagged[0].post_send(&request).unwrap();
    pair.run(100);
    let cnp = |seen: &Seen| {
        let packet = Packet::parse(&seen.bytes, &[]).unwrap();
        (packet.bth.opcode == Opcode::CNP).then_some((packet.vlan.is_some(), seen.at.as_nanos()))
    };
    let cnps: Vec<_> = pair.frames().iter().filter_map(cnp).collect();
    assert_eq!(cnps, [(false, 1_000), (true, 51_200)]);
}

/// A window is bound and its key invalidated: nothing of that passes the link.
#[test]
fn requests_that_send_nothing_wait_only_for_their_turn() {
    let mut pair = Pair::new(&setup(P3));
    tell(&mut pair, 0, &xoff(P3, u16::MAX));
    let window = pair.pds[0].alloc_mw(WindowType::Two).unwrap();
    let (rkey, region) = (window.rkey_with(1), pair.buffers[0].region());
    let (lkey, addr, access) = (region.lkey(), region.addr(), Access::REMOTE_READ);
    let bind = LocalOp::Bind(WindowBind { rkey, lkey, addr, length: 64, access });
    pair.post_sges(1, SendOp::Local(bind), &[], SendFlags::SIGNALED);
    pair.run(5);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    write(&mut pair, 2, 1000);
    let invalidate = LocalOp::Invalidate(rkey);
    pair.post_sges(3, SendOp::Local(invalidate), &[], SendFlags::SIGNALED);
    pair.run(5);
    assert_eq!((pair.done(0), times(&pair.frames(), 0)), (vec![], vec![]));
    tell(&mut pair, 0, &xoff(P3, 0));
    pair.run(5);
    assert_eq!(pair.done(0), [(2, Status::Success), (3, Status::Success)]);
}

/// The peer must hear that its message has arrived: nobody would tell it later.
#[test]
fn who_ends_a_connection_in_a_pause_acknowledges_and_sends_no_data() {
    let mut pair = Pair::new(&setup(P3));
    pair.run(5);
    tell(&mut pair, 1, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 1000);
    let sge = pair.buffers[1].region().sge(0, 1000);
    let region = pair.buffers[0].region();
    let back = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    let (op, data) = (SendOp::Write(back), Data::Sges(&[sge]));
    let request = SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED };
    pair.qps[1].post_send(&request).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), []);
    let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
    pair.qps[1].modify(&error).unwrap();
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.done(1), [(2, Status::WorkRequestFlushed)]);
    assert_eq!(times(&pair.frames(), 1).len(), 1);
}

/// Issues what keeps end 0 busy, and a pause of `quanta` at the beginning of each of the `periods`; the bytes that went out.
fn paced_bytes(pair: &mut Pair, quanta: u16, period: Duration, periods: u32) -> u64 {
    let mut sent = 0;
    for _ in 0..periods {
        tell(pair, 0, &xoff(P3, quanta));
        while pair.qps[0].sends_posted() < 64 {
            write(pair, 1, 64 << 10);
        }
        pair.rig.run_for(period);
        assert!(pair.done(0).iter().all(|(_, status)| *status == Status::Success));
        let frames = pair.frames();
        sent += frames
            .iter()
            .filter(|seen| seen.from == 0)
            .map(|seen| seen.bytes.len() as u64)
            .sum::<u64>();
    }
    sent
}

/// An endpoint that is paced to half of what the path carries has the share of the time that is left to it, within 5 %.
#[test]
fn throughput_falls_to_the_share_that_pauses_leave() {
    for gigabits in [2, 5] {
        for (micros, periods) in [(1000, 6), (4000, 3)] {
            for percent in [0, 10, 30, 60, 80] {
                let (rate, period) = (Rate::from_gbps(gigabits), Duration::from_micros(micros));
                let paused = period * percent / 100;
                let quanta = u16::try_from(paused.as_nanos() * 10 / 512).expect("short");
                let mut setup = setup(P3);
                let (control, burst) = (Control::Fixed(rate), 1200);
                setup.config.congestion =
                    CongestionConfig { control, burst, ..CongestionConfig::default() };
                let mut pair = Pair::new(&setup);
                let sent = paced_bytes(&mut pair, quanta, period, periods);
                let due = rate.bytes_in((period - paused) * periods);
                let off = sent.abs_diff(due) * 1000 / due;
                println!(
                    "{rate}, {percent} % of {micros} us: {sent} of {due} bytes, {off}/1000 off"
                );
                assert!(off <= 50, "{rate}, {percent} % of {micros} us: {sent} of {due}");
                assert_eq!(count(&pair, 0, Counter::RetransmittedPackets), 0);
            }
        }
    }
}

/// Two QPs of one device, one of which is paused almost always.
#[test]
fn another_priority_of_the_same_device_is_untouched() {
    let mut pair = Pair::new(&setup(P3));
    let init = [0, 1].map(|end: usize| QpInit::new(&pair.cqs[end]));
    let options =
        ConnectOptions { path_mtu: PathMtu::from_bytes(1024), ..ConnectOptions::default() };
    let psns = [Psn::new(7), Psn::new(9)];
    let [pd_0, pd_1] = &pair.pds;
    let mut free = pair.rig.connect([pd_0, pd_1], [&init[0], &init[1]], psns, &options);
    tell(&mut pair, 0, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 4000);
    for round in 0..100 {
        let sge = pair.buffers[0].region().sge(0, 4000);
        let (op, data) = (SendOp::Write(pair.remote(0)), Data::Sges(&[sge]));
        let request = SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED };
        free[0].post_send(&request).unwrap();
        pair.run(3);
        assert_eq!(pair.done(0), [(2, Status::Success)], "round {round}");
    }
    assert_eq!(free[0].service(), Service::Rc);
    tell(&mut pair, 0, &xoff(P3, 0));
    pair.run(3);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// A device of several cores on shm ports, and the other ends of these.
struct Slow {
    device: Device,
    far: Vec<ShmPort>,
    now: Instant,
    _arena: std::sync::Arc<Arena>,
}

const SLOTS: usize = 256;

impl Slow {
    fn open(config: DeviceConfig) -> Result<Self, OpenError> {
        let arena = Arena::new(64 << 20).unwrap();
        let pair =
            |_| shm_pair(&arena, ShmConfig { slots: SLOTS, ..ShmConfig::default() }).unwrap();
        let (near, far): (Vec<_>, Vec<_>) = (0..config.cores).map(pair).unzip();
        let near = near.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
        let device = Device::with_ports(near, addresses(0), config)?;
        Ok(Self { device, far, now: Instant::ZERO, _arena: arena })
    }

    fn new(cores: usize) -> Self {
        let thresholds = Some(Thresholds { xoff: 50, xon: 25 });
        let pfc = PfcConfig { thresholds, ..pfc(P3) };
        Self::open(DeviceConfig { cores, pfc, ..manual_config(1) }).expect("a device")
    }

    /// Something arrives at a core.
    fn fill(&mut self, core: usize, frames: usize) {
        for _ in 0..frames {
            self.send(core, &[0; 60]);
        }
    }

    fn send(&mut self, core: usize, frame: &[u8]) {
        let far = &mut self.far[core];
        far.tx_slot().expect("room")[..frame.len()].copy_from_slice(frame);
        far.tx_commit(frame.len(), Priority::default());
        far.flush().expect("it is open");
    }

    /// Every core takes a burst. What they ask for: core and quanta.
    fn turn(&mut self) -> Vec<(usize, u16)> {
        self.device.turn(self.now);
        let taken = (0..self.far.len()).map(|core| (core, self.take(core)));
        taken
            .flat_map(|(core, asked)| asked.into_iter().map(move |quanta| (core, quanta)))
            .collect()
    }

    /// What a core has asked for, of the first burst that nobody has taken yet: quanta.
    fn take(&mut self, core: usize) -> Vec<u16> {
        let far = &mut self.far[core];
        let count = far.rx_burst();
        let quanta = |index: usize| {
            let bytes = far.rx_frame(index).first;
            let seen = pause::inspect(bytes, bytes.len()).expect("flow control");
            assert!(seen.findings.is_empty() && seen.src == far_mac(), "{seen:?}");
            let Some(FlowControl::Pfc { enabled: P3, quanta }) = seen.obeyed() else {
                panic!("{seen:?}")
            };
            quanta[3]
        };
        (0..count).map(quanta).collect()
    }

    /// Core 0 asks and lets go, `times` times, and nobody takes what it says.
    fn ask_in_vain(&mut self, times: usize) {
        for _ in 0..times {
            self.fill(0, 64 + 96);
            (0..3).for_each(|_| _ = self.device.turn(self.now));
        }
    }
}

fn far_mac() -> feroce_wire::MacAddr {
    ShmConfig::default().macs[0]
}

#[test]
fn a_ring_that_fills_asks_for_a_pause_until_it_is_empty_enough() {
    let mut slow = Slow::new(1);
    // Of 256 slots, 64 have what the core looks at.
    slow.fill(0, 64 + 95);
    assert_eq!(slow.turn(), [], "95 of 192 wait");
    slow.fill(0, 64 + 1);
    assert_eq!(slow.turn(), [(0, u16::MAX)], "96 wait");
    slow.fill(0, 60);
    assert_eq!(slow.turn(), [], "92 wait: once is enough");
    // 65535 quanta are 3.355 ms.
    let half = Duration::from_nanos(3_355_392 / 2);
    let (next, due) = (slow.device.next_deadline(slow.now).unwrap(), Instant::ZERO + half);
    assert!(next > slow.now && next <= due, "it wakes up for that, in steps: {next:?}");
    slow.now = due;
    slow.fill(0, 60);
    assert_eq!(slow.turn(), [(0, u16::MAX)], "88 wait: it asks again before the pause is over");
    assert_eq!(slow.turn(), [(0, 0)], "24 wait");
    assert_eq!((slow.turn(), slow.turn()), (vec![], vec![]));
    assert_eq!(slow.device.next_deadline(slow.now), None);
    assert_eq!(slow.device.counter(Counter::TxPause), 3);
}

#[test]
fn the_last_core_lets_go_for_all() {
    let mut slow = Slow::new(2);
    slow.fill(0, 64 + 112);
    slow.fill(1, 64 + 160);
    assert_eq!(slow.turn(), [(0, u16::MAX), (1, u16::MAX)]);
    assert_eq!(slow.turn(), [], "48 wait at core 0, which is few enough, and 96 at core 1");
    assert_eq!(slow.turn(), [(1, 0)]);
    assert_eq!((slow.turn(), slow.turn()), (vec![], vec![]));
    slow.fill(0, 64 + 128);
    assert_eq!(slow.turn(), [(0, u16::MAX)], "and it begins anew");
}

/// A core whose port has no room has not asked, and the others' XON does not wait for its.
#[test]
fn who_could_not_ask_is_not_waited_for() {
    let mut slow = Slow::new(2);
    slow.ask_in_vain(SLOTS / 2);
    assert_eq!(slow.device.counter(Counter::TxPause), SLOTS as u64);
    slow.fill(0, 64 + 96);
    slow.fill(1, 64 + 160);
    slow.device.turn(slow.now);
    assert_eq!(slow.take(1), [u16::MAX]);
    assert_eq!(slow.device.counter(Counter::TxPause), SLOTS as u64 + 1, "core 0 has no room");
    slow.device.turn(slow.now);
    assert!(slow.take(1).is_empty(), "32 wait at core 0, 96 at core 1");
    slow.device.turn(slow.now);
    assert_eq!(slow.take(1), [0]);
}

/// A pause is to be asked for again, and the port has no room.
#[test]
fn who_could_not_ask_sleeps_and_asks_when_there_is_room() {
    let mut slow = Slow::new(1);
    slow.ask_in_vain(SLOTS / 2 - 2);
    // An odd number of frames more: the ring fills on in spite of the first.
    slow.fill(0, 64 + 96);
    slow.device.turn(slow.now);
    slow.fill(0, 64 + 30);
    slow.device.turn(slow.now);
    (0..3).for_each(|_| _ = slow.device.turn(slow.now));
    assert_eq!(slow.device.counter(Counter::TxPause), SLOTS as u64 - 1);
    slow.fill(0, 64 + 96);
    slow.device.turn(slow.now);
    assert_eq!(slow.device.counter(Counter::TxPause), SLOTS as u64, "the port is full");
    slow.now += Duration::from_nanos(3_355_392 / 2);
    slow.fill(0, 64);
    slow.device.turn(slow.now);
    assert_eq!(slow.device.counter(Counter::TxPause), SLOTS as u64);
    let (next, latest) =
        (slow.device.next_deadline(slow.now), slow.now + Duration::from_micros(50));
    assert!(next > Some(slow.now) && next <= Some(latest), "{next:?} of {latest:?}");
    while !slow.take(0).is_empty() {}
    slow.now = latest;
    slow.fill(0, 64);
    assert_eq!(slow.turn(), [(0, u16::MAX)]);
}

#[test]
fn a_pause_that_one_core_hears_stops_all_of_them() {
    let mut slow = Slow::new(2);
    let (pd, cq) = (slow.device.alloc_pd(), slow.device.create_cq(64).unwrap());
    let buffer = pd.alloc_buffer(1000, Access::ALL).unwrap();
    let options = ConnectOptions { traffic_class: CLASS_3, ..ConnectOptions::default() };
    let mut qps: Vec<_> = (0..2).map(|_| pd.create_qp(&QpInit::new(&cq)).unwrap()).collect();
    let peer = feroce_engine::device::Endpoint {
        qpn: feroce_wire::Qpn::masked(0x99),
        psn: Psn::new(1),
        gid: feroce_tests::gid(1),
        super_frames: None,
    };
    for qp in &mut qps {
        qp.connect(Psn::new(1), &peer, &options).unwrap();
    }
    slow.send(1, &xoff(P3, u16::MAX));
    slow.device.turn(slow.now);
    slow.device.turn(slow.now);
    for qp in &mut qps {
        let remote = RemoteAddr { addr: 0, rkey: buffer.region().rkey() };
        let sge = buffer.region().sge(0, 1000);
        let (op, data) = (SendOp::Write(remote), Data::Sges(&[sge]));
        qp.post_send(&SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED }).unwrap();
    }
    assert_eq!(slow.turn(), []);
    slow.send(0, &xoff(P3, 0));
    slow.device.turn(slow.now);
    slow.device.turn(slow.now);
    slow.device.turn(slow.now);
    let sent: Vec<usize> = slow.far.iter_mut().map(ShmPort::rx_burst).collect();
    assert_eq!(sent, [1, 1]);
    assert_eq!(slow.device.counter(Counter::RxPause), 2);
}

#[test]
fn what_cannot_work_is_told_when_the_device_opens() {
    let told = |pfc| match Slow::open(DeviceConfig { pfc, ..manual_config(1) }) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it opened"),
    };
    assert!(told(PfcConfig { rate: None, ..pfc(P3) }).contains("choose it by pfc_rate"));
    let thresholds = Some(Thresholds { xoff: 50, xon: 25 });
    assert!(told(PfcConfig { thresholds, ..pfc(0) }).contains("choose them by pfc"));
}
