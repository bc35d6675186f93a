//! The messages of communication management, each as the table of its fields.
//!
//! Times are codes of 5 bits: 4.096 microseconds times two to the code. GIDs of IPv4 endpoints are
//! IPv4-mapped. The private data of a message always has its full length; its users know how much
//! of it is meaningful.

use super::{RejectReason, ServiceId, SidrStatus};
use crate::{Pkey, Psn, Qkey, Qpn};

message! {
    /// REQ: the active side requests a connection.
    Req = 0x10 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Enhanced connection establishment: vendor that defines the options (IEEE OUI); 0: none.
        vendor_id: u32 = bits(40, 24),
        /// The requested service.
        service_id: ServiceId = bits(64, 64),
        /// The sender's node GUID.
        local_ca_guid: u64 = bits(128, 64),
        /// Datagrams only.
        local_qkey: Qkey = bits(224, 32),
        /// The sender's QP.
        local_qpn: Qpn = bits(256, 24),
        /// Responder resources: outstanding READs and atomics that the sender accepts.
        responder_resources: u8 = bits(280, 8),
        /// Reliable datagrams only.
        local_eecn: u32 = bits(288, 24),
        /// Initiator depth: outstanding READs and atomics that the sender requests.
        initiator_depth: u8 = bits(312, 8),
        /// Reliable datagrams only.
        remote_eecn: u32 = bits(320, 24),
        /// Time in which the receiver must respond.
        remote_response_timeout: u8 = bits(344, 5),
        /// 0 RC, 1 UC, 2 RD, 3 see [`extended_transport`](Self::extended_transport):
        /// [`connection`](Self::connection).
        transport: u8 = bits(349, 2),
        /// The sender uses end-to-end credits.
        flow_control: bool = bits(351, 1),
        /// Starting PSN of the receiver's QP.
        starting_psn: Psn = bits(352, 24),
        /// Time in which the sender responds.
        local_response_timeout: u8 = bits(376, 5),
        /// Retries of the receiver's QP, 3 bits.
        retry_count: u8 = bits(381, 3),
        /// Partition of both QPs.
        pkey: Pkey = bits(384, 16),
        /// Path MTU by its code.
        path_mtu: u8 = bits(400, 4),
        /// Reliable datagrams only.
        rdc_exists: bool = bits(404, 1),
        /// RNR retries of the receiver's QP, 3 bits.
        rnr_retry_count: u8 = bits(405, 3),
        /// Retries of a message without a response, 4 bits.
        max_cm_retries: u8 = bits(408, 4),
        /// The sender's QP has a shared receive queue.
        srq: bool = bits(412, 1),
        /// With transport 3: 1 is XRC.
        extended_transport: u8 = bits(413, 3),
        /// All ones with RoCE.
        primary_local_lid: u16 = bits(416, 16),
        /// All ones with RoCE.
        primary_remote_lid: u16 = bits(432, 16),
        /// The sender's GID.
        primary_local_gid: [u8; 16] = bytes(56),
        /// The receiver's GID.
        primary_remote_gid: [u8; 16] = bytes(72),
        /// 20 bits.
        primary_flow_label: u32 = bits(704, 20),
        /// 6 bits.
        primary_packet_rate: u8 = bits(730, 6),
        /// DSCP and ECN of the path.
        primary_traffic_class: u8 = bits(736, 8),
        /// Hop limit of the path.
        primary_hop_limit: u8 = bits(744, 8),
        /// Service level, 4 bits.
        primary_sl: u8 = bits(752, 4),
        /// Both ends are in one subnet: no router between them.
        primary_subnet_local: bool = bits(756, 1),
        /// The sender's acknowledgement timeout, 5 bits.
        primary_ack_timeout: u8 = bits(760, 5),
        /// Not 0 if there is an alternate path, which RoCE does not have.
        alternate_local_lid: u16 = bits(768, 16),
        /// Same field of the alternate path.
        alternate_remote_lid: u16 = bits(784, 16),
        /// Same field of the alternate path.
        alternate_local_gid: [u8; 16] = bytes(100),
        /// Same field of the alternate path.
        alternate_remote_gid: [u8; 16] = bytes(116),
        /// Flow label, rate, traffic class, hop limit, SL, timeout of the alternate path.
        alternate_rest: u64 = bits(1056, 64),
        /// Private data of the program, after the [`IpCmHeader`](super::IpCmHeader).
        private_data: [u8; 92] = bytes(140),
    }
}

message! {
    /// MRA: the message has arrived; the response takes longer.
    Mra = 0x11 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// The message that has arrived: 0 REQ, 1 REP, 2 LAP.
        message: u8 = bits(64, 2),
        /// Additional time, 5 bits.
        service_timeout: u8 = bits(72, 5),
        /// Private data of the program.
        private_data: [u8; 222] = bytes(10),
    }
}

