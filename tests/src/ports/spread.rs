//! The cable of a device with several ports, one per core. Frames to the device go to the port that
//! their flow selects, as by the receive-side scaling of a NIC: often not that of the core with the
//! QP.

use std::io;
use std::os::fd::RawFd;

use feroce_engine::port::{Port, PortAttributes, PortStats, Priority, RxFrame};
use feroce_wire::Packet;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Spread {
    /// Connected to those of the device.
    ports: Vec<Box<dyn Port>>,
    /// The port that gave the last burst.
    current: usize,
    /// The frame that is written: its bytes determine the port.
    slot: Vec<u8>,
}

impl Spread {
    /// One port needs no spreading.
    ///
    /// # Panics
    /// If there is no port.
    pub fn over(mut ports: Vec<Box<dyn Port>>) -> Box<dyn Port> {
        if ports.len() == 1 {
            return ports.remove(0);
        }
        let slot = vec![0; ports[0].attributes().frame_max];
        Box::new(Self { ports, current: 0, slot })
    }

    /// A NIC looks at addresses and ports, too. A damaged frame may go anywhere.
    fn port_of(&self, frame: &[u8]) -> usize {
        let source = Packet::parse(frame, &[]).map_or(0, |packet| packet.udp.src_port);
        usize::from(source) % self.ports.len()
    }
}

impl Port for Spread {
    fn attributes(&self) -> &PortAttributes {
        self.ports[0].attributes()
    }

    fn stats(&self) -> PortStats {
        let mut all = PortStats::default();
        for port in &self.ports {
            let stats = port.stats();
            all.rx_frames += stats.rx_frames;
            all.tx_frames += stats.tx_frames;
            all.rx_dropped += stats.rx_dropped;
        }
        all
    }

    fn rx_burst(&mut self) -> usize {
        for (index, port) in self.ports.iter_mut().enumerate() {
            let count = port.rx_burst();
            if count > 0 {
                self.current = index;
                return count;
            }
        }
        0
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        self.ports[self.current].rx_frame(index)
    }

    fn tx_room(&mut self) -> usize {
        self.ports.iter_mut().map(|port| port.tx_room()).min().unwrap_or(0)
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        (self.tx_room() > 0).then_some(self.slot.as_mut_slice())
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        let index = self.port_of(&self.slot[..len]);
        let port = &mut self.ports[index];
        let slot = port.tx_slot().expect("every port had room");
        slot[..len].copy_from_slice(&self.slot[..len]);
        port.tx_commit(len, priority);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ports.iter_mut().try_for_each(|port| port.flush())
    }

    fn is_unfinished(&self) -> bool {
        unreachable!("a wire does not sleep")
    }

    fn arm_wakeup(&mut self, _: &mut Vec<RawFd>) -> bool {
        unreachable!("a wire does not sleep")
    }

    fn disarm_wakeup(&mut self) {
        unreachable!("a wire does not sleep")
    }
}
