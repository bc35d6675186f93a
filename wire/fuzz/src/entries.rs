//! The body of each fuzz target. Shared with `tests/tests/wire_fuzz_smoke.rs`, which runs all of
//! them on a stable toolchain.

use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CmMad, Deth, EthernetHeader, ExtHeaders, Feth,
    FlowControlFrame, Ieth, ImmDt, Ipv4Header, Ipv6Header, MAD_LEN, MacAddr, MadHeader, Opcode,
    Packet, Payload, Reth, UdpHeader, VlanTag, XrcEth,
    cm::IpCmHeader,
    icrc::{icrc, icrc_reference},
    pause::{FRAME_LEN, inspect},
};

/// Takes any bytes; panics if the parser is wrong.
pub type Entry = fn(&[u8]);

/// Every entry under the name of its target in `fuzz_targets/`.
#[allow(dead_code)] // a target uses one entry, the smoke test the table
pub const ENTRIES: &[(&str, Entry)] = &[
    ("packet", packet),
    ("ext", ext),
    ("icrc", icrc_agrees),
    ("mac", mac),
    ("vlan", vlan),
    ("ethernet", ethernet),
    ("ipv4", ipv4),
    ("ipv6", ipv6),
    ("udp", udp),
    ("bth", bth),
    ("reth", reth),
    ("aeth", aeth),
    ("atomic_eth", atomic_eth),
    ("atomic_ack_eth", atomic_ack_eth),
    ("deth", deth),
    ("immdt", immdt),
    ("ieth", ieth),
    ("xrceth", xrceth),
    ("feth", feth),
    ("mad", mad),
    ("cm", cm),
    ("ip_cm", ip_cm),
    ("pause", pause),
];

/// A frame in two slices; the first byte gives the offset of the split. A parsed frame is written
/// back byte for byte.
pub fn packet(data: &[u8]) {
    let Some((&cut, frame)) = data.split_first() else {
        return;
    };
    // 0xff: no split, so that a corpus of whole frames is easy to make.
    let cut = if cut == 0xff { frame.len() } else { usize::from(cut).min(frame.len()) };
    let (first, second) = frame.split_at(cut);
    let Ok(packet) = Packet::parse(first, second) else {
        return;
    };
    let _ = packet.icrc_valid();
    assert!(!packet.to_string().is_empty());
    let mut out = vec![0; frame.len()];
    assert_eq!(packet.emit(&mut out), Ok(frame.len()));
    assert_eq!(out, frame);
}

/// The extended headers of the opcode in the first byte.
pub fn ext(data: &[u8]) {
    let Some((&opcode, bytes)) = data.split_first() else {
        return;
    };
    let Some(info) = Opcode(opcode).info() else {
        return;
    };
    let Ok(ext) = ExtHeaders::parse(info.headers, bytes) else {
        assert!(bytes.len() < info.headers_len);
        return;
    };
    assert_eq!(ext.present(), info.headers);
    let mut out = vec![0; info.headers_len];
    assert_eq!(ext.write(info.headers, &mut out), Ok(info.headers_len));
    assert_eq!(out, bytes[..info.headers_len]);
}

/// The fast ICRC against the reference; the first byte gives the offset of the split.
pub fn icrc_agrees(data: &[u8]) {
    let Some((&cut, covered)) = data.split_first() else {
        return;
    };
    let headers = match covered.first() {
        Some(front) if front >> 4 == 6 => 60,
        _ => 40,
    };
    if covered.len() < headers {
        return;
    }
    let (first, second) = covered.split_at((headers + usize::from(cut)).min(covered.len()));
    let covered = Payload { first, second };
    assert_eq!(icrc(covered), icrc_reference(covered));
}

/// The text of a MAC address.
pub fn mac(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(mac) = text.parse::<MacAddr>() {
        assert_eq!(mac.to_string(), text.to_ascii_lowercase());
    }
}

/// An 802.1Q tag.
pub fn vlan(data: &[u8]) {
    if let [high, low, ..] = data {
        let tci = u16::from_be_bytes([*high, *low]);
        assert_eq!(VlanTag::from_tci(tci).tci(), tci);
    }
}

/// A fixed-size header: all bits survive, and only short input is refused.
macro_rules! fixed {
    ($($entry:ident: $header:ty;)*) => {$(
        #[doc = concat!("[`", stringify!($header), "`].")]
        pub fn $entry(data: &[u8]) {
            match <$header>::parse(data) {
                Ok(value) => assert_eq!(value.to_bytes(), data[..<$header>::LEN]),
                Err(_) => assert!(data.len() < <$header>::LEN),
            }
        }
    )*};
}

fixed! {
    ethernet: EthernetHeader;
    udp: UdpHeader;
    bth: Bth;
    reth: Reth;
    aeth: Aeth;
    atomic_eth: AtomicEth;
    atomic_ack_eth: AtomicAckEth;
    deth: Deth;
    immdt: ImmDt;
    ieth: Ieth;
    xrceth: XrcEth;
    feth: Feth;
    mad: MadHeader;
}

/// [`Ipv4Header`], which also refuses other versions and options.
pub fn ipv4(data: &[u8]) {
    match Ipv4Header::parse(data) {
        Ok(ip) => {
            assert_eq!(ip.to_bytes(), data[..Ipv4Header::LEN]);
            let _ = ip.computed_checksum();
        }
        Err(_) => assert!(data.len() < Ipv4Header::LEN || data[0] != 0x45),
    }
}

/// [`Ipv6Header`], which also refuses other versions.
pub fn ipv6(data: &[u8]) {
    match Ipv6Header::parse(data) {
        Ok(ip) => assert_eq!(ip.to_bytes(), data[..Ipv6Header::LEN]),
        Err(_) => assert!(data.len() < Ipv6Header::LEN || data[0] >> 4 != 6),
    }
}

/// A communication management MAD: parsing what was written gives the same message, and no byte is
/// written that was not there.
pub fn cm(data: &[u8]) {
    let Ok(mad) = CmMad::parse(data) else {
        return;
    };
    assert_eq!(data.len(), MAD_LEN);
    let written = mad.to_bytes();
    assert_eq!(CmMad::parse(&written), Ok(mad));
    let invented = written.iter().zip(data).any(|(ours, theirs)| ours & !theirs != 0);
    assert!(!invented, "{mad:?}");
}

/// The addresses in front of private data.
pub fn ip_cm(data: &[u8]) {
    let Ok(header) = IpCmHeader::parse(data) else {
        return;
    };
    assert_eq!(header.source.is_ipv4(), header.destination.is_ipv4());
    assert_eq!(IpCmHeader::parse(&header.to_bytes()), Ok(header));
}

/// A flow-control frame; the first byte says how many bytes the capture has dropped. A frame
/// without faults is written back byte for byte.
pub fn pause(data: &[u8]) {
    let Some((&more, frame)) = data.split_first() else {
        return;
    };
    let Some(seen) = inspect(frame, frame.len() + usize::from(more)) else {
        return;
    };
    for finding in seen.findings.iter() {
        assert!(!finding.to_string().is_empty() && !finding.kind().is_empty());
    }
    if seen.findings.is_empty() && frame[0] & 1 == 1 {
        let control = seen.control.expect("nothing is wrong with it");
        let written = FlowControlFrame { src: seen.src, control }.to_bytes();
        assert_eq!(written, frame[..FRAME_LEN]);
    }
}
