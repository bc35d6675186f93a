//! The messages of the control connection.

use std::num::NonZeroU64;

use feroce_engine::device::{Endpoint, HostId};
use feroce_engine::net::Gid;
use feroce_wire::{Key, Psn, Qpn};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::results::{Done, Row};

/// A line after the greeting.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// From the client: the plan. Its port carries path MTUs up to `active_mtu`; 0 for TCP.
    Plan { plan: Plan, active_mtu: u32 },
    /// From the server: plan accepted. Its port carries path MTUs up to `active_mtu`; 0 for TCP.
    Agreed { active_mtu: u32 },
    /// QPs and memory of a side.
    Side(Side),
    /// The QPs are connected.
    Connected,
    /// From the client: the next round. The data are generated from `salt`.
    Round { size: u32, salt: u64 },
    /// From the server: the buffers are ready. `tcp_port` listens if TCP is tested.
    Ready { tcp_port: Option<u16> },
    /// This side has sent all messages of the round.
    Done(Done),
    /// The data check passed; `checked` bytes were compared.
    Verdict { checked: u64 },
    /// From the client: the result of the round.
    Row(Row),
    /// From the client: no more rounds.
    Bye,
    /// Sign of life.
    Alive,
    /// This side gives up. `wrong_data`: because the data check failed.
    Error { reason: String, wrong_data: bool },
}

/// QPs and memory of one side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Side {
    pub gid: String,
    /// Identifier of the host within which this side supports super-frames, if it does.
    #[serde(default)]
    pub super_frames: Option<NonZeroU64>,
    /// The QPs offer selective repeat.
    #[serde(default)]
    pub selective_repeat: bool,
    pub qps: Vec<QpLine>,
    /// Source of the data, and target of atomics.
    pub source: RegionLine,
    /// Target of the data.
    pub target: RegionLine,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct QpLine {
    pub qpn: u32,
    pub psn: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RegionLine {
    pub addr: u64,
    pub rkey: u32,
}

impl RegionLine {
    /// The key, in the type of work requests.
    pub fn key(self) -> Key {
        Key(self.rkey)
    }
}

impl Side {
    /// The QPs as endpoints; `None` if the values are invalid.
    pub fn endpoints(&self) -> Option<Vec<Endpoint>> {
        let gid: Gid = self.gid.parse().ok()?;
        let known = |line: &QpLine| line.qpn >> 24 == 0 && line.psn >> 24 == 0;
        self.qps.iter().all(known).then(|| {
            let endpoint = |line: &QpLine| Endpoint {
                qpn: Qpn::masked(line.qpn),
                psn: Psn::new(line.psn),
                gid,
                super_frames: self.super_frames.map(HostId),
                selective_repeat: self.selective_repeat,
            };
            self.qps.iter().map(endpoint).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_24_bits_are_no_endpoints() {
        let region = RegionLine { addr: 0, rkey: 0 };
        let side = |qpn, psn| Side {
            gid: "10.0.0.1".to_owned(),
            super_frames: None,
            selective_repeat: false,
            qps: vec![QpLine { qpn, psn }],
            source: region,
            target: region,
        };
        assert!(side(0x10, 0xff_ffff).endpoints().is_some());
        assert!(side(1 << 24, 0).endpoints().is_none());
        assert!(side(0x10, 1 << 24).endpoints().is_none());
    }
}
