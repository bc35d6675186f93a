//! Flow control at an endpoint in virtual time: a pause stops exactly its priority to the
//! nanosecond, and a receive ring that fills requests a pause.

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

/// Delivers a flow-control frame to end `to` without delay.
fn deliver(pair: &mut Pair, to: usize, frame: &[u8]) {
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

/// 802.1Qbb, annex 31D.
#[test]
fn a_paused_priority_sleeps_until_its_pause_ends() {
    let mut pair = Pair::new(&setup(P3));
    pair.run(5);
    deliver(&mut pair, 0, &xoff(P3, 1000));
    write(&mut pair, 1, 3000);
    pair.rig.settle();
    let end = pair.rig.now + PAUSE;
    assert_eq!(pair.rig.devices[0].next_deadline(pair.rig.now), Some(end), "the core sleeps");
    pair.run(1000);
    // Three packets with data.
    let frames = pair.frames();
    assert_eq!(times(&frames, 0), [end.as_nanos(); 3]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    let expected = [(Counter::RxPause, 1), (Counter::RxPaused3, 51)];
    assert_eq!(pair.counters(0), expected);
}

#[test]
fn xon_ends_a_pause_at_once_and_a_refresh_extends_it() {
    let mut pair = Pair::new(&setup(P3));
    deliver(&mut pair, 0, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 1000);
    pair.run(40);
    deliver(&mut pair, 0, &xoff(P3, 1000)); // This pause ends sooner than the first would have.
    pair.run(30);
    deliver(&mut pair, 0, &xoff(P3, u16::MAX));
    pair.run(2000);
    assert_eq!(times(&pair.frames(), 0), [0; 0]);
    deliver(&mut pair, 0, &xoff(P3, 0));
    pair.run(10);
    assert_eq!(times(&pair.frames(), 0), [2_070_000]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!((count(&pair, 0, Counter::RxPause), count(&pair, 0, Counter::RxPaused3)), (4, 2070));
}

#[test]
fn acknowledgements_wait_with_their_priority() {
    let mut pair = Pair::new(&setup(P3));
    deliver(&mut pair, 1, &xoff(P3, 1000));
    write(&mut pair, 1, 1000);
    pair.run(50);
    assert_eq!((times(&pair.frames(), 1), pair.done(0)), (vec![], vec![]));
    pair.run(10);
    assert_eq!(times(&pair.frames(), 1), [51_200]);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

#[test]
fn a_pause_of_other_priorities_stops_nothing() {
    // All other priorities are paused; the QP's priority is paused, but the device obeys only
    // pauses of other priorities; the pause frame is tagged, which no receiver obeys.
    let mut tagged = xoff(P3, u16::MAX).to_vec();
    tagged.splice(12..12, [0x81, 0, 0x60, 0]);
    for (obeyed, frame) in
        [(P3, xoff(!P3, u16::MAX).to_vec()), (!P3, xoff(P3, u16::MAX).to_vec()), (P3, tagged)]
    {
        let mut pair = Pair::new(&setup(obeyed));
        deliver(&mut pair, 0, &frame);
        write(&mut pair, 1, 1000);
        pair.run(10);
        assert_eq!(pair.done(0), [(1, Status::Success)]);
    }
    // Without flow control, the frame counts as a receive error.
    let mut pair = Pair::new(&setup(0));
    deliver(&mut pair, 0, &xoff(P3, u16::MAX));
    write(&mut pair, 1, 1000);
    pair.run(10);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
    assert_eq!(pair.counters(0), [(Counter::PortRcvErrors, 1)]);
}

/// annex 31B.
#[test]
fn pause_stops_every_priority() {
    let mut pair = Pair::new(&setup(1 << 5));
    deliver(&mut pair, 0, &frame(FlowControl::Pause { quanta: 1000 }));
    write(&mut pair, 1, 1000);
    pair.run(100);
    assert_eq!(times(&pair.frames(), 0), [51_200]);
}

#[test]
fn the_vlan_tag_or_the_dscp_map_selects_the_priority() {
    let paused = |setup: &PairSetup, priority: u8| {
        let mut pair = Pair::new(setup);
        deliver(&mut pair, 0, &xoff(1 << priority, 1000));
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
    for (setup, expected) in [(&tagged, 5), (&mapped, 6), (&setup(0xff), 3)] {
        let seen: Vec<u8> = (0..8).filter(|&priority| paused(setup, priority)).collect();
        assert_eq!(seen, [expected]);
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
        deliver(&mut pair, 1, &xoff(1 << priority, 1000));
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

/// Otherwise one CNP per CNP interval of the pause would be sent at its end, and each would cut the
/// peer's rate.
#[test]
fn cnps_do_not_accumulate_in_a_pause() {
    let params = Params::named("paper").expect("a set");
    let mut setup = setup(1 << 6);
    setup.config.congestion = CongestionConfig { control: Control::DCQCN, params, burst: 64 << 10 };
    let mut pair = Pair::new(&setup);
    pair.rig.wire.set_faults(WireFaults { mark: 1_000_000, ..WireFaults::default() }, 1);
    deliver(&mut pair, 1, &xoff(1 << 6, 6000)); // 307.2 us
    for message in 1..=5 {
        write(&mut pair, message, 1000);
        pair.run(60);
    }
    assert_eq!(pair.done(0).len(), 5, "acknowledgements have another priority");
    pair.run(100);
    let is_cnp = |seen: &&Seen| Packet::parse(&seen.bytes, &[]).unwrap().bth.opcode == Opcode::CNP;
    assert_eq!(pair.frames().iter().filter(is_cnp).count(), 1);
}

/// The frames of one QP are tagged, so its CNPs have the priority `cnp_priority`. The CNPs of the
/// other QP have the priority that belongs to their DSCP.
#[test]
fn a_held_cnp_does_not_delay_cnps_of_another_priority() {
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
    deliver(&mut pair, 1, &xoff(1 << 6, 1000));
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

/// Binding a window and invalidating its key send nothing, so a pause does not hold them. They wait
/// only for earlier requests of the queue.
#[test]
fn requests_without_packets_ignore_pauses() {
    let mut pair = Pair::new(&setup(P3));
    deliver(&mut pair, 0, &xoff(P3, u16::MAX));
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
    deliver(&mut pair, 0, &xoff(P3, 0));
    pair.run(5);
    assert_eq!(pair.done(0), [(2, Status::Success), (3, Status::Success)]);
}

/// The pending acknowledgement is sent although the priority is paused: after the change to ERR it
/// could not be sent later.
#[test]
fn a_qp_that_enters_err_in_a_pause_acknowledges_and_sends_no_data() {
    let mut pair = Pair::new(&setup(P3));
    pair.run(5);
    deliver(&mut pair, 1, &xoff(P3, u16::MAX));
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

/// Keeps the send queue of end 0 full and pauses it for `quanta` at the start of each of the
/// `periods`. Returns the bytes that end 0 sent.
fn bytes_sent_with_pauses(pair: &mut Pair, quanta: u16, period: Duration, periods: u32) -> u64 {
    let mut sent = 0;
    for _ in 0..periods {
        deliver(pair, 0, &xoff(P3, quanta));
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

/// An endpoint with a fixed rate below the link rate sends that rate times the share of the time
/// without pause, within 5 %.
#[test]
fn throughput_is_proportional_to_the_unpaused_time() {
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
                let sent = bytes_sent_with_pauses(&mut pair, quanta, period, periods);
                let expected = rate.bytes_in((period - paused) * periods);
                let off = sent.abs_diff(expected) * 1000 / expected;
                println!(
                    "{rate}, {percent} % of {micros} us: {sent} of {expected} bytes, {off}/1000 off"
                );
                assert!(off <= 50, "{rate}, {percent} % of {micros} us: {sent} of {expected}");
                assert_eq!(count(&pair, 0, Counter::RetransmittedPackets), 0);
            }
        }
    }
}

/// Two QPs of one device, of which one is always paused.
#[test]
fn a_pause_does_not_delay_another_priority_of_the_device() {
    let mut pair = Pair::new(&setup(P3));
    let init = [0, 1].map(|end: usize| QpInit::new(&pair.cqs[end]));
    let options =
        ConnectOptions { path_mtu: PathMtu::from_bytes(1024), ..ConnectOptions::default() };
    let psns = [Psn::new(7), Psn::new(9)];
    let [pd_0, pd_1] = &pair.pds;
    let mut free = pair.rig.connect([pd_0, pd_1], [&init[0], &init[1]], psns, &options);
    deliver(&mut pair, 0, &xoff(P3, u16::MAX));
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
    deliver(&mut pair, 0, &xoff(P3, 0));
    pair.run(3);
    assert_eq!(pair.done(0), [(1, Status::Success)]);
}

/// A device that receives one burst per shm port in each [`Self::turn`], and the far ends of the
/// ports.
struct SlowReceiver {
    device: Device,
    far: Vec<ShmPort>,
    now: Instant,
    _arena: std::sync::Arc<Arena>,
}

/// Slots of each ring of a port.
const SLOTS: usize = 256;

impl SlowReceiver {
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

    /// Sends `frames` frames that are not RoCE to a core.
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

    /// Lets every core receive a burst. Returns the pauses that the cores request: core and quanta.
    fn turn(&mut self) -> Vec<(usize, u16)> {
        self.device.turn(self.now);
        let taken = (0..self.far.len()).map(|core| (core, self.take(core)));
        taken
            .flat_map(|(core, requested)| requested.into_iter().map(move |quanta| (core, quanta)))
            .collect()
    }

    /// The pauses in quanta that a core has requested, from the next burst at the far end.
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

    /// Core 0 requests and ends a pause `times` times. The frames stay in the ring of its port.
    fn fill_tx_ring_with_pauses(&mut self, times: usize) {
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
fn a_filling_ring_requests_a_pause_until_it_is_below_xon() {
    let mut receiver = SlowReceiver::new(1);
    // Of 256 slots, 64 are in the burst that the core handles.
    receiver.fill(0, 64 + 95);
    assert_eq!(receiver.turn(), [], "95 of 192 wait");
    receiver.fill(0, 64 + 1);
    assert_eq!(receiver.turn(), [(0, u16::MAX)], "96 wait");
    receiver.fill(0, 60);
    assert_eq!(receiver.turn(), [], "92 wait: the pause is already requested");
    // 65535 quanta are 3.355 ms.
    let half = Duration::from_nanos(3_355_392 / 2);
    let (next, refresh_at) =
        (receiver.device.next_deadline(receiver.now).unwrap(), Instant::ZERO + half);
    assert!(
        next > receiver.now && next <= refresh_at,
        "the core wakes up for the refresh, in steps: {next:?}"
    );
    receiver.now = refresh_at;
    receiver.fill(0, 60);
    assert_eq!(receiver.turn(), [(0, u16::MAX)], "88 wait: the pause is refreshed before it ends");
    assert_eq!(receiver.turn(), [(0, 0)], "24 wait");
    assert_eq!((receiver.turn(), receiver.turn()), (vec![], vec![]));
    assert_eq!(receiver.device.next_deadline(receiver.now), None);
    assert_eq!(receiver.device.counter(Counter::TxPause), 3);
}

#[test]
fn the_last_core_below_xon_sends_xon() {
    let mut receiver = SlowReceiver::new(2);
    receiver.fill(0, 64 + 112);
    receiver.fill(1, 64 + 160);
    assert_eq!(receiver.turn(), [(0, u16::MAX), (1, u16::MAX)]);
    assert_eq!(receiver.turn(), [], "48 wait at core 0, which is below XON, and 96 at core 1");
    assert_eq!(receiver.turn(), [(1, 0)]);
    assert_eq!((receiver.turn(), receiver.turn()), (vec![], vec![]));
    receiver.fill(0, 64 + 128);
    assert_eq!(receiver.turn(), [(0, u16::MAX)], "a new pause is requested");
}

/// A core whose port is full has not requested a pause, so the XON of another core does not wait
/// for it.
#[test]
fn xon_does_not_wait_for_a_core_that_could_not_request_a_pause() {
    let mut receiver = SlowReceiver::new(2);
    receiver.fill_tx_ring_with_pauses(SLOTS / 2);
    assert_eq!(receiver.device.counter(Counter::TxPause), SLOTS as u64);
    receiver.fill(0, 64 + 96);
    receiver.fill(1, 64 + 160);
    receiver.device.turn(receiver.now);
    assert_eq!(receiver.take(1), [u16::MAX]);
    assert_eq!(receiver.device.counter(Counter::TxPause), SLOTS as u64 + 1, "core 0 has no room");
    receiver.device.turn(receiver.now);
    assert!(receiver.take(1).is_empty(), "32 wait at core 0, 96 at core 1");
    receiver.device.turn(receiver.now);
    assert_eq!(receiver.take(1), [0]);
}

/// A refresh is due while the port is full: the core sleeps and retries until there is room.
#[test]
fn a_refresh_is_retried_until_the_port_has_room() {
    let mut receiver = SlowReceiver::new(1);
    receiver.fill_tx_ring_with_pauses(SLOTS / 2 - 2);
    // Three more frames: the ring fills further after the XOFF, so the XOFF is repeated before XON.
    receiver.fill(0, 64 + 96);
    receiver.device.turn(receiver.now);
    receiver.fill(0, 64 + 30);
    receiver.device.turn(receiver.now);
    (0..3).for_each(|_| _ = receiver.device.turn(receiver.now));
    assert_eq!(receiver.device.counter(Counter::TxPause), SLOTS as u64 - 1);
    receiver.fill(0, 64 + 96);
    receiver.device.turn(receiver.now);
    assert_eq!(receiver.device.counter(Counter::TxPause), SLOTS as u64, "the port is full");
    receiver.now += Duration::from_nanos(3_355_392 / 2);
    receiver.fill(0, 64);
    receiver.device.turn(receiver.now);
    assert_eq!(receiver.device.counter(Counter::TxPause), SLOTS as u64);
    let (next, latest) =
        (receiver.device.next_deadline(receiver.now), receiver.now + Duration::from_micros(50));
    assert!(next > Some(receiver.now) && next <= Some(latest), "{next:?} of {latest:?}");
    while !receiver.take(0).is_empty() {}
    receiver.now = latest;
    receiver.fill(0, 64);
    assert_eq!(receiver.turn(), [(0, u16::MAX)]);
}

#[test]
fn a_pause_received_by_one_core_stops_all_cores() {
    let mut receiver = SlowReceiver::new(2);
    let (pd, cq) = (receiver.device.alloc_pd(), receiver.device.create_cq(64).unwrap());
    let buffer = pd.alloc_buffer(1000, Access::ALL).unwrap();
    let options = ConnectOptions { traffic_class: CLASS_3, ..ConnectOptions::default() };
    let mut qps: Vec<_> = (0..2).map(|_| pd.create_qp(&QpInit::new(&cq)).unwrap()).collect();
    let peer = feroce_engine::device::Endpoint::new(
        feroce_wire::Qpn::masked(0x99),
        Psn::new(1),
        feroce_tests::gid(1),
    );
    for qp in &mut qps {
        qp.connect(Psn::new(1), &peer, &options).unwrap();
    }
    receiver.send(1, &xoff(P3, u16::MAX));
    receiver.device.turn(receiver.now);
    receiver.device.turn(receiver.now);
    for qp in &mut qps {
        let remote = RemoteAddr { addr: 0, rkey: buffer.region().rkey() };
        let sge = buffer.region().sge(0, 1000);
        let (op, data) = (SendOp::Write(remote), Data::Sges(&[sge]));
        qp.post_send(&SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED }).unwrap();
    }
    assert_eq!(receiver.turn(), []);
    receiver.send(0, &xoff(P3, 0));
    receiver.device.turn(receiver.now);
    receiver.device.turn(receiver.now);
    receiver.device.turn(receiver.now);
    let sent: Vec<usize> = receiver.far.iter_mut().map(ShmPort::rx_burst).collect();
    assert_eq!(sent, [1, 1]);
    assert_eq!(receiver.device.counter(Counter::RxPause), 2);
}

#[test]
fn a_configuration_that_cannot_work_is_refused_at_open() {
    let error_of = |pfc| match SlowReceiver::open(DeviceConfig { pfc, ..manual_config(1) }) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the device opened"),
    };
    assert!(error_of(PfcConfig { rate: None, ..pfc(P3) }).contains("choose it by pfc_rate"));
    let thresholds = Some(Thresholds { xoff: 50, xon: 25 });
    assert!(error_of(PfcConfig { thresholds, ..pfc(0) }).contains("choose them by pfc"));
}
