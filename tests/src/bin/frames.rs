//! Writes a capture of frames that Feroce sent, for other decoders: every opcode of RC, UC, UD and
//! XRC, over IPv4, IPv6 and in a VLAN, at every path MTU, with losses. `cargo xtask frames` runs
//! this program and the decoders.
//!
//! `frames FILE COUNT`

use std::collections::BTreeSet;
use std::fs::File;
use std::process::ExitCode;

use feroce_engine::device::{
    Buffer, ConnectOptions, MemoryRegion, ProtectionDomain, QpInit, QueuePair, SrqInit,
};
use feroce_engine::memory::Access;
use feroce_engine::qp::Service;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_tests::datagram::Datagrams;
use feroce_tests::wire::{Seen, WireFaults};
use feroce_tests::{Rig, drain, gid, gid_v6, gid_vlan, manual_config, new_rig};
use feroce_wire::{Opcode, Packet, PathMtu, PlacementType, Psn, Qpn, Selectivity, Transport};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

/// Returns the opcodes that an endpoint sends: all of RC, UC, UD and XRC.
fn opcodes() -> BTreeSet<u8> {
    let services = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc];
    let ours = Opcode::all().filter(|info| services.contains(&info.transport));
    ours.map(|info| info.opcode.0).collect()
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
                for service in [Service::Rc, Service::Uc] {
                    frames.extend(exchange(service, sgid_index, path_mtu, seed));
                    seed += 1;
                }
                frames.extend(xrc(sgid_index, path_mtu, seed));
                seed += 1;
            }
            frames.extend(datagrams(sgid_index));
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

