//! The filter of the port's sockets: a classic BPF program that accepts frames to the port's
//! addresses.
//!
//! The kernel strips a VLAN tag before a packet socket sees the frame. Therefore every header is at
//! a fixed offset, except for IPv4 options.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};

use feroce_wire::MacAddr;
use feroce_wire::ethernet::ETHERTYPE_VLAN;
use feroce_wire::pause;

use super::config::ADDRESSES;
use super::error::PacketError;
use super::ingress::Ingress;
use super::ring::{PLACEHOLDER, SHORT};
use super::socket::Sockets;
use crate::port::classic_bpf::{
    Instruction, JUMP, JUMP_IF_ANY_BIT, JUMP_IF_EQUAL, JUMP_IF_GREATER, LOAD_BYTE, LOAD_CONSTANT,
    LOAD_HALF, LOAD_HALF_BEHIND_X, LOAD_LENGTH, LOAD_NOTE, LOAD_WORD, LOAD_X_HEADER, RETURN,
    RETURN_LOADED, STORE_NOTE, plain,
};
use crate::port::kind::{self, FilterAddress};

/// The Ethernet address of each IP address; `None`: any.
type Destinations = BTreeMap<Ipv6Addr, Option<MacAddr>>;

/// The destination addresses whose RoCE frames the port receives.
///
/// All cores of an interface share it; changes take effect at once. IPv4 addresses are IPv4-mapped
/// IPv6 addresses. A newly opened port has no addresses and so receives nothing.
#[derive(Debug, Clone)]
pub struct AddressFilter(Arc<Filter>);

#[derive(Debug)]
struct Filter {
    sockets: Vec<Arc<Sockets>>,
    /// `None` if the kernel refuses the program.
    ingress: Option<Ingress>,
    /// True if flow-control frames are accepted, too.
    flow_control: bool,
    known: Mutex<Destinations>,
}

impl AddressFilter {
    pub(super) fn new(
        sockets: Vec<Arc<Sockets>>,
        ingress: Option<Ingress>,
        flow_control: bool,
    ) -> Self {
        Self(Arc::new(Filter { sockets, ingress, flow_control, known: Mutex::default() }))
    }

    /// Replaces the addresses. Frames to every Ethernet address are received.
    ///
    /// # Errors
    /// [`PacketError::TooManyAddresses`] for more than 256 addresses; the filter is then unchanged.
    /// Otherwise the kernel refused; the sockets of some cores may then have the new filter.
    pub fn set(&self, addresses: &[Ipv6Addr]) -> Result<(), PacketError> {
        self.set_destinations(&addresses.iter().map(|&ip| ip.into()).collect::<Vec<_>>())
    }

    /// As [`Self::set`], with the Ethernet addresses of the interfaces.
    pub(super) fn set_destinations(&self, addresses: &[FilterAddress]) -> Result<(), PacketError> {
        let wanted = kind::by_ip(addresses);
        if wanted.len() > ADDRESSES {
            return Err(PacketError::TooManyAddresses(ADDRESSES));
        }
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = PacketError::system("filter frames by address");
        self.0.change(&known, &wanted).map_err(refused)?;
        *known = wanted;
        Ok(())
    }

    /// The current addresses.
    pub fn addresses(&self) -> BTreeSet<Ipv6Addr> {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.keys().copied().collect()
    }

    /// The program on the ingress, if there is one.
    pub(super) fn ingress(&self) -> Option<&Ingress> {
        self.0.ingress.as_ref()
    }
}

impl Filter {
    /// Changes the filters in an order in which the stack never loses a frame that the sockets do
    /// not receive.
    fn change(&self, known: &Destinations, wanted: &Destinations) -> io::Result<()> {
        if let Some(ingress) = &self.ingress {
            let mut gone = known.iter().filter(|(ip, mac)| wanted.get(ip) != Some(mac));
            gone.try_for_each(|(&ip, _)| ingress.remove(ip))?;
        }
        let [queue, ring] =
            [Share::Queue, Share::Ring].map(|share| program(wanted, share, self.flow_control));
        for sockets in &self.sockets {
            // A placeholder without its frame is less harmful than a frame without its placeholder.
            sockets.ring.filter(&ring)?;
            sockets.queue.filter(&queue)?;
        }
        if let Some(ingress) = &self.ingress {
            wanted.iter().try_for_each(|(&ip, &mac)| ingress.add(ip, mac))?;
        }
        Ok(())
    }
}

