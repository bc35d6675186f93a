//! Standalone completion time of a flow: without any other traffic. A flow's slowdown is its
//! completion time divided by this time.

use super::Fabric;
use super::host::Flow;
use super::host::sender::packets_of;
use super::time::Time;

impl Fabric {
    /// Time from the first bit of `messages` to their last acknowledgement, at link rate and with
    /// store-and-forward at each switch of the flow's path.
    pub(super) fn standalone_fct(&self, flow: &Flow, messages: u64) -> Time {
        let (config, sizes) = (&flow.config, &self.packet);
        let packets = packets_of(config.message, sizes.payload);
        let last_payload = config.message - u64::from(packets - 1) * u64::from(sizes.payload);
        let overhead = sizes.headers + sizes.gap;
        let full = sizes.payload + overhead;
        let last = u32::try_from(last_payload).unwrap_or(sizes.payload) + overhead;
        let earlier_packets = messages * u64::from(packets) - 1;
        // Bytes by which the last packets of messages are shorter than full packets.
        let shorter = u64::from(full - last) * (messages - 1);
        let (mut arrives, mut first, mut slowest) = (Time::ZERO, Time::ZERO, Time::ZERO);
        let mut back = self.host.ack_delay;
        for port in self.path_of(flow) {
            let port = &self.ports[port as usize];
            // The second last packet leaves after all packets have passed the slowest link so far.
            // The last packet leaves when it has arrived and the link is free.
            let full_takes = port.rate.time_of(full);
            slowest = slowest.max(full_takes);
            first = first + full_takes;
            let saved = Time(slowest.0 * shorter / u64::from(full));
            let free = match earlier_packets {
                0 => Time::ZERO,
                earlier_packets => {
                    first + Time(slowest.0.saturating_mul(earlier_packets - 1)) - saved
                }
            };
            arrives = arrives.max(free) + port.rate.time_of(last) + port.delay;
            first = first + port.delay;
            back = back + port.rate.time_of(sizes.control + sizes.gap) + port.delay;
        }
        arrives + back
    }
}
