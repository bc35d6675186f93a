//! Options for connecting a QP in one call, and their conversion into QP attributes.
//!
//! # Connection parameters
//!
//! Only [`QpAttributes`] configures a QP; its fields have the meaning of the fields of
//! `ibv_qp_attr`. The other forms are converted into it:
//!
//! * [`ConnectOptions`]: what a program without communication management chooses. `attributes`
//!   converts the options into the three [`QpAttributes`] of INIT, RTR and RTS. The settings file
//!   and `feroce perf` fill in a `ConnectOptions`.
//! * [`cm::Parameters`](crate::cm::Parameters): what the two ends exchange in REQ and REP.
//! * [`cm::QpParameters`](crate::cm::QpParameters): the agreed
//!   [`cm::Parameters`](crate::cm::Parameters) with the path, the PSNs and the ACK timeout. A
//!   program sets the QP's attributes from it, as `librdmacm` does.

use feroce_wire::{FlowHeader, PathMtu, Pkey, Psn, RnrTimer};

use super::{Endpoint, SourcePort};
use crate::memory::Access;
use crate::qp::attributes::QpAttributes;
use crate::qp::{MAX_RD_ATOMIC, QpState, RD_ATOMIC, Service};

/// Options for connecting a QP. The defaults are those of rdma-core's examples: timeout code 14 (67
/// ms), 7 retries, unlimited RNR retries, RNR timer code 12 (0.64 ms), 16 READs and atomics; the
/// peer may write, read and use atomics as the regions allow.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Local GID index.
    pub sgid_index: u32,
    /// IP traffic class: DSCP and ECN bits.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 takes the route's.
    pub hop_limit: u8,
    /// UDP source port.
    pub source_port: SourcePort,
    /// 802.1Q priority of tagged frames.
    pub service_level: u8,
    /// Path MTU; `None` takes the largest that the interface and the route carry. Both ends must
    /// use the same path MTU, so set it if their MTUs differ.
    pub path_mtu: Option<PathMtu>,
    /// Operations that the peer may perform on memory.
    pub access: Access,
    /// Local ACK timeout: 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after timeouts and PSN sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the delay that RNR NAKs request.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding in each direction.
    ///
    /// `None` takes [`RD_ATOMIC`]. It takes [`MAX_RD_ATOMIC`] if both ends carry super-frames, long
    /// READs are split, and the path MTU is 4096, because each part of a split READ counts. In that
    /// case at most 16 unsplit READs of more than two packets are outstanding. If both ends carry
    /// super-frames, the QP has responder resources for [`MAX_RD_ATOMIC`] whatever this option
    /// says, because the peer may split.
    pub max_rd_atomic: Option<u8>,
    /// Use end-to-end credits. Both ends must use them.
    pub flow_control: bool,
    /// When long WRITEs and READs are split into several messages.
    pub split: Split,
}

/// When an RC QP sends a WRITE as one message per packet, and a READ as requests for two packets
/// each.
///
/// Then all packets have the same length and fill super-frames between packet ports of one host,
/// and WRITEs are acknowledged at least once per 64 packets. The peer needs no knowledge of this,
/// but it counts more messages.
///
/// These requests are not split:
/// - messages of more than 120 KiB, which fill super-frames anyway;
/// - requests that the peer may reject, because a rejected message must not write or read anything:
///   a WRITE or READ outside the ranges that the peer has accepted so far. The range between two
///   accepted messages of a region counts as accepted; the last four keys are remembered. If the
///   peer later reduces the memory of a key, as it may with a type 2 window, the packets of a
///   WRITE before the first rejected one are written;
/// - WRITEs with immediate data, and all requests with `flow_control`;
/// - READs, if `max_rd_atomic` is less than 32, as it is by default with a path MTU below 4096: the
///   requests would be too many. Each part is a separate READ for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// If both ends announced super-frames, by their [`Endpoint`]s.
    #[default]
    Auto,
    /// To every peer. READs are split only with a `max_rd_atomic` of 32 or more, which both ends
    /// must have agreed on.
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

/// The results of resolving the path to the peer, which complete the options.
pub(super) struct ResolvedPath {
    /// Headers of packets to the peer.
    pub(super) flow: FlowHeader,
    pub(super) path_mtu: Option<PathMtu>,
    /// Both ends announced super-frames. Not so if only
    /// [`DeviceConfig::super_frames_to_all`](super::DeviceConfig) makes the flow use them: the peer
    /// may hold fewer READs, and counts messages.
    pub(super) agreed_super_frames: bool,
}

impl ConnectOptions {
    /// Returns the attributes for the transitions to INIT, RTR and RTS of a QP that starts at
    /// `psn`. Attributes that `service` does not have are left out.
    pub(super) fn attributes(
        &self,
        service: Service,
        psn: Psn,
        peer: &Endpoint,
        path: &ResolvedPath,
    ) -> [QpAttributes; 3] {
        let super_frames = path.agreed_super_frames;
        let split = self.split.applies(super_frames);
        let splits_reads = split && super_frames && path.path_mtu == Some(PathMtu::Mtu4096);
        let default_depth = if splits_reads { MAX_RD_ATOMIC } else { RD_ATOMIC };
        let depth = self.max_rd_atomic.unwrap_or(default_depth);
        // A peer that agreed may split its READs; other peers get the number in the options.
        let responder_depth = if super_frames { MAX_RD_ATOMIC } else { depth };
        let is_reliable = service.is_reliable();
        let responds = is_reliable && service.has_responder();
        let requests = is_reliable && service.has_requester();
        let init = QpAttributes {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            port: Some(1),
            access: Some(self.access),
            ..QpAttributes::default()
        };
        let rtr = QpAttributes {
            state: Some(QpState::Rtr),
            flow: Some(path.flow),
            path_mtu: path.path_mtu,
            dest_qp: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: responds.then_some(responder_depth),
            min_rnr_timer: RnrTimer::new(self.min_rnr_timer).filter(|_| responds),
            flow_control: is_reliable.then_some(self.flow_control),
            split: Some(split),
            ..QpAttributes::default()
        };
        let rts = QpAttributes {
            state: Some(QpState::Rts),
            timeout: is_reliable.then_some(self.timeout),
            retry_cnt: requests.then_some(self.retry_cnt),
            rnr_retry: requests.then_some(self.rnr_retry),
            sq_psn: Some(psn),
            max_rd_atomic: requests.then_some(depth),
            ..QpAttributes::default()
        };
        [init, rtr, rts]
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