/// Offset of the packet type: the kernel's own data of a frame begin at a negative offset.
const PACKET_TYPE: u32 = (-0x1000_i32 + 4).cast_unsigned();
/// Packet type of frames to the individual Ethernet address of another host.
const PACKET_OTHERHOST: u32 = 3;
/// Packet type of frames that this host sends.
const PACKET_OUTGOING: u32 = 4;
const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_IPV6: u32 = 0x86dd;
const ETHERTYPE_QINQ: u32 = 0x88a8;
const PROTOCOL_UDP: u32 = 17;
/// Bits of an IPv4 header: more fragments, and the fragment offset.
const FRAGMENT: u32 = 0x3fff;
const ETHERNET: u32 = 14;

/// A program that accepts frames that are or may be flow control: MAC control, frames to the
/// address of flow control, and frames with a VLAN tag that the kernel left in place, since either
/// may follow it.
pub(super) fn flow_control() -> Vec<Instruction> {
    let [a, b, c, d, e, f] = pause::DESTINATION.0;
    let (front, back) = (u32::from_be_bytes([a, b, c, d]), u32::from(u16::from_be_bytes([e, f])));
    // Jump offsets count the instructions in between. The last two instructions are: drop, accept.
    let equal = |k, jt, jf| Instruction { jt, jf, ..plain(JUMP_IF_EQUAL, k) };
    vec![
        plain(LOAD_HALF, 12),
        equal(u32::from(pause::ETHERTYPE_MAC_CONTROL), 7, 0),
        equal(u32::from(ETHERTYPE_VLAN), 6, 0),
        equal(ETHERTYPE_QINQ, 5, 0),
        plain(LOAD_WORD, 0),
        equal(front, 0, 2),
        plain(LOAD_HALF, 4),
        equal(back, 1, 0),
        plain(RETURN, 0),
        plain(RETURN, u32::MAX),
    ]
}

/// Continues if the loaded value is `k`, otherwise drops the frame.
fn demand(k: u32) -> [Instruction; 2] {
    [Instruction { jt: 1, ..plain(JUMP_IF_EQUAL, k) }, plain(RETURN, 0)]
}

/// The socket of a core that a program is for; see [`super::ring`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Short frames and placeholders of long frames.
    Ring,
    /// Long frames.
    Queue,
}

impl Share {
    /// Stores how many bytes of the frame to accept if its address matches.
    fn note(self) -> [Instruction; 4] {
        let size = |len: usize| u32::try_from(len).expect("small");
        let length = plain(LOAD_LENGTH, 0);
        let longer = plain(JUMP_IF_GREATER, size(SHORT));
        let note = plain(STORE_NOTE, 0);
        match self {
            Self::Ring => [
                length,
                Instruction { jf: 1, ..longer },
                plain(LOAD_CONSTANT, size(PLACEHOLDER)),
                note,
            ],
            Self::Queue => [length, Instruction { jt: 1, ..longer }, plain(RETURN, 0), note],
        }
    }
}

