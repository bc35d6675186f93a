//! The port of one core on a DPDK device.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::config::{DpdkConfig, frame_max};
use super::device::Ethdev;
use super::error::DpdkError;
use super::frames::padded;
use super::idle_timer::IdleTimer;
use super::mbuf::{BURST, Frames, Pool};
use super::neighbours::PortAddresses;
use crate::port::contract::{
    Port, PortAttributes, PortStats, Priority, RX_BURST, RxFrame, STUCK_AFTER,
};
use crate::port::kind::{OpenRequest, OpenedPorts, PortAddressing, PortError};
use crate::time::{Clock, Instant};

/// Maximum number of frames that wait for the device.
const PENDING: usize = 256;
/// Attempts to send to a device that takes no frames. The device may free descriptors during the
/// first attempt.
const OFFERS: u32 = 2;

/// The DPDK port of one core.
#[derive(Debug)]
pub struct DpdkPort {
    attributes: PortAttributes,
    queue: u16,
    rx: Frames,
    /// Number of frames at the front of `rx` that are shown to the core.
    shown: usize,
    /// True if flow-control frames are shown to the core, too.
    flow_control: bool,
    /// Buffer for a response for which there is no transmit slot.
    scratch: Box<[u8]>,
    tx: Transmit,
    clock: Clock,
    /// Time of the first failed attempt to send since the device last took a frame.
    stuck_since: Option<Instant>,
    /// Time of the last check of the interface below, and whether it was lost then.
    interface_checked: (Instant, bool),
    idle_timer: IdleTimer,
    stats: PortStats,
    addresses: PortAddresses,
    // Must be dropped after the buffers: the last port closes the device and frees the pools.
    device: Arc<Ethdev>,
}

/// The transmit side of one core.
#[derive(Debug)]
struct Transmit {
    /// Free buffers; the last one is the next slot.
    free: Frames,
    /// Frames that were committed and that the device did not take yet.
    pending: Frames,
    frame_max: usize,
}

impl Transmit {
    /// Number of slots. Allocates new ones if few are left.
    fn room(&mut self, pool: &Pool) -> usize {
        if self.free.len() < BURST {
            self.free.allocate(pool, BURST);
        }
        self.free.len().min(PENDING - self.pending.len())
    }

    fn slot(&mut self, pool: &Pool) -> Option<&mut [u8]> {
        if self.room(pool) == 0 {
            return None;
        }
        self.free.last_buffer(pool).map(|buffer| &mut buffer[..self.frame_max])
    }

    /// Queues the first `len` bytes of the last slot as a frame. Returns the length of the frame,
    /// which may be padded.
    fn commit(&mut self, len: usize, pool: &Pool) -> usize {
        let len = self.free.last_buffer(pool).map_or(len, |buffer| padded(buffer, len));
        self.free.move_last(&mut self.pending, len);
        len
    }
}

/// Opens the ports of a device. The device has no owner in the sense of Feroce: vfio gives a NIC to
/// one process, and names of virtual devices are local to a process.
pub(super) fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    let mut config = request.configs.get::<DpdkConfig>().clone();
    request.device.clone_into(&mut config.port);
    config.flow_control |= request.flow_control;
    let ports = DpdkPort::open(&config, request.cores)?;
    let name = ports[0].attributes().name.clone();
    let addresses = PortAddressing::Own(Arc::new(ports[0].addresses()));
    Ok(OpenedPorts::new(&name, ports, addresses))
}

impl DpdkPort {
    /// Opens the device and returns one port per core. [`DpdkPort::addresses`] gives their
    /// addresses, for [`Device::with_ports`](crate::device::Device::with_ports).
    ///
    /// # Errors
    /// See [`DpdkError`]: a message names the obstacle, and the remedy where Feroce knows one.
    pub fn open(config: &DpdkConfig, cores: usize) -> Result<Vec<Self>, DpdkError> {
        config.check().map_err(DpdkError::Config)?;
        let device = Arc::new(Ethdev::open(config, cores)?);
        let config = &DpdkConfig { mtu: device.mtu, ..config.clone() };
        let addresses = PortAddresses::new(config, device.name.clone(), device.mac);
        let (link, link_rate) = device.link();
        if link {
            addresses.announce();
        }
        let frame_max = frame_max(config.mtu) as usize;
        let clock = Clock::start();
        let port = |queue: usize| {
            let idle_timer = IdleTimer::new(config.longest_sleep)
                .map_err(|source| DpdkError::Refused { action: "create a timer", source })?;
            Ok(Self {
                attributes: PortAttributes {
                    kind: format!("dpdk ({})", device.driver),
                    name: device.name.clone(),
                    mac: device.mac,
                    mtu: config.mtu,
                    frame_max,
                    link_rate,
                    queues: 1,
                    segments_max: 1,
                    source_ports: Vec::new(),
                },
                queue: u16::try_from(queue).expect("as many as the device has"),
                rx: Frames::with_capacity(RX_BURST),
                shown: 0,
                flow_control: config.flow_control,
                scratch: vec![0; frame_max].into(),
                clock,
                stuck_since: None,
                interface_checked: (clock.now(), false),
                tx: Transmit {
                    free: Frames::with_capacity(2 * BURST),
                    pending: Frames::with_capacity(PENDING),
                    frame_max,
                },
                idle_timer,
                stats: PortStats::default(),
                addresses: addresses.clone(),
                device: Arc::clone(&device),
            })
        };
        (0..cores).map(port).collect()
    }

    /// Local addresses and neighbours, shared by all ports of the device.
    pub fn addresses(&self) -> PortAddresses {
        self.addresses.clone()
    }

