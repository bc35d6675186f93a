//! Reads and modifies real frames as a switch does: addresses, priority, ECN, and PFC frames.

use feroce_wire::{Ecn, FlowControl, FlowControlFrame, MacAddr, Packet, icrc, pause};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Header fields that a switch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Destination address.
    pub to: MacAddr,
    /// Source address.
    pub from: MacAddr,
    /// PCP of the VLAN tag if there is one; otherwise the upper three bits of the DSCP; 0 if not
    /// IP.
    pub priority: u8,
    /// ECN bits; `None` if not IP.
    pub ecn: Option<Ecn>,
    /// Flow hash for ECMP, computed from addresses and ports.
    pub entropy: u32,
}

impl Seen {
    /// Parses a frame; `None` if it is too short.
    pub fn new(frame: &[u8]) -> Option<Self> {
        let (to, from) = (address(frame, 0)?, address(frame, 6)?);
        let (ethertype, at, pcp) = network_header(frame)?;
        let class = traffic_class(frame, ethertype, at);
        let priority = pcp.or(class.map(|class| class >> 5)).unwrap_or(0);
        let (addresses, ports) = match ethertype {
            ETHERTYPE_IPV4 => (at + 12..at + 20, at + 20),
            _ => (at + 8..at + 40, at + 40),
        };
        let words = frame.get(addresses).unwrap_or_default();
        let ports = frame.get(ports..ports + 4).unwrap_or_default();
        let entropy = match class {
            None => 0,
            Some(_) => words.iter().chain(ports).fold(0x811c_9dc5, |hash: u32, &byte| {
                (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
            }),
        };
        Some(Self { to, from, priority, ecn: class.map(Ecn::from_traffic_class), entropy })
    }

    /// Returns true if bridges do not forward the frame: LLDP, spanning tree, MAC control (IEEE
    /// 802.1Q, 8.6.3).
    pub fn is_link_local(&self) -> bool {
        let MacAddr([a, b, c, d, e, f]) = self.to;
        [a, b, c, d, e] == [0x01, 0x80, 0xc2, 0, 0] && f < 0x10
    }
}

fn address(frame: &[u8], at: usize) -> Option<MacAddr> {
    frame.get(at..at + 6)?.try_into().ok().map(MacAddr)
}

fn short(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

/// EtherType after all VLAN tags, the offset of its header, and the first tag's priority.
fn network_header(frame: &[u8]) -> Option<(u16, usize, Option<u8>)> {
    let (mut at, mut pcp) = (12, None);
    loop {
        match short(frame, at)? {
            0x8100 | 0x88a8 => {
                pcp = pcp.or(Some(*frame.get(at + 2)? >> 5));
                at += 4;
            }
            ethertype => return Some((ethertype, at + 2, pcp)),
        }
    }
}

fn traffic_class(frame: &[u8], ethertype: u16, at: usize) -> Option<u8> {
    match ethertype {
        ETHERTYPE_IPV4 => frame.get(at + 1).copied(),
        ETHERTYPE_IPV6 => short(frame, at).map(|word| (word >> 4 & 0xff).to_be_bytes()[1]),
        _ => None,
    }
}

/// Bytes of the FCS, which captured frames lack, and of the shortest frame.
const FCS: usize = 4;
const SHORTEST: usize = 64;

/// Size on the link of a frame of `len` bytes without FCS.
pub fn size_on_link(len: usize) -> u32 {
    u32::try_from((len + FCS).max(SHORTEST)).unwrap_or(u32::MAX)
}

/// Flips a bit of a frame, so that the receiver rejects the frame. RoCE frames are damaged in the
/// ICRC, since the ICRC does not cover the whole frame. Others are damaged in the payload, since a
/// switch would notice a damaged header.
pub fn damage(frame: &mut [u8]) {
    let at = match Packet::parse(frame, &[]) {
        Ok(packet) => frame.len() - packet.trailer.len() - icrc::LEN,
        Err(_) => frame.len() * 3 / 4,
    };
    frame[at] ^= 1;
}

/// Sets CE (congestion experienced). The IPv4 header checksum is updated incrementally (RFC 1624),
/// so that a wrong checksum stays wrong. Returns false if there is no IP header.
pub fn mark(frame: &mut [u8]) -> bool {
    let Some((ethertype, at, _)) = network_header(frame) else { return false };
    let Some(old) = short(frame, at) else { return false };
    match ethertype {
        ETHERTYPE_IPV4 => {
            let new = old | u16::from(Ecn::Ce.bits());
            let Some(sum) = short(frame, at + 10) else { return false };
            let sum = u32::from(!sum) + u32::from(!old) + u32::from(new);
            let folded = (sum & 0xffff) + (sum >> 16);
            let [.., high, low] = ((folded & 0xffff) + (folded >> 16)).to_be_bytes();
            frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
            frame[at + 10..at + 12].copy_from_slice(&[!high, !low]);
            true
        }
        ETHERTYPE_IPV6 => {
            let new = old | u16::from(Ecn::Ce.bits()) << 4;
            frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
            true
        }
        _ => false,
    }
}

/// A PFC frame (IEEE 802.1Qbb), or a PAUSE frame (IEEE 802.3x), which affects every priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Enabled priorities, one bit each.
    pub enabled: u8,
    /// Pause time of each priority, in units of 512 bit times; 0 resumes.
    pub quanta: [u16; 8],
}

impl Pause {
    /// Length of a PFC frame without FCS: the shortest frame.
    pub const LEN: usize = pause::FRAME_LEN;

