//! `feroce conform rewrite`: rewrites a capture with other addresses, QP numbers, PSNs and keys;
//! checksums and ICRCs are corrected.

mod anonymise;
mod cm;

use std::collections::BTreeMap;
use std::io::BufWriter;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use feroce_wire::{IpHeader, Ipv4Header, Key, MacAddr, Packet, Payload, Qpn};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

pub use anonymise::Anonymiser;

use super::compare::sealed_again;
use crate::failure::{Failure, Outcome};
use crate::trace::{Link, Trace};
use feroce_engine::files;

/// The changes to packets. Everything else stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Ethernet addresses.
    pub macs: BTreeMap<[u8; 6], MacAddr>,
    /// IP addresses; the family stays.
    pub ips: BTreeMap<IpAddr, IpAddr>,
    /// QP numbers: in BTH, DETH and communication management.
    pub qpns: BTreeMap<u32, u32>,
    /// Offsets added to the PSNs of packets to a QP, by captured QP number.
    pub psns: BTreeMap<u32, i64>,
    /// Memory keys: in RETH, AtomicETH and IETH.
    pub keys: BTreeMap<u32, u32>,
    /// Offsets added to the addresses used with a key, by captured key.
    pub addresses: BTreeMap<u32, i64>,
    /// Node GUIDs, in communication management.
    pub guids: BTreeMap<u64, u64>,
    /// Payload, private data and Ethernet padding become zeros.
    pub hides_data: bool,
}

impl Rewrite {
    /// Rewrites a frame; `None` if it is not a RoCEv2 packet.
    pub fn apply(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(frame, &[]).ok()?;
        // Damaged frames stay damaged.
        packet.icrc_valid().then(|| self.rewritten(&packet))
    }

    /// The bytes of `packet`, rewritten, with a valid ICRC.
    fn rewritten(&self, packet: &Packet<'_>) -> Vec<u8> {
        let mad = cm::mad(packet).map(|mad| self.apply_to_mad(&mad));
        let zeros = vec![0; packet.payload.len().max(packet.trailer.len())];
        let mut packet = *packet;
        if let Some(mad) = &mad {
            packet.payload = Payload { first: mad, second: &[] };
        } else if self.hides_data {
            packet.payload = Payload { first: &zeros[..packet.payload.len()], second: &[] };
        }
        if self.hides_data {
            packet.trailer = Payload { first: &zeros[..packet.trailer.len()], second: &[] };
        }
        for mac in [&mut packet.ethernet.src, &mut packet.ethernet.dst] {
            *mac = self.macs.get(&mac.0).copied().unwrap_or(*mac);
        }
        self.map_ip(&mut packet.ip);
        packet.udp.checksum = 0; // The ICRC covers the same bytes.
        let dest = packet.bth.dest_qp.value();
        packet.bth.psn = shifted(packet.bth.psn, self.psns.get(&dest).copied().unwrap_or(0));
        packet.bth.dest_qp = self.qpn(packet.bth.dest_qp);
        if let Some(deth) = &mut packet.ext.deth {
            deth.src_qp = self.qpn(deth.src_qp);
        }
        if let Some(reth) = &mut packet.ext.reth {
            (reth.va, reth.rkey) = self.place(reth.va, reth.rkey);
        }
        if let Some(eth) = &mut packet.ext.atomic_eth {
            (eth.va, eth.rkey) = self.place(eth.va, eth.rkey);
        }
        if let Some(ieth) = &mut packet.ext.ieth {
            ieth.rkey = self.place(0, ieth.rkey).1;
        }
        sealed_again(&packet)
    }

