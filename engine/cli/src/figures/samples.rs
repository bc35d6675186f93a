//! Figures for tests.
#![allow(dead_code)] // A build without some subcommands uses a part of this file.

use std::collections::BTreeMap;

use feroce_engine::daemon::{DaemonStat, Limits, ProgramFrames, ProgramStat, UserStat};
use feroce_engine::device::stat::{CoreFigures, Snapshot};

use super::DaemonFigures;

/// A snapshot at `nanos`, with `frames` received frames of 1000 bytes on each of two cores.
pub fn snapshot(nanos: u64, frames: u64, naks: u64) -> Snapshot {
    let core = CoreFigures {
        queues: 1,
        rx_frames: frames,
        rx_bytes: frames * 1000,
        ..CoreFigures::default()
    };
    let counters = [("packet_seq_err", naks), ("tx_acks", 7)];
    Snapshot {
        feroce: "0".into(),
        pid: 1,
        user: 0,
        program: "test".into(),
        interface: "eth0".into(),
        nanos,
        port: "af_xdp".into(),
        mtu: 1500,
        active_mtu: Some(1024),
        link_rate: None,
        cores: vec![core; 2],
        counters: counters.map(|(name, value)| (name.to_owned(), value)).into(),
        qps: 0,
        listeners: 0,
        arena_limit: 1 << 30,
        arena_mapped: 0,
        arena_huge: 0,
        arena_used: 0,
        events_lost: 0,
        congestion: "off".into(),
        congestion_params: BTreeMap::new(),
        queue_pairs: None,
    }
}

/// A daemon on `eth0` with one program of user 1000, and `frames` of 1000 bytes each way.
pub fn daemon(pid: i32, frames: u64) -> DaemonFigures {
    let of_program = ProgramFrames {
        rx_frames: frames,
        rx_bytes: frames * 1000,
        rx_dropped: 0,
        tx_frames: frames,
        tx_bytes: frames * 1000,
        tx_refused: 0,
        tx_throttled: 0,
    };
    let program = ProgramStat {
        program: "ib_write_bw".into(),
        pid,
        user: 1000,
        qp_numbers: 256,
        connections: 3,
        services: 1,
        frames: of_program,
    };
    let stat = DaemonStat {
        port: "udp".into(),
        rx_frames: 2 * frames,
        rx_bytes: 2 * frames * 1000,
        rx_dropped: 0,
        rx_undelivered: 0,
        tx_frames: 2 * frames,
        tx_bytes: 2 * frames * 1000,
        programs: vec![program],
        users: vec![UserStat { user: 1000, programs: 1, qp_numbers: 256 }],
        limits: Some(Limits::default()),
    };
    DaemonFigures { interface: "eth0".into(), pid: 7, stat }
}