    /// A frame that pauses the priorities in `paused` for `quanta`; the others in `enabled` resume.
    pub fn new(enabled: u8, paused: u8, quanta: u16) -> Self {
        let span = |p: usize| if enabled & paused & 1 << p != 0 { quanta } else { 0 };
        Self { enabled, quanta: [0, 1, 2, 3, 4, 5, 6, 7].map(span) }
    }

    /// Parses a MAC control frame: `None` if the frame is of another type, `Some(None)` if a NIC
    /// would ignore the frame.
    pub fn parse(frame: &[u8]) -> Option<Option<Self>> {
        let seen = pause::inspect(frame, frame.len())?;
        Some(match seen.obeyed() {
            Some(FlowControl::Pfc { enabled, quanta }) => Some(Self { enabled, quanta }),
            Some(FlowControl::Pause { quanta }) => {
                Some(Self { enabled: u8::MAX, quanta: [quanta; 8] })
            }
            None => None,
        })
    }

    /// Encodes the frame with the source address `from`.
    pub fn to_bytes(self, from: MacAddr) -> [u8; Self::LEN] {
        let Self { enabled, quanta } = self;
        FlowControlFrame { src: from, control: FlowControl::Pfc { enabled, quanta } }.to_bytes()
    }

    /// Groups of priorities with the same pause time: priorities and quanta.
    pub fn groups(self) -> impl Iterator<Item = (u8, u16)> {
        let mut rest = self.enabled;
        std::iter::from_fn(move || {
            let first = (0..8_usize).find(|p| rest >> p & 1 == 1)?;
            let span = self.quanta[first];
            let group = (0..8_usize).filter(|&p| rest >> p & 1 == 1 && self.quanta[p] == span);
            let group = group.fold(0, |bits, p| bits | 1 << p);
            rest &= !group;
            Some((group, span))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::{
        Bth, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, Opcode, write_transport,
    };

    /// UDP over IPv4 with DSCP 26 and ECT(0), as the Linux kernel sends it.
    fn ipv4() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([
            0x45,
            26 << 2 | 2,
            0,
            32,
            0,
            1,
            0x40,
            0,
            64,
            17,
            0,
            0,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ]);
        let sum = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0xc0, 1, 0x12, 0xb7, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    /// Ones' complement sum of a header: ffff if its checksum is correct.
    fn sum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
    }

    /// RFC 1624.
    #[test]
    fn a_mark_keeps_checksum_and_dscp_correct() {
        let mut frame = ipv4();
        assert_eq!(sum(&frame[14..34]), 0xffff);
        let seen = Seen::new(&frame).unwrap();
        assert_eq!((seen.priority, seen.ecn), (3, Some(Ecn::Ect0)));
        assert!(mark(&mut frame));
        assert_eq!(sum(&frame[14..34]), 0xffff);
        assert_eq!(frame[15], 26 << 2 | 3);
        assert_eq!(Seen::new(&frame).unwrap().ecn, Some(Ecn::Ce));
        // Every value of the identification field: the checksum goes through all carries.
        for id in 0..=u16::MAX {
            let mut frame = ipv4();
            frame[18..20].copy_from_slice(&id.to_be_bytes());
            frame[24..26].fill(0);
            let checksum = !sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            mark(&mut frame);
            assert_eq!(sum(&frame[14..34]), 0xffff, "identification {id}");
        }
    }

    #[test]
    fn the_tag_overrides_the_dscp_and_ipv6_is_marked() {
        let mut frame = ipv4();
        frame.splice(12..12, [0x81, 0, 5 << 5, 7]);
        assert_eq!(Seen::new(&frame).unwrap().priority, 5);
        assert!(mark(&mut frame));
        assert_eq!(sum(&frame[18..38]), 0xffff);
        let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        frame.extend([0x66, 0x9a, 0xbc, 0xde]);
        frame.extend([0; 40]);
        let seen = Seen::new(&frame).unwrap();
        assert_eq!((seen.priority, seen.ecn), (3, Some(Ecn::Ect1)));
        assert!(mark(&mut frame));
        assert_eq!(frame[14..18], [0x66, 0xba, 0xbc, 0xde]);
    }

    #[test]
    fn non_ip_frames_have_priority_0_and_are_not_marked() {
        let mut arp = vec![0xff; 12];
        arp.extend([8, 6, 0, 1]);
        let seen = Seen::new(&arp).unwrap();
        assert_eq!((seen.priority, seen.ecn), (0, None));
        assert!(seen.to.is_multicast() && !seen.is_link_local());
        assert!(!mark(&mut arp));
        assert_eq!(Seen::new(&arp[..13]), None);
    }

    #[test]
    fn the_icrc_detects_damage_in_every_kind_of_packet() {
        let v4 = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let v6 = IpAddresses::V6 { src: [1; 8].into(), dst: [2; 8].into() };
        for (addresses, info) in
            [v4, v6].into_iter().flat_map(|a| Opcode::all().map(move |i| (a, i)))
        {
            for (payload, trailer) in [(0, 0), (0, 6), (1, 0), (64, 0), (1024, 0)] {
                let flow =
                    FlowHeader::new(&FlowSpec::new(MacAddr([2; 6]), MacAddr([4; 6]), addresses));
                let bth =
                    Bth { opcode: info.opcode, pad: u8::from(payload == 1) * 3, ..Bth::default() };
                let ext = ExtHeaders::parse(info.headers, &[0; 64]).unwrap();
                let mut frame = vec![0; 2048];
                let len = write_transport(&mut frame[flow.len()..], &bth, &ext);
                let len = flow.seal(&mut frame, len + payload + usize::from(bth.pad), 1);
                frame.truncate(len + trailer);
                assert!(Packet::parse(&frame, &[]).unwrap().icrc_valid(), "{}", info.name);
                damage(&mut frame);
                let damaged = Packet::parse(&frame, &[]);
                assert!(damaged.is_ok_and(|packet| !packet.icrc_valid()), "{}", info.name);
            }
        }
    }

    #[test]
    fn pfc_frames_round_trip() {
        let pause = Pause::new(0b1001, 0b1000, 500);
        let frame = pause.to_bytes(MacAddr([2, 0, 0, 0, 0, 9]));
        assert_eq!(Pause::parse(&frame), Some(Some(pause)));
        assert!(Seen::new(&frame).unwrap().is_link_local());
        assert_eq!(pause.groups().collect::<Vec<_>>(), [(0b0001, 0), (0b1000, 500)]);
        assert_eq!(Pause::parse(&ipv4()), None);
        let mut other = frame;
        other[15] = 2;
        assert_eq!(Pause::parse(&other), Some(None), "MAC control, but no flow control");
        let control = FlowControl::Pause { quanta: 7 };
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 9]), control }.to_bytes();
        let every = Pause { enabled: 0xff, quanta: [7; 8] };
        assert_eq!(Pause::parse(&frame), Some(Some(every)));
        assert_eq!(every.groups().collect::<Vec<_>>(), [(0xff, 7)]);
    }
}