    fn map_ip(&self, header: &mut IpHeader) {
        let other = |ip: IpAddr| self.ips.get(&ip).copied().unwrap_or(ip);
        match header {
            IpHeader::V4(ip) => {
                if let IpAddr::V4(src) = other(ip.src.into()) {
                    ip.src = src;
                }
                if let IpAddr::V4(dst) = other(ip.dst.into()) {
                    ip.dst = dst;
                }
                ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
            }
            IpHeader::V6(ip) => {
                if let IpAddr::V6(src) = other(ip.src.into()) {
                    ip.src = src;
                }
                if let IpAddr::V6(dst) = other(ip.dst.into()) {
                    ip.dst = dst;
                }
            }
        }
    }

    fn qpn(&self, qpn: Qpn) -> Qpn {
        self.qpns.get(&qpn.value()).map_or(qpn, |&other| Qpn::masked(other))
    }

    fn place(&self, va: u64, key: Key) -> (u64, Key) {
        let shift = self.addresses.get(&key.value()).copied().unwrap_or(0);
        let key = self.keys.get(&key.value()).map_or(key, |&other| Key(other));
        (va.wrapping_add_signed(shift), key)
    }
}

/// Adds `shift` to a PSN.
pub(super) fn shifted(psn: feroce_wire::Psn, shift: i64) -> feroce_wire::Psn {
    psn.add(u32::try_from(shift.rem_euclid(1 << 24)).expect("below 2^24"))
}

/// One change, as given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// `mac:OLD=NEW`
    Mac(MacAddr, MacAddr),
    /// `ip:OLD=NEW`
    Ip(IpAddr, IpAddr),
    /// `qpn:OLD=NEW`
    Qpn(u32, u32),
    /// `psn:QPN=+N` or `-N`
    Psn(u32, i64),
    /// `rkey:OLD=NEW`
    Key(u32, u32),
    /// `va:RKEY=+N` or `-N`
    Address(u32, i64),
}

const FORMS: &str = "mac:OLD=NEW, ip:OLD=NEW, qpn:OLD=NEW, psn:QPN=+N, rkey:OLD=NEW or va:RKEY=+N";

/// Parses a number, decimal or hexadecimal with 0x.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text} is not a 32-bit number"))
}

fn qpn(text: &str) -> Result<u32, String> {
    let value = number(text)?;
    Qpn::new(value).map(|_| value).ok_or_else(|| format!("{text} is not a QP number (24 bits)"))
}

fn shift(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.split_at_checked(1) {
        Some(("+", digits)) => (1, digits),
        Some(("-", digits)) => (-1, digits),
        _ => return Err(format!("{text} is not a shift: expected + or -, and a number")),
    };
    let parsed = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse::<i64>(),
    };
    let value = parsed.ok().filter(|value| *value >= 0);
    value.map(|value| sign * value).ok_or_else(|| format!("{text} is not a shift"))
}

fn mac(text: &str) -> Result<MacAddr, String> {
    text.parse().map_err(|_| format!("{text} is not an Ethernet address"))
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text} is not an IP address"))
}

impl FromStr for Map {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("expected {FORMS}");
        let (kind, rest) = text.split_once(':').ok_or_else(form)?;
        let (old, new) = rest.split_once('=').ok_or_else(form)?;
        Ok(match kind {
            "mac" => Self::Mac(mac(old)?, mac(new)?),
            "ip" => {
                let (old, new) = (ip(old)?, ip(new)?);
                if old.is_ipv4() != new.is_ipv4() {
                    return Err("the IP address family cannot change".to_owned());
                }
                Self::Ip(old, new)
            }
            "qpn" => Self::Qpn(qpn(old)?, qpn(new)?),
            "psn" => Self::Psn(qpn(old)?, shift(new)?),
            "rkey" => Self::Key(number(old)?, number(new)?),
            "va" => Self::Address(number(old)?, shift(new)?),
            _ => return Err(form()),
        })
    }
}

