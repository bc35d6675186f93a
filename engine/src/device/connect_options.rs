//! How a QP connects, where the program does not take it through its states itself.

use feroce_wire::PathMtu;

use super::SourcePort;
use crate::memory::Access;
#[cfg(doc)]
use crate::qp::{MAX_RD_ATOMIC, RD_ATOMIC};

/// How to connect; the defaults are those of rdma-core's examples.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Own GID index.
    pub sgid_index: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 takes the route's.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// 802.1Q priority where frames are tagged.
    pub service_level: u8,
    /// Path MTU; `None` takes the largest that the interface and the route carry. Both ends must use the
    /// same, so give it where their MTUs differ.
    pub path_mtu: Option<PathMtu>,
    /// What the peer may do to memory.
    pub access: Access,
    /// Local ACK timeout: 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after time-outs and sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 for ever.
    pub rnr_retry: u8,
    /// Code of the time that RNR NAKs ask to wait.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding, either way. `None` takes [`RD_ATOMIC`], and [`MAX_RD_ATOMIC`] where both ends carry super-frames, long
    /// READs are split and the path MTU is 4096: each part counts. Of READs of more than two packets that are not split, 16 are
    /// outstanding there at most. Where both ends carry super-frames the QP answers [`MAX_RD_ATOMIC`] whatever is said here, as the peer
    /// may split.
    pub max_rd_atomic: Option<u8>,
    /// Use end-to-end credits. Both sides must.
    pub flow_control: bool,
    /// When long WRITEs and READs go as several messages.
    pub split: Split,
}

/// When an RC QP sends a WRITE as a message per packet, and a READ as requests for two packets each: then all packets are of one length,
/// fill super-frames between packet ports of one host, and WRITEs are acknowledged once in 64 packets at the latest. The peer need
/// not know of it, but counts more messages.
///
/// These stay whole:
/// - messages of more than 120 KiB, which fill super-frames anyway;
/// - what the peer may refuse, since a message that leaves its region moves nothing: a WRITE or READ to where it has not accepted one
///   yet. Of a region, what lies between two accepted messages is accepted, too; the last four keys are remembered. If the peer gives a
///   key to less memory afterwards, as it may to a window of type 2, packets of a WRITE ahead of the first that leaves it are written;
/// - WRITEs with an immediate, and everything with `flow_control`;
/// - READs, if `max_rd_atomic` is less than 32, as it is by itself at a path MTU of less than 4096: the requests would be too many. Each
///   part is a READ of its own for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// Where both ends carry super-frames.
    #[default]
    Auto,
    /// To every peer. Only with a `max_rd_atomic` of 32 or more, which both ends must have agreed on, are READs split, too.
    Always,
    /// Never.
    Never,
}

impl Split {
    pub(super) fn applies(self, super_frames: bool) -> bool {
        match self {
            Self::Auto => super_frames,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 0,
            source_port: SourcePort::PerQp,
            service_level: 0,
            path_mtu: None,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: None,
            flow_control: false,
            split: Split::Auto,
        }
    }
}