/// Continues unless the frame, whose packet type is loaded, is for the Ethernet address of another
/// host: the kernel compares with that of the interface, but its VLAN sub-interfaces may have
/// others. An interface that is promiscuous receives such frames.
fn own_only(addresses: &Destinations) -> Vec<Instruction> {
    let own: BTreeSet<_> = addresses.values().flatten().copied().collect();
    let mut check = Vec::new();
    for (at, &MacAddr([a, b, c, d, e, f])) in own.iter().enumerate() {
        let others = u32::try_from(5 * (own.len() - 1 - at)).expect("some hundreds");
        let (front, back) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]));
        check.extend([
            plain(LOAD_WORD, 0),
            Instruction { jf: 3, ..plain(JUMP_IF_EQUAL, front) },
            plain(LOAD_HALF, 4),
            Instruction { jf: 1, ..plain(JUMP_IF_EQUAL, u32::from(back)) },
            plain(JUMP, others + 1),
        ]);
    }
    if check.is_empty() {
        return check;
    }
    check.push(plain(RETURN, 0));
    let behind = u32::try_from(check.len()).expect("a short program");
    let other_host = Instruction { jt: 1, ..plain(JUMP_IF_EQUAL, PACKET_OTHERHOST) };
    check.splice(0..0, [other_host, plain(JUMP, behind)]);
    check
}

