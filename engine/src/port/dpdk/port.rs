//! The port of one core on a DPDK device.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::config::{DpdkConfig, frame_max};
use super::device::Ethdev;
use super::error::DpdkError;
use super::frames::padded;
use super::lan::PortAddresses;
use super::mbuf::{BURST, Frames, Pool};
use super::nap::Nap;
use crate::port::contract::{
    PATIENCE, Port, PortAttributes, PortStats, Priority, RX_BURST, RxFrame,
};
use crate::port::kind::{OpenRequest, OpenedPorts, PortAddressing, PortError};
use crate::time::{Clock, Instant};

/// Frames that wait for the device at most.
const PENDING: usize = 256;
/// How often a device that takes nothing is offered the same frames again: the second time, it may have cleared
/// up behind itself.
const OFFERS: u32 = 2;

/// The DPDK port of one core.
#[derive(Debug)]
pub struct DpdkPort {
    attributes: PortAttributes,
    queue: u16,
    rx: Frames,
    /// Frames at the front of `rx` that are RoCE.
    shown: usize,
    /// Frames of flow control are shown, too.
    flow_control: bool,
    /// Where an answer is written that cannot be sent.
    scratch: Box<[u8]>,
    tx: Transmit,
    clock: Clock,
    /// When the device took nothing for the first time since it last took something.
    stuck_since: Option<Instant>,
    /// When the interface beneath was looked at, and whether it was lost.
    looked_at: (Instant, bool),
    nap: Nap,
    stats: PortStats,
    addresses: PortAddresses,
    // Dropped after the buffers: the last port to go closes the device and frees the pools.
    device: Arc<Ethdev>,
}

/// What one core sends.
#[derive(Debug)]
struct Transmit {
    /// Buffers to be written; the last one is the next slot.
    free: Frames,
    /// Committed, and not taken by the device yet.
    pending: Frames,
    frame_max: usize,
}

impl Transmit {
    /// How many slots there are; gets new ones where few are left.
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

    /// Queues the last slot's first `len` bytes, as a frame of the length that is returned.
    fn commit(&mut self, len: usize, pool: &Pool) -> usize {
        let len = self.free.last_buffer(pool).map_or(len, |buffer| padded(buffer, len));
        self.free.move_last(&mut self.pending, len);
        len
    }
}

/// Opens the ports of a device. The device has no owner in the sense of Feroce: vfio gives a NIC to one
/// process, and names of virtual devices are local to a process.
pub(super) fn open(request: &OpenRequest<'_>) -> Result<OpenedPorts, PortError> {
    let mut config = request.configs.get::<DpdkConfig>().clone();
    request.device.clone_into(&mut config.port);
    config.flow_control |= request.flow_control;
    let ports = DpdkPort::open(&config, request.cores)?;
    Ok(OpenedPorts {
        name: ports[0].attributes().name.clone(),
        addresses: PortAddressing::Own(Arc::new(ports[0].addresses())),
        ports: ports.into_iter().map(|port| Box::new(port) as _).collect(),
    })
}