impl FromIterator<Map> for Rewrite {
    fn from_iter<T: IntoIterator<Item = Map>>(maps: T) -> Self {
        let mut rewrite = Self::default();
        for map in maps {
            match map {
                Map::Mac(old, new) => drop(rewrite.macs.insert(old.0, new)),
                Map::Ip(old, new) => drop(rewrite.ips.insert(old, new)),
                Map::Qpn(old, new) => drop(rewrite.qpns.insert(old, new)),
                Map::Psn(qpn, shift) => drop(rewrite.psns.insert(qpn, shift)),
                Map::Key(old, new) => drop(rewrite.keys.insert(old, new)),
                Map::Address(key, shift) => drop(rewrite.addresses.insert(key, shift)),
            }
        }
        rewrite
    }
}

/// Options of `rewrite`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A capture of an Ethernet link (pcap, pcapng; also compressed with zstd or gzip); - reads
    /// standard input
    file: PathBuf,
    /// The capture to write: pcap with nanosecond timestamps
    #[arg(short, long)]
    output: PathBuf,
    /// A change: mac:OLD=NEW, ip:OLD=NEW, qpn:OLD=NEW, psn:QPN=+N, rkey:OLD=NEW or va:RKEY=+N. QP
    /// numbers and keys are those of the capture. The changes also apply inside communication
    /// management messages
    #[arg(long = "map", value_name = "KIND:OLD=NEW")]
    maps: Vec<Map>,
    /// Replace all addresses, QP numbers, node GUIDs and keys, and write zeros for payload and
    /// private data, so that the capture can be shown to others. Frames that are not RoCEv2
    /// packets, or that are cut off, are left out
    #[arg(long)]
    anonymise: bool,
}

/// Rewrites the capture. Frames that are not RoCEv2 packets or have a wrong ICRC stay unchanged;
/// with `--anonymise`, see there.
///
/// # Errors
/// If the capture cannot be read to its end, is not of an Ethernet link, or the new one cannot be
/// written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let rewrite: Rewrite = options.maps.iter().copied().collect();
    let mut anonymiser = options.anonymise.then(|| Anonymiser::new(rewrite.clone()));
    let (mut kept, mut left_out) = (0u64, 0u64);
    let mut trace = Trace::open(std::slice::from_ref(&options.file))?;
    let unwritten = |error: &dyn std::fmt::Display| {
        Failure::Unusable(format!("{}: {error}", options.output.display()))
    };
    let file = files::create_private(&options.output).map_err(|error| unwritten(&error))?;
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut writer =
        PcapWriter::with_header(BufWriter::new(file), header).map_err(|error| unwritten(&error))?;
    while let Some(frame) = trace.next_frame()? {
        if frame.link != Link::Ethernet {
            let number = frame.number;
            return Err(Failure::Unusable(format!("frame {number} is not an Ethernet frame")));
        }
        let new = match &mut anonymiser {
            _ if frame.is_cut() => None,
            Some(anonymiser) => anonymiser.apply(frame.bytes),
            None => rewrite.apply(frame.bytes),
        };
        if options.anonymise && new.is_none() {
            left_out += 1;
            continue;
        }
        kept += 1;
        let bytes = new.as_deref().unwrap_or(frame.bytes);
        let packet = PcapPacket::new(Duration::from_nanos(frame.at), frame.original_len, bytes);
        writer.write_packet(&packet).map_err(|error| unwritten(&error))?;
    }
    let mut inner = writer.into_writer();
    std::io::Write::flush(&mut inner)?;
    if left_out > 0 {
        eprintln!(
            "feroce: {kept} frames written; {left_out} left out: no RoCEv2 packets, or cut off"
        );
    }
    Ok(Outcome::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_parsed() {
        assert_eq!("qpn:0x17=99".parse(), Ok(Map::Qpn(0x17, 99)));
        assert_eq!("psn:23=-0x10".parse(), Ok(Map::Psn(23, -16)));
        for wrong in ["qpn:1", "qpn:0x1000000=1", "psn:1=5", "ip:1.2.3.4=::1", "x:1=2", "mac:1=2"] {
            assert!(wrong.parse::<Map>().is_err(), "{wrong}");
        }
    }
}
