//! In-band telemetry (INT): what the switches on its path recorded for each packet, in a table
//! beside the packets. Telemetry takes no bytes of a packet.

use feroce_congestion::Hop;

use super::packet::PacketId;

/// The telemetry of packets in flight, by the number of the packet. Empty unless a controller of
/// the run needs it.
#[derive(Debug, Default)]
pub(super) struct Telemetry(Vec<Vec<Hop>>);

impl Telemetry {
    /// A data packet with telemetry starts: it has passed no switch.
    pub fn start(&mut self, id: PacketId) {
        self.slot(id).clear();
    }

    /// A switch sends a packet.
    pub fn record(&mut self, id: PacketId, hop: Hop) {
        self.slot(id).push(hop);
    }

    /// Gives the response `to` the telemetry of the packet `from`, which has arrived.
    pub fn answer(&mut self, from: PacketId, to: PacketId) {
        if from != to {
            let hops = std::mem::take(self.slot(from));
            let old = std::mem::replace(self.slot(to), hops);
            *self.slot(from) = old; // Keeps its memory.
        }
    }

    /// The telemetry of a packet, in the order of the switches.
    pub fn of(&self, id: PacketId) -> &[Hop] {
        self.0.get(id.index()).map_or(&[], Vec::as_slice)
    }

    fn slot(&mut self, id: PacketId) -> &mut Vec<Hop> {
        if self.0.len() <= id.index() {
            self.0.resize_with(id.index() + 1, Vec::new);
        }
        &mut self.0[id.index()]
    }
}