    /// Moves the frames for the core to the front of the burst and handles the others.
    fn sort(&mut self) {
        self.shown = 0;
        for index in 0..self.rx.len() {
            let frame = self.rx.bytes(index);
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len() as u64;
            if self.addresses.own().is_roce(frame) || self.is_wanted_control(frame) {
                self.rx.swap(self.shown, index);
                self.shown += 1;
                continue;
            }
            // Without room there is no response, and the peer repeats its request. The frame may
            // still update the neighbour table.
            let slot = self.tx.slot(self.device.pool(self.queue));
            let has_room = slot.is_some();
            let out = slot.unwrap_or(&mut self.scratch[..]);
            let handled = self.addresses.handle(frame, out);
            match handled.map(|handled| handled.response) {
                Some(Some(len)) if has_room => self.commit(len),
                Some(_) => {}
                None => self.stats.rx_foreign += 1,
            }
        }
    }

    /// Returns true if `frame` is a MAC control frame that the core must get.
    fn is_wanted_control(&self, frame: &[u8]) -> bool {
        let ethertype = || feroce_wire::EthernetHeader::parse(frame).map(|header| header.ethertype);
        self.flow_control && ethertype() == Ok(feroce_wire::pause::ETHERTYPE_MAC_CONTROL)
    }

    fn commit(&mut self, len: usize) {
        let len = self.tx.commit(len, self.device.pool(self.queue));
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    /// Commits the queued neighbour requests and announcements.
    fn commit_queued(&mut self) {
        while let Some(slot) = self.tx.slot(self.device.pool(self.queue)) {
            let Some(len) = self.addresses.write_next(slot) else { return };
            self.commit(len);
        }
    }

    /// Returns true if the interface below is down; the device still takes frames until its ring is
    /// full. Queries the kernel at most once per [`STUCK_AFTER`].
    fn is_interface_lost(&mut self) -> bool {
        let now = self.clock.now();
        if now.saturating_since(self.interface_checked.0) >= STUCK_AFTER {
            self.interface_checked = (now, self.device.lost_interface());
        }
        self.interface_checked.1
    }

    /// Hands the committed frames to the device, as far as it takes them.
    fn send(&mut self) -> io::Result<()> {
        if self.device.hides_interface_state() && self.is_interface_lost() {
            return Err(self.give_up());
        }
        let (waiting, mut refused) = (self.tx.pending.len(), 0);
        while !self.tx.pending.is_empty() && refused < OFFERS {
            let taken = self.tx.pending.transmit(self.device.id, self.queue);
            refused = if taken == 0 { refused + 1 } else { 0 };
        }
        if self.tx.pending.len() < waiting {
            self.stuck_since = None;
            return Ok(()); // The other frames wait for the device.
        }
        let now = self.clock.now();
        // The link state is not checked here: the AF_PACKET driver always reports a link.
        let since = *self.stuck_since.get_or_insert(now);
        if now.saturating_since(since) < STUCK_AFTER {
            return Ok(());
        }
        Err(self.give_up())
    }

    /// Drops the waiting frames. Returns the reason.
    fn give_up(&mut self) -> io::Error {
        self.stats.tx_dropped += self.tx.pending.len() as u64;
        self.tx.pending.clear();
        let name = &self.attributes.name;
        let what = match self.interface_checked.1 || !self.device.link().0 {
            true => format!("the link of DPDK device {name} is down"),
            false => {
                format!("DPDK device {name} no longer takes frames; its interface may be down")
            }
        };
        io::Error::new(io::ErrorKind::NotConnected, what)
    }
}

impl Port for DpdkPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    /// The counters of this port. The port of the first core includes the frames that the device
    /// lost.
    fn stats(&self) -> PortStats {
        let (rx_lost, tx_lost) = if self.queue == 0 { self.device.lost() } else { (0, 0) };
        PortStats {
            rx_dropped: self.stats.rx_dropped + rx_lost,
            tx_dropped: self.stats.tx_dropped + tx_lost,
            ..self.stats
        }
    }

    fn rx_burst(&mut self) -> usize {
        self.rx.receive(self.device.id, self.queue, &mut self.stats.rx_dropped);
        if self.rx.is_empty() {
            self.shown = 0;
            return 0;
        }
        self.idle_timer.reset();
        let waiting = self.tx.pending.len();
        self.sort();
        if self.tx.pending.len() > waiting {
            // Responses were committed. If the device does not take them, the next flush reports
            // it.
            let _ = self.send();
        }
        self.shown
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        assert!(index < self.shown, "frame {index} of {}", self.shown);
        RxFrame { first: self.rx.bytes(index), second: &[] }
    }

    fn tx_room(&mut self) -> usize {
        self.tx.room(self.device.pool(self.queue))
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.tx.slot(self.device.pool(self.queue))
    }

    /// Ignores the priority: a core has one transmit queue.
    fn tx_commit(&mut self, len: usize, _priority: Priority) {
        let most = self.attributes.frame_max;
        assert!((1..=most).contains(&len), "a frame of {len} bytes for a slot of {most}");
        self.commit(len);
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.addresses.has_to_send() {
            self.commit_queued();
        }
        if self.tx.pending.is_empty() { Ok(()) } else { self.send() }
    }

    fn is_unfinished(&self) -> bool {
        !self.tx.pending.is_empty() || self.addresses.has_to_send()
    }

    /// Arms a timer: DPDK has no descriptor that becomes readable.
    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        if self.is_unfinished() {
            return false;
        }
        let timer = self.idle_timer.arm();
        fds.extend(timer);
        timer.is_some()
    }

    /// Does nothing: the next sleep sets the timer again.
    fn disarm_wakeup(&mut self) {}
}