/// The program that accepts the RoCEv2 frames to `addresses` that belong to the socket `share`, and
/// flow-control frames if `flow_control` is true.
fn program(addresses: &Destinations, share: Share, flow_control: bool) -> Vec<Instruction> {
    let roce = u32::from(feroce_wire::ROCE_PORT);
    let take = [plain(LOAD_NOTE, 0), plain(RETURN_LOADED, 0)];
    let mut four = Vec::from([plain(LOAD_BYTE, ETHERNET + 9)]);
    four.extend(demand(PROTOCOL_UDP));
    four.push(plain(LOAD_HALF, ETHERNET + 6));
    four.extend([Instruction { jf: 1, ..plain(JUMP_IF_ANY_BIT, FRAGMENT) }, plain(RETURN, 0)]);
    four.extend([plain(LOAD_X_HEADER, ETHERNET), plain(LOAD_HALF_BEHIND_X, ETHERNET + 2)]);
    four.extend(demand(roce));
    four.push(plain(LOAD_WORD, ETHERNET + 16));
    let mut six = Vec::from([plain(LOAD_BYTE, ETHERNET + 6)]);
    six.extend(demand(PROTOCOL_UDP));
    six.push(plain(LOAD_HALF, ETHERNET + 40 + 2));
    six.extend(demand(roce));
    for address in addresses.keys() {
        if let Some(address) = address.to_ipv4_mapped() {
            four.push(Instruction { jf: 2, ..plain(JUMP_IF_EQUAL, address.to_bits()) });
            four.extend(take);
            continue;
        }
        for (at, skip) in (0..4_u32).zip([8, 6, 4, 2]) {
            let word = address.to_bits() >> (96 - 32 * at) & u128::from(u32::MAX);
            let word = u32::try_from(word).expect("32 bits");
            six.push(plain(LOAD_WORD, ETHERNET + 24 + 4 * at));
            six.push(Instruction { jf: skip, ..plain(JUMP_IF_EQUAL, word) });
        }
        six.extend(take);
    }
    let nothing = plain(RETURN, 0);
    four.push(nothing);
    six.push(nothing);

    let mut all = Vec::from(share.note());
    all.push(plain(LOAD_WORD, PACKET_TYPE));
    all.extend([Instruction { jf: 1, ..plain(JUMP_IF_EQUAL, PACKET_OUTGOING) }, plain(RETURN, 0)]);
    all.extend(own_only(addresses));
    all.push(plain(LOAD_HALF, 12));
    if flow_control {
        let control = u32::from(pause::ETHERTYPE_MAC_CONTROL);
        all.push(Instruction { jf: 2, ..plain(JUMP_IF_EQUAL, control) });
        all.extend(take);
    }
    let behind_four = u32::try_from(four.len()).expect("a short program");
    all.extend([
        Instruction { jt: 1, ..plain(JUMP_IF_EQUAL, ETHERTYPE_IPV4) },
        plain(JUMP, behind_four),
    ]);
    all.extend(four);
    all.extend(demand(ETHERTYPE_IPV6));
    all.extend(six);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::classic_bpf::NOTHING;

    /// The packet type of a frame to this host.
    const TO_US: u32 = 0;

    /// Runs a program on a frame as the kernel does. Returns how many bytes are accepted.
    fn taken(program: &[Instruction], frame: &[u8], packet_type: u32) -> usize {
        let load = |at: u32, len: usize| {
            let at = usize::try_from(at).expect("small");
            let bytes = frame.get(at..at + len)?;
            Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
        };
        let (mut a, mut x, mut note, mut pc) = (0_u32, 0_u32, 0_u32, 0_usize);
        loop {
            let Instruction { code, jt, jf, k } = program[pc];
            pc += 1;
            let branch = |taken: bool| usize::from(if taken { jt } else { jf });
            let loaded = match code {
                LOAD_WORD if k == PACKET_TYPE => Some(packet_type),
                LOAD_WORD => load(k, 4),
                LOAD_HALF => load(k, 2),
                LOAD_BYTE => load(k, 1),
                LOAD_HALF_BEHIND_X => load(x + k, 2),
                LOAD_X_HEADER => {
                    let Some(byte) = load(k, 1) else { return 0 };
                    x = 4 * (byte & 15);
                    continue;
                }
                JUMP => {
                    pc += usize::try_from(k).expect("small");
                    continue;
                }
                JUMP_IF_EQUAL => {
                    pc += branch(a == k);
                    continue;
                }
                JUMP_IF_ANY_BIT => {
                    pc += branch(a & k != 0);
                    continue;
                }
                JUMP_IF_GREATER => {
                    pc += branch(a > k);
                    continue;
                }
                LOAD_LENGTH => Some(u32::try_from(frame.len()).expect("small")),
                LOAD_CONSTANT => Some(k),
                LOAD_NOTE => Some(note),
                STORE_NOTE => {
                    note = a;
                    continue;
                }
                RETURN => return frame.len().min(usize::try_from(k).expect("small")),
                RETURN_LOADED => return frame.len().min(usize::try_from(a).expect("small")),
                other => panic!("{other:#x} is no instruction of ours"),
            };
            let Some(value) = loaded else { return 0 };
            a = value;
        }
    }

    fn takes(program: &[Instruction], frame: &[u8], packet_type: u32) -> bool {
        taken(program, frame, packet_type) == frame.len()
    }

    fn frame(to: Ipv6Addr, port: u16) -> Vec<u8> {
        let mut frame = vec![0; 80];
        if let Some(to) = to.to_ipv4_mapped() {
            frame[12..14].copy_from_slice(&[8, 0]);
            (frame[14], frame[23]) = (0x45, 17);
            frame[20] = 0x40;
            frame[30..34].copy_from_slice(&to.octets());
            frame[36..38].copy_from_slice(&port.to_be_bytes());
        } else {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[20] = 17;
            frame[38..54].copy_from_slice(&to.octets());
            frame[56..58].copy_from_slice(&port.to_be_bytes());
        }
        frame
    }

    #[test]
    fn only_roce_frames_to_own_addresses_are_accepted() {
        let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
        let ours = ["::ffff:10.0.0.1", "::ffff:10.0.0.2", "fd00::1", "fd00::2"].map(address);
        let others = ["::ffff:10.0.0.3", "fd00::3", "fd01::1", "fd00::1:0:0:1"].map(address);
        let program = program(&kind::by_ip(&ours.map(Into::into)), Share::Ring, false);
        for to in ours {
            let good = frame(to, 4791);
            assert!(takes(&program, &good, TO_US), "{to}");
            assert!(!takes(&NOTHING, &good, TO_US), "{to}");
            assert!(!takes(&program, &good, PACKET_OUTGOING), "{to}: sent by this host");
            assert!(!takes(&program, &frame(to, 4790), TO_US), "{to}: another port");
            let mut tcp = good.clone();
            tcp[if to.to_ipv4_mapped().is_some() { 23 } else { 20 }] = 6;
            assert!(!takes(&program, &tcp, TO_US), "{to}: TCP");
            assert!(!takes(&program, &good[..30], TO_US), "{to}: cut off");
        }
        for to in others {
            assert!(!takes(&program, &frame(to, 4791), TO_US), "{to}");
        }
        for flags in [0x20, 0x00] {
            let mut fragment = frame(ours[0], 4791);
            (fragment[20], fragment[21]) = (flags, u8::from(flags == 0));
            assert!(!takes(&program, &fragment, TO_US), "a fragment");
        }
        assert!(!takes(&program, &[0; 60], TO_US), "no IP");
    }

    #[test]
    fn frames_to_other_hosts_are_not_accepted() {
        let [ours, others] = [1, 2].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        let ip: Ipv6Addr = "fd00::1".parse().expect("an address");
        let vlan = FilterAddress { ip: "fd00::2".parse().expect("one"), mac: Some(others) };
        let own = FilterAddress { ip, mac: Some(ours) };
        let mut frame = frame(ip, 4791);
        for (addresses, to, is_taken) in [
            (&[own][..], others, false),
            (&[own, vlan], others, true),
            (&[vlan, own], MacAddr([2, 0, 0, 0, 1, 2]), false),
            (&[ip.into()], others, true),
        ] {
            let program = program(&kind::by_ip(addresses), Share::Ring, false);
            frame[..6].copy_from_slice(&to.0);
            assert_eq!(takes(&program, &frame, PACKET_OTHERHOST), is_taken, "{addresses:?} {to}");
            assert!(takes(&program, &frame, TO_US), "as the kernel says");
        }
    }

    #[test]
    fn flow_control_is_accepted_only_if_requested() {
        let ours: Ipv6Addr = "::ffff:10.0.0.1".parse().expect("an address");
        let mut control = [0; 60];
        control[12..14].copy_from_slice(&pause::ETHERTYPE_MAC_CONTROL.to_be_bytes());
        for flow_control in [false, true] {
            let [ring, queue] = [Share::Ring, Share::Queue]
                .map(|share| program(&kind::by_ip(&[ours.into()]), share, flow_control));
            assert_eq!(takes(&ring, &control, TO_US), flow_control);
            assert!(!takes(&ring, &control, PACKET_OUTGOING), "sent by this host");
            assert_eq!(taken(&queue, &control, TO_US), 0);
            assert!(takes(&ring, &frame(ours, 4791), TO_US));
        }
    }

    #[test]
    fn a_full_filter_is_short_enough_for_the_kernel() {
        for first in [0xfd00_u128 << 112, 0xffff_0a00_0000] {
            let many: Vec<_> = (0..256).map(|at| Ipv6Addr::from_bits(first + at)).collect();
            assert_eq!(many.len(), ADDRESSES);
            let mac = |at: usize| MacAddr([2, 0, 0, 0, 0, u8::try_from(at).expect("a byte")]);
            let with_mac = |(at, &ip)| FilterAddress { ip, mac: Some(mac(at)) };
            let with_macs: Vec<_> = many.iter().enumerate().map(with_mac).collect();
            let program = program(&kind::by_ip(&with_macs), Share::Queue, true);
            assert!(program.len() <= 4096, "{}", program.len());
            for &to in &many {
                let mut long = frame(to, 4791);
                long.resize(2000, 0);
                assert!(takes(&program, &long, TO_US), "{to}");
            }
        }
    }

    #[test]
    fn long_frames_go_to_the_queue_and_leave_a_placeholder_in_the_ring() {
        for to in ["::ffff:10.0.0.1", "fd00::1"] {
            let to: Ipv6Addr = to.parse().expect("an address");
            let [ring, queue] = [Share::Ring, Share::Queue]
                .map(|share| program(&kind::by_ip(&[to.into()]), share, false));
            for (len, in_ring, in_queue) in [(80, 80, 0), (944, 944, 0), (945, 80, 945)] {
                let mut frame = frame(to, 4791);
                frame.resize(len, 0);
                let both = [taken(&ring, &frame, TO_US), taken(&queue, &frame, TO_US)];
                assert_eq!(both, [in_ring, in_queue], "{len} bytes to {to}");
            }
        }
    }
}
