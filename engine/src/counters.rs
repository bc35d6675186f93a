//! Counters under the names that RNICs use, declared once in the macro `counters!`.
//!
//! Each core has its own set and is its only writer (the core's token ensures this), so counting is
//! a plain load and store. Readers sum the sets of all cores.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// A counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// Every counter.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Converts `value` to the unit of the counter's name: data counters are in units of 4
            /// bytes, as InfiniBand's PortXmitData and PortRcvData are.
            pub const fn shown(self, value: u64) -> u64 {
                match self {
                    Self::PortXmitData | Self::PortRcvData => value / 4,
                    _ => value,
                }
            }

            /// Returns what is counted, in one or more sentences.
            pub fn about(self) -> &'static str {
                match self {
                    // Each line of a comment begins with a space.
                    $(Self::$variant => concat!($($doc),+).trim_start(),)+
                }
            }

            /// Returns the name in `rdma statistic` and
            /// `/sys/class/infiniband/*/ports/*/hw_counters`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

counters! {
    /// Data bytes of RoCE packets sent, from the BTH to the ICRC.
    PortXmitData = "port_xmit_data";
    /// RoCE packets sent.
    PortXmitPackets = "port_xmit_packets";
    /// Data bytes of RoCE packets accepted, from the BTH to the ICRC.
    PortRcvData = "port_rcv_data";
    /// RoCE packets accepted.
    PortRcvPackets = "port_rcv_packets";
    /// Frames that are not well-formed RoCE packets.
    PortRcvErrors = "port_rcv_errors";
    /// RoCE packets whose ICRC is wrong.
    RxIcrcEncapsulated = "rx_icrc_encapsulated";
    /// Packets for no QP, or for a QP whose state, transport, addresses or P_Key do not match.
    RxDiscards = "rx_discards";
    /// Packets to a connected QP with another Ethernet source address or UDP source port than those
    /// that its peer uses: forged, or the first ones after the peer has changed its own.
    RxUnusualOrigin = "rx_unusual_origin";
    /// Acknowledgements whose message number (MSN) does not fit the outstanding requests, although
    /// the peer counts messages: forged.
    RxImplausibleMsn = "rx_implausible_msn";
    /// Responses to no outstanding packet: late duplicates, or forged.
    RxUnaskedResponses = "rx_unasked_responses";
    /// Datagrams whose Q_Key does not match their QP's.
    QkeyViolations = "qkey_violations";
    /// Loopback frames: sent by this device to itself, not over the link.
    TxLoopback = "looped_back";
    /// Frames passed to the core of their QP.
    RxHandedOver = "rx_handed_over";
    /// Frames dropped because the ring to the core of their QP was full.
    RxHandoverDropped = "rx_handover_dropped";
    /// Requests received ahead of the expected PSN.
    OutOfSequence = "out_of_sequence";
    /// Request packets behind a missing one that were held until it arrived (selective repeat).
    HeldPackets = "held_packets";
    /// NAKs (PSN sequence error) received.
    PacketSeqErr = "packet_seq_err";
    /// Expirations of the local ACK timeout.
    LocalAckTimeoutErr = "local_ack_timeout_err";
    /// RNR NAKs received.
    RnrNakRetryErr = "rnr_nak_retry_err";
    /// Duplicate requests received.
    DuplicateRequest = "duplicate_request";
    /// Acknowledgements that imply the loss of a READ or atomic response.
    ImpliedNakSeqErr = "implied_nak_seq_err";
    /// SENDs and WRITEs WITH IMMEDIATE without a posted receive: RNR NAKs sent, UC and UD messages
    /// dropped.
    OutOfBuffer = "out_of_buffer";
    /// WRITE request packets executed.
    RxWriteRequests = "rx_write_requests";
    /// READ requests executed.
    RxReadRequests = "rx_read_requests";
    /// Atomics executed.
    RxAtomicRequests = "rx_atomic_requests";
    /// NAKs (invalid request) received.
    ReqRemoteInvalidRequest = "req_remote_invalid_request";
    /// NAKs (remote access error) received.
    ReqRemoteAccessErrors = "req_remote_access_errors";
    /// NAKs (remote operational error) received.
    ReqRemoteOperationalErrors = "req_remote_operational_errors";
    /// Malformed responses: opcode, length or PSN.
    ReqBadResponse = "req_bad_response";
    /// Requests rejected with a NAK (remote access error); UC requests are dropped without a NAK.
    RespRemoteAccessErrors = "resp_remote_access_errors";
    /// Requests rejected with a NAK (invalid request); UC requests are dropped without a NAK.
    RespRemoteInvalidRequest = "resp_remote_invalid_request";
    /// Requests rejected with a NAK (remote operational error).
    RespRemoteOperationalErrors = "resp_remote_operational_errors";
    /// Messages longer than their receive.
    RespLocalLengthError = "resp_local_length_error";
    /// Requester completions with an error.
    ReqCqeError = "req_cqe_error";
    /// Requester completions flushed.
    ReqCqeFlushError = "req_cqe_flush_error";
    /// Responder completions with an error.
    RespCqeError = "resp_cqe_error";
    /// Responder completions flushed.
    RespCqeFlushError = "resp_cqe_flush_error";
    /// Packets retransmitted.
    RetransmittedPackets = "retransmitted_packets";
    /// ACKs sent.
    AcksSent = "tx_acks";
    /// Packets received with a congestion mark (CE), if congestion control is on.
    NpEcnMarkedRocePackets = "np_ecn_marked_roce_packets";
    /// Congestion notification packets (CNPs) sent.
    NpCnpSent = "np_cnp_sent";
    /// CNPs received that reduced a QP's rate.
    RpCnpHandled = "rp_cnp_handled";
    /// CNPs received without effect: malformed, not from the peer, for a QP that sent no data in
    /// the last 100 ms, or congestion control does not use them.
    RpCnpIgnored = "rp_cnp_ignored";
    /// PFC and PAUSE frames received and obeyed, if flow control is on.
    RxPause = "rx_pause_ctrl_phy";
    /// PFC and PAUSE frames sent.
    TxPause = "tx_pause_ctrl_phy";
    /// Time that sending of priority 0 was paused, in microseconds.
    RxPaused0 = "rx_prio0_pause_duration";
    /// Time that sending of priority 1 was paused, in microseconds.
    RxPaused1 = "rx_prio1_pause_duration";
    /// Time that sending of priority 2 was paused, in microseconds.
    RxPaused2 = "rx_prio2_pause_duration";
    /// Time that sending of priority 3 was paused, in microseconds.
    RxPaused3 = "rx_prio3_pause_duration";
    /// Time that sending of priority 4 was paused, in microseconds.
    RxPaused4 = "rx_prio4_pause_duration";
    /// Time that sending of priority 5 was paused, in microseconds.
    RxPaused5 = "rx_prio5_pause_duration";
    /// Time that sending of priority 6 was paused, in microseconds.
    RxPaused6 = "rx_prio6_pause_duration";
    /// Time that sending of priority 7 was paused, in microseconds.
    RxPaused7 = "rx_prio7_pause_duration";
    /// Number of times a completion queue was full.
    CqOverflow = "cq_overflow";
    /// Number of bursts that the port refused.
    PortErrors = "port_errors";
}

/// One core's counters.
#[derive(Debug)]
pub struct Counters {
    values: [AtomicU64; Counter::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self { values: [const { AtomicU64::new(0) }; Counter::ALL.len()] }
    }
}

impl Counters {
    /// Counts one. Called by the core that owns the set.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `amount`. Called by the core that owns the set.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        let value = &self.values[counter as usize];
        value.store(value.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_counting_counts() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
        let about = Counter::OutOfBuffer.about();
        assert!(
            about.starts_with("SENDs and") && about.ends_with("sent, UC and UD messages dropped.")
        );
        let counters = Counters::default();
        counters.count(Counter::OutOfSequence);
        counters.add(Counter::OutOfSequence, 2);
        assert_eq!(counters.get(Counter::OutOfSequence), 3);
        assert_eq!(counters.get(Counter::DuplicateRequest), 0);
    }
}