/// Sends every operation in several sizes between two ends, with some frames lost.
fn exchange(service: Service, sgid_index: u32, path_mtu: PathMtu, seed: u64) -> Vec<Seen> {
    let mut rig = recorded(seed);
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(1024).expect("a CQ"));
    let buffers = [0, 1].map(|end| text_buffer(&pds[end]));
    let inits = [0, 1].map(|end| QpInit { service, ..QpInit::new(&cqs[end]) });
    let psns = [Psn::new(0xff_fff8), Psn::new(77)];
    let options = options(sgid_index, path_mtu);
    let mut qps = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options);
    for length in lengths(path_mtu) {
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

/// Sends every operation of XRC in several sizes to one shared receive queue, with some frames
/// lost.
fn xrc(sgid_index: u32, path_mtu: PathMtu, seed: u64) -> Vec<Seen> {
    let mut rig = recorded(seed);
    let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
    let cqs = [0, 1].map(|end| rig.devices[end].create_cq(1024).expect("a CQ"));
    let buffers = [0, 1].map(|end| text_buffer(&pds[end]));
    let domain = rig.devices[1].open_xrcd();
    let srq = pds[1].create_xrc_srq(&SrqInit::default(), &domain, &cqs[1]).expect("an SRQ");
    let inits = [
        QpInit { service: Service::XrcIni, ..QpInit::new(&cqs[0]) },
        QpInit { service: Service::XrcTgt, xrc_domain: Some(&domain), ..QpInit::new(&cqs[1]) },
    ];
    let psns = [Psn::new(0xff_fff8), Psn::new(77)];
    let options = options(sgid_index, path_mtu);
    let [mut ini, _tgt] = rig.connect([&pds[0], &pds[1]], [&inits[0], &inits[1]], psns, &options);
    let region = buffers[1].region();
    for length in lengths(path_mtu) {
        for (wr_id, op) in (0..).zip(operations(region, &pds[1])) {
            if !Service::XrcIni.supports(&op) {
                continue;
            }
            if op.consumes_receive() {
                let sge = region.sge(0, 1 << 16);
                let receive = RecvRequest { wr_id, sges: std::slice::from_ref(&sge) };
                srq.post_recv(&receive).expect("room for a receive");
            }
            let sge = buffers[0].region().sge(0, bytes_of(&op, length));
            let data = Data::Sges(std::slice::from_ref(&sge));
            let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
            let request = SendRequest { wr_id, op, data, flags };
            ini.post_send_xrc(&request, srq.id().0).expect("room for a request");
        }
        rig.run_for(Duration::from_millis(50));
        for cq in &cqs {
            assert!(drain(cq).iter().all(feroce_engine::verbs::Completion::is_success));
        }
    }
    rig.wire.take_record()
}

/// Creates two ends. Their frames are recorded, and 2 % of the frames are lost.
fn recorded(seed: u64) -> Rig {
    let mut rig = new_rig(&manual_config(seed), Duration::from_micros(2));
    rig.wire.set_record(true);
    let loss = WireFaults { loss: 20_000, ..WireFaults::default() };
    rig.wire.set_faults(loss, seed);
    rig
}

/// Creates a buffer with plain text. Decoders guess the protocol of payloads; they take plain text
/// for no other protocol.
fn text_buffer(pd: &ProtectionDomain) -> Buffer {
    let buffer = pd.alloc_buffer(1 << 16, Access::ALL).expect("a buffer");
    let text: Vec<u8> = b"frames that feroce sent ".iter().copied().cycle().take(1 << 16).collect();
    buffer.write(0, &text);
    buffer
}

fn options(sgid_index: u32, path_mtu: PathMtu) -> ConnectOptions {
    ConnectOptions {
        sgid_index,
        path_mtu: Some(path_mtu),
        service_level: 3,
        timeout: 8,
        access: Access::REMOTE.without(Access::FLUSH_PERSISTENT),
        ..ConnectOptions::default()
    }
}

fn lengths(path_mtu: PathMtu) -> [u32; 7] {
    let mtu = path_mtu.bytes();
    [0, 1, 3, mtu - 1, mtu, mtu + 1, 3 * mtu + 2]
}

/// Datagrams of several sizes to the other end and to a group.
fn datagrams(sgid_index: u32) -> Vec<Seen> {
    let mut net = Datagrams::default();
    let (mut from, to) = (net.qp(0), net.qp(1));
    let peer = [gid(1), gid_v6(1), gid_vlan(1)][sgid_index as usize];
    let group = ["239.77.0.1", "ff0e::77:1", "239.77.0.1"][sgid_index as usize];
    let destinations = [(peer, to.qp.qpn()), (group.parse().expect("a group"), Qpn::MULTICAST)];
    let text: Vec<u8> = b"datagrams of feroce ".iter().copied().cycle().take(4096).collect();
    for (gid, qpn) in destinations {
        let ah = net.ah(0, gid, sgid_index);
        for length in [0, 1, 3, 256, 1023, 4096] {
            for op in [SendOp::Send, SendOp::SendImm(0x0102_0304)] {
                from.send(op, &text[..length], &ah, qpn).expect("room for a request");
                net.run();
                from.done();
            }
        }
    }
    net.frames()
}

/// Posts one request of each operation that the service supports, at `end`.
fn post_all(
    qps: &mut [QueuePair; 2],
    buffers: &[Buffer; 2],
    pds: &[ProtectionDomain; 2],
    end: usize,
    length: u32,
) {
    let region = buffers[1 - end].region();
    let ops = operations(region, &pds[1 - end]);
    let service = qps[end].service();
    for (wr_id, op) in (0..).zip(ops).filter(|(_, op)| service.supports(op)) {
        if op.consumes_receive() {
            let sge = region.sge(0, 1 << 16);
            let receive = RecvRequest { wr_id, sges: std::slice::from_ref(&sge) };
            qps[1 - end].post_recv(&receive).expect("room for a receive");
        }
        let length = bytes_of(&op, length);
        let sge = buffers[end].region().sge(0, length);
        let data = Data::Sges(std::slice::from_ref(&sge));
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        qps[end].post_send(&SendRequest { wr_id, op, data, flags }).expect("room for a request");
    }
}

/// Returns one request of each operation, for the peer's `region`.
fn operations(region: &MemoryRegion, peer: &ProtectionDomain) -> [SendOp; 10] {
    let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    let window = peer.alloc_buffer(64, Access::REMOTE_INVALIDATE).expect("a buffer");
    let rkey = window.region().rkey();
    // The region to be invalidated stays registered until the process ends. Nothing accesses it.
    std::mem::forget(window);
    let selectivity = Selectivity::Range;
    [
        SendOp::Send,
        SendOp::SendImm(0x0102_0304),
        SendOp::SendInvalidate(rkey),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 0x0506_0708),
        SendOp::Read(remote),
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::FetchAdd { remote, add: 5 },
        SendOp::AtomicWrite(remote),
        SendOp::Flush { remote, length: 8, placement: PlacementType::GLOBAL, selectivity },
    ]
}

/// Returns the local length of a request: `length`, unless the operation has a fixed one.
fn bytes_of(op: &SendOp, length: u32) -> u32 {
    match op {
        SendOp::Flush { .. } => 0,
        SendOp::AtomicWrite(_) => 8,
        _ if op.is_atomic() => 8,
        _ => length,
    }
}
