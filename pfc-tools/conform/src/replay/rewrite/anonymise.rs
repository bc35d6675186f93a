//! `rewrite --anonymise`: everything that tells of the network or the data is replaced, so that a
//! capture can be shown to others. The flow of packets stays, with its times, lengths, PSNs, UDP
//! ports, DSCP and VLANs; `check` and `replay` say the same of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use feroce_wire::{Key, MacAddr, Packet, Qpn};

use super::{Rewrite, cm};

/// First IPv4 address of the pseudonyms: 198.18.0.0/15, which is reserved for benchmarks.
const FIRST_IPV4: u32 = 0xc612_0001;
/// First IPv6 address of the pseudonyms: 2001:db8::/32, which is reserved for documentation.
const FIRST_IPV6: u128 = 0x2001_0db8 << 96 | 1;
/// First QP number and first key.
const FIRST_NUMBER: u32 = 0x100;

/// Gives pseudonyms in the order in which things occur.
#[derive(Debug)]
pub struct Anonymiser {
    rewrite: Rewrite,
}

impl Anonymiser {
    /// `rewrite`: changes that the user has chosen; they stay.
    pub fn new(rewrite: Rewrite) -> Self {
        Self { rewrite: Rewrite { hides_data: true, ..rewrite } }
    }

    /// Rewrites a frame; `None` if it is not a RoCEv2 packet. A wrong ICRC stays wrong in the same
    /// bits.
    pub fn apply(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(frame, &[]).ok()?;
        self.learn(&packet);
        let damage = packet.icrc ^ packet.computed_icrc();
        let mut bytes = self.rewrite.rewritten(&packet);
        let end = Packet::parse(&bytes, &[]).ok()?.trailer.len();
        let at = bytes.len() - end - 4;
        for (byte, damage) in bytes[at..].iter_mut().zip(damage.to_le_bytes()) {
            *byte ^= damage;
        }
        Some(bytes)
    }

    fn learn(&mut self, packet: &Packet<'_>) {
        for mac in [packet.ethernet.src, packet.ethernet.dst] {
            self.learn_mac(mac);
        }
        for ip in [packet.ip.src(), packet.ip.dst()] {
            self.learn_ip(ip);
        }
        self.learn_qpn(packet.bth.dest_qp);
        if let Some(deth) = packet.ext.deth {
            self.learn_qpn(deth.src_qp);
        }
        let places = [
            packet.ext.reth.map(|reth| (reth.rkey, reth.va)),
            packet.ext.atomic_eth.map(|eth| (eth.rkey, eth.va)),
        ];
        places.into_iter().flatten().for_each(|(key, va)| self.learn_place(key, va));
        if let Some(ieth) = packet.ext.ieth {
            self.learn_key(ieth.rkey);
        }
        if let Some(mad) = cm::mad(packet) {
            cm::qpns(&mad.message).into_iter().for_each(|qpn| self.learn_qpn(qpn));
            cm::ips(&mad.message).into_iter().for_each(|ip| self.learn_ip(ip));
            for guid in cm::guids(&mad.message) {
                let next = 0x0200_00ff_fe00_0001 + self.rewrite.guids.len() as u64;
                self.rewrite.guids.entry(guid).or_insert(next);
            }
        }
    }

    fn learn_mac(&mut self, mac: MacAddr) {
        let is_group = mac.0[0] & 1 == 1; // Made from the group's IP address.
        if !is_group {
            let [.., a, b, c, d] = (self.rewrite.macs.len() as u64 + 1).to_be_bytes();
            self.rewrite.macs.entry(mac.0).or_insert(MacAddr([2, 0, a, b, c, d]));
        }
    }

    fn learn_ip(&mut self, ip: IpAddr) {
        if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
            return;
        }
        let count = u32::try_from(self.rewrite.ips.len()).unwrap_or(u32::MAX);
        let new = match ip {
            IpAddr::V4(_) => Ipv4Addr::from(FIRST_IPV4.wrapping_add(count)).into(),
            IpAddr::V6(_) => Ipv6Addr::from(FIRST_IPV6 + u128::from(count)).into(),
        };
        self.rewrite.ips.entry(ip).or_insert(new);
    }

    fn learn_qpn(&mut self, qpn: Qpn) {
        let has_meaning = qpn.value() <= Qpn::GSI.value() || qpn == Qpn::MULTICAST;
        if !has_meaning {
            let new = next_number(self.rewrite.qpns.len());
            self.rewrite.qpns.entry(qpn.value()).or_insert(new);
        }
    }

    fn learn_key(&mut self, key: Key) -> u32 {
        let new = next_number(self.rewrite.keys.len());
        *self.rewrite.keys.entry(key.value()).or_insert(new)
    }

    /// The first address used with a key gets a round number; its place in a page stays.
    fn learn_place(&mut self, key: Key, va: u64) {
        let new = self.learn_key(key);
        let base = u64::from(new) << 32 | va & 0xfff;
        self.rewrite.addresses.entry(key.value()).or_insert(base.wrapping_sub(va).cast_signed());
    }
}

fn next_number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).wrapping_add(FIRST_NUMBER)
}
