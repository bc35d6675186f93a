//! Writes a capture of frames that Feroce sent - every RC opcode, over IPv4, IPv6 and in a VLAN, at every
//! path MTU, with losses - for other decoders to judge: `scripts/frames.sh`.
//!
//! `frames FILE COUNT`

use std::collections::BTreeSet;
use std::fs::File;
use std::process::ExitCode;

use feroce_engine::device::{Buffer, ConnectOptions, QpInit, QueuePair};
use feroce_engine::memory::Access;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::wire::{Seen, WireFaults};
use feroce_tests::{Rig, drain, manual_config};
use feroce_wire::{Opcode, Packet, PathMtu, PlacementType, Psn, Selectivity, Transport};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

/// Opcodes that an RC endpoint sends: all of RC.
fn opcodes() -> BTreeSet<u8> {
    let rc = Opcode::all().filter(|info| info.transport == Transport::Rc);
    rc.map(|info| info.opcode.0).collect()
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(Ok(count))) = (args.next(), args.next().map(|n| n.parse::<usize>()))
    else {
        eprintln!("usage: frames FILE COUNT");
        return ExitCode::from(2);
    };
    let mut frames = Vec::new();
    let mut seed = 1;
    while frames.len() < count {
        for sgid_index in 0..3 {
            for path_mtu in PathMtu::ALL {
                frames.extend(exchange(sgid_index, path_mtu, seed));
                seed += 1;
            }
        }
    }
    let mut missing = opcodes();
    for frame in &frames {
        let packet = Packet::parse(&frame.bytes, &[]).expect("our own frame");
        missing.remove(&packet.bth.opcode.0);
    }
    if let Err(error) = write(&file, &frames) {
        eprintln!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    println!("{} frames, opcodes missing: {missing:?}", frames.len());
    if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write(file: &str, frames: &[Seen]) -> Result<(), Box<dyn std::error::Error>> {
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(file)?, header)?;
    for frame in frames {
        let at = Duration::from_nanos(frame.at.as_nanos());
        let len = u32::try_from(frame.bytes.len())?;
        writer.write_packet(&PcapPacket::new(at, len, &frame.bytes))?;
    }
    Ok(())
}

/// Every operation in several sizes between two ends, with some frames lost.
fn exchange(sgid_index: u32, path_mtu: PathMtu, seed: u64) -> Vec<Seen> {
    let mut rig = Rig::new(&manual_config(seed), Duration::from_micros(2));
    rig.wire.set_record(true);
    let loss = WireFaults { loss: 20_000, ..WireFaults::default() };
    rig.wire.set_faults(loss, seed);
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(1024).expect("a CQ"));
    let buffers = [0, 1].map(|end| pds[end].alloc_buffer(1 << 16, Access::ALL).expect("a buffer"));
    for buffer in &buffers {
        // Decoders guess at payloads; plain text is mistaken for no other protocol.
        let text: Vec<u8> =
            b"frames that feroce sent ".iter().copied().cycle().take(1 << 16).collect();
        buffer.write(0, &text);
    }
    let inits = [0, 1].map(|end| QpInit::new(&cqs[end]));
    let psns = [Psn::new(0xff_fff8), Psn::new(77)];
    let options = ConnectOptions {
        sgid_index,
        path_mtu: Some(path_mtu),
        service_level: 3,
        timeout: 8,
        access: Access::REMOTE.without(Access::FLUSH_PERSISTENT),
        ..ConnectOptions::default()
    };
    let mut qps = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options);
    let mtu = path_mtu.bytes();
    for length in [0, 1, 3, mtu - 1, mtu, mtu + 1, 3 * mtu + 2] {
        for end in 0..2 {
            post_all(&mut qps, &buffers, &pds, end, length);
            rig.run_for(Duration::from_millis(50));
        }
        for cq in &cqs {
            assert!(drain(cq).iter().all(feroce_engine::verbs::Completion::is_success));
        }
    }
    rig.wire.take_record()
}

/// One request of every kind from end `end`.
fn post_all(
    qps: &mut [QueuePair; 2],
    buffers: &[Buffer; 2],
    pds: &[feroce_engine::device::ProtectionDomain; 2],
    end: usize,
    length: u32,
) {
    let region = buffers[1 - end].region();
    let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    let window = pds[1 - end].alloc_buffer(64, Access::REMOTE_INVALIDATE).expect("a buffer");
    let selectivity = Selectivity::Range;
    let ops = [
        SendOp::Send,
        SendOp::SendImm(0x0102_0304),
        SendOp::SendInvalidate(window.region().rkey()),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 0x0506_0708),
        SendOp::Read(remote),
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::FetchAdd { remote, add: 5 },
        SendOp::AtomicWrite(remote),
        SendOp::Flush { remote, length: 8, placement: PlacementType::GLOBAL, selectivity },
    ];
    for (wr_id, op) in (0..).zip(ops) {
        if op.consumes_receive() {
            let sge = region.sge(0, 1 << 16);
            let receive = RecvRequest { wr_id, sges: std::slice::from_ref(&sge) };
            qps[1 - end].post_recv(&receive).expect("room for a receive");
        }
        let length = match op {
            SendOp::Flush { .. } => 0,
            SendOp::AtomicWrite(_) => 8,
            _ if op.is_atomic() => 8,
            _ => length,
        };
        let sge = buffers[end].region().sge(0, length);
        let data = Data::Sges(std::slice::from_ref(&sge));
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        qps[end].post_send(&SendRequest { wr_id, op, data, flags }).expect("room for a request");
    }
    // The region to be invalidated lives until the test process ends; nothing refers to its bytes.
    std::mem::forget(window);
}