impl DpdkPort {
    /// Opens the device for `cores` cores and gives each its port. Their addresses are
    /// [`DpdkPort::addresses`], for [`Device::with_ports`](crate::device::Device::with_ports).
    ///
    /// # Errors
    /// See [`DpdkError`]: each says what was refused and what helps.
    pub fn open(config: &DpdkConfig, cores: usize) -> Result<Vec<Self>, DpdkError> {
        config.check()?;
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
            let nap = Nap::new(config.longest_nap)
                .map_err(|source| DpdkError::Refused { action: "make a timer", source })?;
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
                },
                queue: u16::try_from(queue).expect("as many as the device has"),
                rx: Frames::with_capacity(RX_BURST),
                shown: 0,
                flow_control: config.flow_control,
                scratch: vec![0; frame_max].into(),
                clock,
                stuck_since: None,
                looked_at: (clock.now(), false),
                tx: Transmit {
                    free: Frames::with_capacity(2 * BURST),
                    pending: Frames::with_capacity(PENDING),
                    frame_max,
                },
                nap,
                stats: PortStats::default(),
                addresses: addresses.clone(),
                device: Arc::clone(&device),
            })
        };
        (0..cores).map(port).collect()
    }

    /// Own addresses and neighbours; the same for all ports of the device.
    pub fn addresses(&self) -> PortAddresses {
        self.addresses.clone()
    }

    /// Keeps the frames of the burst that are RoCE, at the front, and listens to the others.
    fn sort(&mut self) {
        self.shown = 0;
        for index in 0..self.rx.len() {
            let frame = self.rx.bytes(index);
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += frame.len() as u64;
            if self.addresses.own().is_roce(frame) || self.takes_control(frame) {
                self.rx.swap(self.shown, index);
                self.shown += 1;
                continue;
            }
            // Without room there is no answer: whoever asked asks again. But it is listened to.
            let slot = self.tx.slot(self.device.pool(self.queue));
            let has_room = slot.is_some();
            let heard = self.addresses.hear(frame, slot.unwrap_or(&mut self.scratch[..]));
            match heard.map(|heard| heard.reply) {
                Some(Some(len)) if has_room => self.commit(len),
                Some(_) => {}
                None => self.stats.rx_foreign += 1,
            }
        }
    }

    /// Whether `frame` is MAC control, and wanted.
    fn takes_control(&self, frame: &[u8]) -> bool {
        let ethertype = || feroce_wire::EthernetHeader::parse(frame).map(|header| header.ethertype);
        self.flow_control && ethertype() == Ok(feroce_wire::pause::ETHERTYPE_MAC_CONTROL)
    }

    fn commit(&mut self, len: usize) {
        let len = self.tx.commit(len, self.device.pool(self.queue));
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
    }

    /// Commits the questions that wait.
    fn ask(&mut self) {
        while let Some(slot) = self.tx.slot(self.device.pool(self.queue)) {
            let Some(len) = self.addresses.write_next(slot) else { return };
            self.commit(len);
        }
    }

    /// Whether the interface beneath is down: its device takes frames all the same, until its ring is full. Asked of the kernel now and then.
    fn is_cut_off(&mut self) -> bool {
        let now = self.clock.now();
        if now.saturating_since(self.looked_at.0) >= PATIENCE {
            self.looked_at = (now, self.device.lost_its_interface());
        }
        self.looked_at.1
    }

    /// Gives the device what it takes of what is committed.
    fn send(&mut self) -> io::Result<()> {
        if self.device.hides_its_interface() && self.is_cut_off() {
            return Err(self.give_up());
        }
        let (waiting, mut refused) = (self.tx.pending.len(), 0);
        while !self.tx.pending.is_empty() && refused < OFFERS {
            let taken = self.tx.pending.transmit(self.device.id, self.queue);
            refused = if taken == 0 { refused + 1 } else { 0 };
        }
        if self.tx.pending.len() < waiting {
            self.stuck_since = None;
            return Ok(()); // The rest waits for the device.
        }
        let now = self.clock.now();
        // What the driver says of the link does not count: AF_PACKET's says that it is up, always.
        let since = *self.stuck_since.get_or_insert(now);
        if now.saturating_since(since) < PATIENCE {
            return Ok(());
        }
        Err(self.give_up())
    }

    /// Drops what waits; why.
    fn give_up(&mut self) -> io::Error {
        self.stats.tx_dropped += self.tx.pending.len() as u64;
        self.tx.pending.clear();
        let name = &self.attributes.name;
        let what = match self.looked_at.1 || !self.device.link().0 {
            true => format!("the link of DPDK device {name} is down"),
            false => {
                format!("DPDK device {name} takes no frames any more: its interface may be down")
            }
        };
        io::Error::new(io::ErrorKind::NotConnected, what)
    }
}

impl Port for DpdkPort {
    fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    /// What the device counts as lost is told by the first core's port.
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
        self.nap.reset();
        let waiting = self.tx.pending.len();
        self.sort();
        if self.tx.pending.len() > waiting {
            // Answers. Should the device not take them, the next flush says so.
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

    /// The priority is not used: a core has one transmit queue.
    fn tx_commit(&mut self, len: usize, _priority: Priority) {
        let most = self.attributes.frame_max;
        assert!((1..=most).contains(&len), "a frame of {len} bytes for a slot of {most}");
        self.commit(len);
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.addresses.has_to_send() {
            self.ask();
        }
        if self.tx.pending.is_empty() { Ok(()) } else { self.send() }
    }

    /// Nothing of DPDK becomes readable: a timer does.
    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        if !self.tx.pending.is_empty() || self.addresses.has_to_send() {
            return false;
        }
        let nap = self.nap.begin();
        fds.extend(nap);
        nap.is_some()
    }

    /// Nothing to undo: the next nap sets the timer anew.
    fn disarm_wakeup(&mut self) {}
}