message! {
    /// REJ: the connection is rejected.
    Rej = 0x12 {
        /// Communication ID of the sender, 0 if it has none.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// The message that is rejected: 0 REQ, 1 REP, 2 none in particular.
        message: u8 = bits(64, 2),
        /// Meaningful bytes of the additional information, 7 bits.
        info_length: u8 = bits(72, 7),
        /// Reason.
        reason: RejectReason = bits(80, 16),
        /// Additional information; with a timeout, the sender's node GUID.
        info: [u8; 72] = bytes(12),
        /// Private data of the program.
        private_data: [u8; 148] = bytes(84),
    }
}

message! {
    /// REP: the passive side accepts.
    Rep = 0x13 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// Datagrams only.
        local_qkey: Qkey = bits(64, 32),
        /// The sender's QP.
        local_qpn: Qpn = bits(96, 24),
        /// Upper byte of the vendor id.
        vendor_id_high: u8 = bits(120, 8),
        /// Reliable datagrams only; the QP of XRC targets.
        local_eecn: Qpn = bits(128, 24),
        /// Middle byte of the vendor id.
        vendor_id_middle: u8 = bits(152, 8),
        /// Starting PSN of the receiver's QP.
        starting_psn: Psn = bits(160, 24),
        /// Lower byte of the vendor id.
        vendor_id_low: u8 = bits(184, 8),
        /// Responder resources: outstanding READs and atomics that the sender accepts.
        responder_resources: u8 = bits(192, 8),
        /// Initiator depth: outstanding READs and atomics that the sender will use.
        initiator_depth: u8 = bits(200, 8),
        /// Target ACK delay: time the sender may take to acknowledge, 5 bits.
        target_ack_delay: u8 = bits(208, 5),
        /// Failover status of the alternate path.
        failover: u8 = bits(213, 2),
        /// The sender uses end-to-end credits.
        flow_control: bool = bits(215, 1),
        /// RNR retries of the receiver's QP, 3 bits.
        rnr_retry_count: u8 = bits(216, 3),
        /// The sender's QP has a shared receive queue.
        srq: bool = bits(219, 1),
        /// The sender's node GUID.
        local_ca_guid: u64 = bits(224, 64),
        /// Private data of the program.
        private_data: [u8; 196] = bytes(36),
    }
}

message! {
    /// RTU: the active side is ready to use the connection.
    Rtu = 0x14 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// Private data of the program.
        private_data: [u8; 224] = bytes(8),
    }
}

message! {
    /// DREQ: one side ends the connection.
    Dreq = 0x15 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// The receiver's QP.
        remote_qpn: Qpn = bits(64, 24),
        /// Private data of the program.
        private_data: [u8; 220] = bytes(12),
    }
}

message! {
    /// DREP: the other side confirms the end.
    Drep = 0x16 {
        /// Communication ID of the sender.
        local_comm_id: u32 = bits(0, 32),
        /// Communication ID of the receiver.
        remote_comm_id: u32 = bits(32, 32),
        /// Private data of the program.
        private_data: [u8; 224] = bytes(8),
    }
}

message! {
    /// SIDR REQ: requests the QP that receives datagrams for a service.
    SidrReq = 0x17 {
        /// Request ID, chosen by the requester.
        request_id: u32 = bits(0, 32),
        /// Partition of both QPs.
        pkey: Pkey = bits(32, 16),
        /// The requested service.
        service_id: ServiceId = bits(64, 64),
        /// Private data of the program, after the [`IpCmHeader`](super::IpCmHeader).
        private_data: [u8; 216] = bytes(16),
    }
}

message! {
    /// SIDR REP: the QP and Q_Key for the service.
    SidrRep = 0x18 {
        /// Request ID of the SIDR REQ.
        request_id: u32 = bits(0, 32),
        /// Status; the other fields are meaningful only on success.
        status: SidrStatus = bits(32, 8),
        /// Meaningful bytes of the additional information.
        info_length: u8 = bits(40, 8),
        /// Upper two bytes of the vendor id.
        vendor_id_high: u16 = bits(48, 16),
        /// The QP.
        qpn: Qpn = bits(64, 24),
        /// Lower byte of the vendor id.
        vendor_id_low: u8 = bits(88, 8),
        /// The requested service.
        service_id: ServiceId = bits(96, 64),
        /// Q_Key of the QP.
        qkey: Qkey = bits(160, 32),
        /// Additional information, for example for a redirection.
        info: [u8; 72] = bytes(24),
        /// Private data of the program.
        private_data: [u8; 136] = bytes(96),
    }
}
