//! `feroce conform rewrite`: captures with other addresses and numbers, and anonymous ones, get the
//! verdict of the captures that they were made from.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feroce_conform::check::{Checker, Filter, Report};
use feroce_conform::replay::rewrite::{Anonymiser, Map, Rewrite};
use feroce_conform::rules::Severity;
use feroce_conform::trace::{Link, Trace};
use feroce_tests::capture_list::{captures, listed};
use feroce_wire::cm::{CmMad, CmMessage, IpCmHeader};
use feroce_wire::{Key, MacAddr, Packet, Qpn};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

/// Writes the RoCE frames of the capture `from`, changed by `change`, to a new file; `None` if the
/// capture is not of an Ethernet link.
fn changed(from: &Path, change: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>) -> Option<PathBuf> {
    let to = std::env::temp_dir().join(format!(
        "fr-rewrite-{}-{}",
        std::process::id(),
        from.file_name().expect("a name").to_string_lossy().replace(".zst", "")
    ));
    let ts_resolution = TsResolution::NanoSecond;
    let header =
        PcapHeader { datalink: DataLink::ETHERNET, ts_resolution, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&to).expect("a file"), header).unwrap();
    let mut trace = Trace::open(&[from.to_path_buf()]).expect("a capture");
    while let Some(frame) = trace.next_frame().expect("read to the end") {
        if frame.link != Link::Ethernet {
            std::fs::remove_file(&to).expect("removed");
            return None;
        }
        if let Some(bytes) = change(frame.bytes) {
            let at = Duration::from_nanos(frame.at);
            writer.write_packet(&PcapPacket::new(at, frame.original_len, &bytes)).unwrap();
        }
    }
    Some(to)
}

fn checked(file: &Path) -> Report {
    let mut trace = Trace::open(&[file.to_path_buf()]).expect("a capture");
    let (report, ended) = Checker::new(Filter::default(), true).check(&mut trace);
    ended.expect("read to the end");
    report
}

/// The findings, with their numbers.
fn verdict(report: &Report) -> Vec<(&'static str, usize)> {
    let counts = report.findings.by_rule().into_iter();
    let counts = counts.filter(|(rule, _)| rule.rule().severity != Severity::Quirk);
    counts.map(|(rule, count)| (rule.rule().name, usize::try_from(count).unwrap())).collect()
}

/// What must not be in an anonymous capture.
#[derive(Debug, Default)]
struct Secrets {
    macs: Vec<MacAddr>,
    ips: Vec<IpAddr>,
    qpns: Vec<Qpn>,
    /// Keys, and the high bits of the addresses used with them.
    keys: Vec<Key>,
    pages: Vec<u64>,
}

impl Secrets {
    fn of(packet: &Packet<'_>) -> Self {
        let macs = [packet.ethernet.src, packet.ethernet.dst];
        let mut all = Self {
            macs: macs.into_iter().filter(|mac| mac.0[0] & 1 == 0).collect(),
            ips: vec![packet.ip.src(), packet.ip.dst()],
            qpns: vec![packet.bth.dest_qp],
            ..Self::default()
        };
        if let Some(reth) = packet.ext.reth.filter(|reth| reth.dma_len > 0) {
            (all.keys, all.pages) = (vec![reth.rkey], vec![reth.va >> 12]);
        }
        all.keys.extend(packet.ext.ieth.map(|ieth| ieth.rkey));
        let mut payload = vec![0; packet.payload.len()];
        packet.payload.copy_to(&mut payload);
        if packet.bth.dest_qp == Qpn::GSI
            && let Ok(mad) = CmMad::parse(&payload)
            && let CmMessage::Req(req) = mad.message
        {
            all.qpns.push(req.local_qpn);
            if let Ok(header) = IpCmHeader::parse(&req.private_data) {
                all.ips.extend([header.source.ip(), header.destination]);
            }
        }
        all.ips.retain(|ip| !ip.is_multicast());
        all.qpns.retain(|qpn| qpn.value() > 1 && *qpn != Qpn::MULTICAST);
        all
    }
}

