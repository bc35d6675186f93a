//! The receiver of a flow: the order of packets and the responses to them.

use feroce_congestion::{Instant, NotificationPoint};

use crate::fabric::config::{FlowConfig, HostConfig, PacketConfig, Recovery};
use crate::fabric::time::Time;

use super::selective::Arrived;
use super::sender::packets_of;

/// A response of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    Ack(u32),
    Nak { expected: u32, arrived: u32 },
}

/// The receiver of a flow. Fields used for every packet come first.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Receiver {
    expected: u32,
    message_packets: u32,
    /// Number after the last packet of the message being received.
    message_end: u32,
    payload: u32,
    /// Payload of a message's last packet.
    last: u32,
    ack_every: u32,
    unacknowledged: u32,
    nak_sent: bool,
    recovery: Recovery,
    /// Messages that have arrived.
    pub messages: u64,
    /// Payload received in order, in bytes; with go-back-0, of complete messages only.
    pub delivered: u64,
    pub marked: u64,
    /// With selective repeat: what has arrived behind a gap.
    ahead: Arrived,
    /// Time at which the last message arrived.
    pub completed: Option<Time>,
    /// Bytes delivered before the end of the warm-up.
    pub delivered_before: u64,
    pub cnps: u64,
    pub out_of_sequence: u64,
}

/// A notification point: a flow, a pair of hosts or a port that shares one CNP interval.
#[derive(Debug, Clone)]
pub(crate) struct Notifier {
    pub point: NotificationPoint,
    /// The flow whose sender gets the CNP: the last flow with a marked packet.
    pub flow: u32,
    pub wake_at: Instant,
}

impl Receiver {
    pub fn new(flow: &FlowConfig, host: &HostConfig, sizes: &PacketConfig) -> Self {
        let message_packets = packets_of(flow.message, sizes.payload);
        let rest = flow.message - u64::from(message_packets - 1) * u64::from(sizes.payload);
        Self {
            expected: 0,
            message_packets,
            message_end: message_packets,
            payload: sizes.payload,
            last: u32::try_from(rest).unwrap_or(sizes.payload),
            recovery: host.recovery,
            ack_every: host.ack_every.max(1),
            unacknowledged: 0,
            nak_sent: false,
            ahead: Arrived::default(),
            messages: 0,
            completed: None,
            delivered: 0,
            delivered_before: 0,
            marked: 0,
            cnps: 0,
            out_of_sequence: 0,
        }
    }

    pub const fn note_arrival(&mut self, marked: bool) {
        self.marked += marked as u64;
    }

    /// Handles data packet `psn` and returns the response, if any.
    #[inline]
    pub fn on_data(&mut self, psn: u32, ack_requested: bool) -> Option<Response> {
        if psn == self.expected {
            return self.in_order(ack_requested);
        }
        if psn < self.expected {
            return Some(Response::Ack(self.expected));
        }
        self.out_of_sequence += 1;
        if self.recovery == Recovery::SelectiveRepeat {
            self.ahead.insert(psn);
            return Some(Response::Nak { expected: self.expected, arrived: psn });
        }
        if self.nak_sent {
            return None;
        }
        self.nak_sent = true;
        self.unacknowledged = 0;
        if self.recovery == Recovery::GoBack0 {
            self.expected -= self.expected % self.message_packets;
        }
        Some(Response::Nak { expected: self.expected, arrived: psn })
    }

    #[inline]
    fn in_order(&mut self, ack_requested: bool) -> Option<Response> {
        let is_last = self.take_expected();
        let fills_gap = self.recovery == Recovery::SelectiveRepeat && self.take_ahead();
        self.unacknowledged += 1;
        if is_last || fills_gap || ack_requested || self.unacknowledged >= self.ack_every {
            self.unacknowledged = 0;
            return Some(Response::Ack(self.expected));
        }
        None
    }

    /// Takes the packets behind the expected one that have arrived. Returns true if there are any.
    fn take_ahead(&mut self) -> bool {
        let first = self.expected;
        while self.ahead.contains(self.expected) {
            self.take_expected();
        }
        self.ahead.advance(self.expected);
        self.expected != first
    }

    /// Takes the next `count` packets, which an engine host has executed.
    pub fn take(&mut self, count: u64) {
        for _ in 0..count {
            self.take_expected();
        }
    }

    /// Takes the expected packet. Returns true if it is the last of its message.
    fn take_expected(&mut self) -> bool {
        self.expected += 1;
        self.nak_sent = false;
        let is_last = self.expected == self.message_end;
        if is_last {
            self.messages += 1;
            self.message_end = self.message_end.saturating_add(self.message_packets);
        }
        self.delivered += match self.recovery {
            Recovery::GoBackN | Recovery::SelectiveRepeat => {
                u64::from(if is_last { self.last } else { self.payload })
            }
            Recovery::GoBack0 if is_last => {
                u64::from(self.message_packets - 1) * u64::from(self.payload) + u64::from(self.last)
            }
            Recovery::GoBack0 => 0,
        };
        is_last
    }
}
