//! Limits of a user at a daemon.

use serde::{Deserialize, Serialize};

/// The limits of a user; for connections and services, of each program. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Programs attached at the same time.
    pub clients: u32,
    /// QP numbers, in slices of 256.
    pub qps: u32,
    /// Connections of RDMA CM of each program, half-open ones included.
    pub connections: u32,
    /// Ports of RDMA CM that each program has bound at the same time.
    pub services: u32,
    /// Packets per second.
    pub packets: Option<u64>,
    /// Bytes per second, Ethernet headers included.
    pub bytes: Option<u64>,
}

impl Default for Limits {
    /// 64 programs; four times the default number of QPs of a device; no limit of rates.
    fn default() -> Self {
        Self {
            clients: 64,
            qps: 65_536,
            connections: 4096,
            services: 512,
            packets: None,
            bytes: None,
        }
    }
}