#[test]
fn an_anonymous_capture_has_the_verdict_of_its_original() {
    let mut judged = 0;
    for file in listed() {
        let name = file.path.display().to_string();
        let mut anonymiser = Anonymiser::new(Rewrite::default());
        let mut seen: Vec<[Secrets; 2]> = Vec::new();
        let anonymous = changed(&file.path, &mut |frame| {
            let bytes = anonymiser.apply(frame)?;
            let packets = [frame, &bytes].map(|bytes| Packet::parse(bytes, &[]).expect("RoCE"));
            let [old, new] = packets.each_ref();
            assert_eq!((old.icrc_valid(), frame.len()), (new.icrc_valid(), bytes.len()), "{name}");
            let is_cm = new.bth.dest_qp == Qpn::GSI;
            let zeros = vec![0; new.payload.len()];
            let mut payload = zeros.clone();
            new.payload.copy_to(&mut payload);
            assert!(is_cm || payload == zeros, "{name}");
            if seen.len() < 500 {
                seen.push([Secrets::of(old), Secrets::of(new)]);
            }
            Some(bytes)
        });
        let Some(anonymous) = anonymous else { continue };
        if seen.is_empty() {
            continue; // No RoCEv2.
        }
        for [old, new] in &seen {
            assert!(old.macs.iter().all(|mac| !new.macs.contains(mac)), "{name}: {old:?}");
            assert!(old.ips.iter().all(|ip| !new.ips.contains(ip)), "{name}: {old:?}");
            assert!(old.qpns.iter().all(|qpn| !new.qpns.contains(qpn)), "{name}: {old:?}");
            assert!(old.keys.iter().all(|key| !new.keys.contains(key)), "{name}: {old:?}");
            assert!(old.pages.iter().all(|page| !new.pages.contains(page)), "{name}: {old:?}");
            assert_eq!(old.qpns.len(), new.qpns.len());
        }
        assert_eq!(verdict(&checked(&anonymous)), verdict(&checked(&file.path)), "{name}");
        std::fs::remove_file(&anonymous).expect("removed");
        judged += 1;
    }
    assert!(judged > 50, "{judged} captures");
}

/// Both ends of an RDMA CM connection get other addresses, numbers and PSNs.
#[test]
fn a_rewritten_connection_is_still_consistent() {
    let file = captures().join("rxe/rping_v4.pcap.zst");
    let mut qpns: Vec<Qpn> = Vec::new();
    let read = changed(&file, &mut |frame| {
        let packet = Packet::parse(frame, &[]).ok()?;
        let qpn = packet.bth.dest_qp;
        if qpn != Qpn::GSI && !qpns.contains(&qpn) {
            qpns.push(qpn);
        }
        Some(frame.to_vec())
    });
    std::fs::remove_file(read.expect("Ethernet")).expect("removed");
    assert_eq!(qpns.len(), 2);
    let maps = ["ip:10.77.0.2=192.0.2.1".to_owned(), "ip:10.77.0.3=192.0.2.2".to_owned()];
    let of_qps = qpns.iter().enumerate().flat_map(|(n, qpn)| {
        let qpn = qpn.value();
        [format!("qpn:{qpn}={}", 0x4000 + n), format!("psn:{qpn}=+0x123456")]
    });
    let maps = maps.into_iter().chain(of_qps).map(|map| map.parse::<Map>().expect("a map"));
    let rewrite: Rewrite = maps.collect();
    let rewritten = changed(&file, &mut |frame| rewrite.apply(frame)).expect("Ethernet");
    let report = checked(&rewritten);
    assert_eq!(verdict(&report), verdict(&checked(&file)));
    assert!(report.packets > 20);
    std::fs::remove_file(rewritten).expect("removed");
}
