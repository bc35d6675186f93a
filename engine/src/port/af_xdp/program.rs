//! The XDP program that selects the frames of the port, as a table of instructions, and the related
//! program of the packet port, which drops these frames after the packet sockets.
//!
//! The program selects UDP datagrams to port 4791 whose destination address is in the address map,
//! in frames to the Ethernet address that the map has for it or to an Ethernet group:
//! in IPv4 (without options, not a later fragment) or IPv6 (without extension headers), untagged or
//! with one VLAN tag (0x8100). It redirects them to the AF_XDP socket of the receive queue on which
//! they arrived. It also redirects flow-control frames (EtherType 0x8808, untagged) if the
//! configuration requests them. All other frames stay with the kernel: ARP, neighbour discovery,
//! TCP, frames with service tags (0x88a8, not used by RoCE), and frames to other addresses.
//!
//! The program is written in a small assembler, so neither building nor running needs a BPF
//! compiler. A bounds check against `data_end` precedes every access, as the verifier requires. A
//! frame whose headers are not in the linear part goes to the kernel.
//!
//! Every access to the frame is aligned to its size. Kernels for CPUs without efficient unaligned
//! access refuse the program otherwise; their verifier assumes that the frame begins 2 bytes behind
//! an aligned address (`NET_IP_ALIGN`), so that the IP header is aligned to 4 bytes.
//!
//! Source: the kernel's `Documentation/bpf/standardization/instruction-set.rst` and
//! `uapi/linux/bpf.h`.

use std::os::fd::RawFd;

use feroce_wire::MacAddr;
use feroce_wire::pause::ETHERTYPE_MAC_CONTROL;

use Label::*;
use Op::*;
use Register::*;
use Width::*;

/// The result of the program for a frame: values of the kernel's `enum xdp_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Action {
    /// Discard the frame. Tests use it to distinguish selected frames from passed ones.
    #[cfg(test)]
    Drop = 1,
    /// Pass the frame to the kernel's stack.
    Pass = 2,
}

/// An encoded BPF instruction (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(in crate::port) struct Instruction {
    code: u8,
    /// Destination in the low four bits, source in the high four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Register {
    /// Result of a call and of the program.
    R0 = 0,
    /// First argument of a call; the context on entry. Calls overwrite R1 to R5.
    R1,
    R2,
    R3,
    R4,
    R5,
    /// Preserved by calls, as R7.
    R6,
    R7,
    /// The end of the stack frame.
    Stack = 10,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Label {
    Network,
    Ipv6,
    Lookup,
    Ours,
    Kernel,
}

const LABELS: usize = Kernel as usize + 1;

/// An instruction as written in the table below. The destination comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// A jump target; not an instruction.
    At(Label),
    /// `dst = src`, 64 bits.
    Move(Register, Register),
    /// `dst = value`, sign-extended.
    Set(Register, i32),
    /// `dst += value`.
    Add(Register, i32),
    /// `dst &= value`.
    And(Register, i32),
    /// `dst = *(src + offset)`.
    Load(Width, Register, Register, i16),
    /// `*(dst + offset) = src`.
    Store(Width, Register, i16, Register),
    /// `*(dst + offset) = value`.
    StoreValue(Width, Register, i16, i32),
    /// `dst = map`, by its descriptor; takes two instructions.
    Map(Register, RawFd),
    /// Jump to the label if `dst > src`, unsigned.
    IfAbove(Register, Register, Label),
    /// Jump to the label if `dst == value`.
    IfEqual(Register, i32, Label),
    /// Jump to the label if `dst != value`.
    IfNot(Register, i32, Label),
    /// Jump to the label if `dst != src`.
    IfDifferent(Register, Register, Label),
    Jump(Label),
    /// Call a kernel helper.
    Call(Helper),
    /// Return R0.
    Exit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Helper {
    MapLookup = 1,
    Redirect = 23,
    RedirectMap = 51,
}

/// The value that a native 16-bit load gives for the field value `value`.
const fn network(value: u16) -> i32 {
    value.to_be() as i32
}

const ETHERNET: i16 = 14;
/// The bit of the first byte of an Ethernet address that marks a group.
const GROUP_BIT: i32 = 1;
const VLAN_TAG: i32 = 4;
const UDP: i32 = 17;
const ROCE_V2_PORT: i32 = network(4791);
/// Version 4 and a header of five words, that is, no options.
const IPV4_NO_OPTIONS: i32 = 0x45;
const FRAGMENT_OFFSET: i32 = network(0x1fff);
/// Bytes 8..12 of an IPv4-mapped IPv6 address, `00 00 ff ff`, as a native word.
const MAPPED_PREFIX: i32 = i32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Offsets within the packet from the Ethernet header on, in an untagged frame.
const ETHERTYPE: i16 = 12;
const TAGGED_ETHERTYPE: i16 = 16;
const IPV4_END: i32 = 14 + 20 + 8;
const IPV6_END: i32 = 14 + 40 + 8;
/// Length of a BTH, and the offset in it of the word with the QP number.
const BTH: i32 = 12;
const BTH_QPN: i16 = 4;
/// The QP number in this word, as a native word.
const QPN_MASK: i32 = i32::from_ne_bytes([0, 0xff, 0xff, 0xff]);

/// Offsets of the frame's start and end in the context of a program.
#[derive(Debug, Clone, Copy)]
struct Context {
    data: i16,
    data_end: i16,
}

/// `struct xdp_md`.
const XDP: Context = Context { data: 0, data_end: 4 };
const RX_QUEUE_INDEX: i16 = 16;

/// `struct __sk_buff`.
const SKB: Context = Context { data: 76, data_end: 80 };
/// Results of a program on the ingress of an interface (`enum tcx_action_base`).
const INGRESS_NEXT: i32 = -1;
const INGRESS_DROP: i32 = 2;

/// Value of the address map: the Ethernet address of the frames to the address, and 1 if it is
/// checked.
pub(in crate::port) type Destination = [u8; 8];
/// Offset of the last part of a [`Destination`].
const IS_CHECKED: i16 = 6;

/// The value for frames to `mac`; `None`: to every Ethernet address.
pub(in crate::port) fn destination(mac: Option<MacAddr>) -> Destination {
    let MacAddr([a, b, c, d, e, f]) = mac.unwrap_or_default();
    [a, b, c, d, e, f, u8::from(mac.is_some()), 0]
}

/// The maps of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    /// Hash map from an address of 16 bytes to a [`Destination`].
    pub addresses: RawFd,
    /// Map from receive queue to AF_XDP socket (XSKMAP).
    pub sockets: RawFd,
}

/// The XDP program on `maps`. `flow_control`: also redirects flow-control frames. `no_socket` is
/// the result for a selected frame whose queue has no socket.
pub(super) fn filter(maps: Maps, flow_control: bool, no_socket: Action) -> Vec<Instruction> {
    // Redirect to the socket of this receive queue.
    let ours = [
        Map(R1, maps.sockets),
        Load(Word, R2, R6, RX_QUEUE_INDEX),
        Set(R3, no_socket as i32),
        Call(Helper::RedirectMap),
        Exit,
    ];
    let others = [IfEqual(R5, network(ETHERTYPE_MAC_CONTROL), Ours)];
    let others = if flow_control { &others[..] } else { &[] };
    program(XDP, maps.addresses, others, &ours, Action::Pass as i32)
}

/// The XDP program of a bridge: sends every frame out of the interface `peer`, except RoCE frames
/// (IPv4 without options, IPv6 without extension headers) to the QPs in `watched`, which go on to
/// the kernel and its packet sockets. `watched` maps QP numbers, as in packets, to anything; the QP
/// 0 in it stands for all.
pub(super) fn bridge(watched: RawFd, peer: i32) -> Vec<Instruction> {
    let look_up = [Map(R1, watched), Move(R2, Stack), Add(R2, -4), Call(Helper::MapLookup)];
    // R4 is the end of the UDP header.
    let qpn = |offset| [Add(R4, BTH), IfAbove(R4, R3, Kernel), Load(Word, R5, R2, offset)];
    let headers =
        roce_headers(XDP, &[], &qpn(ETHERNET + 28 + BTH_QPN), &qpn(ETHERNET + 48 + BTH_QPN));
    let table = [
        &headers[..],
        &[And(R5, QPN_MASK), Store(Word, Stack, -4, R5)],
        &look_up,
        &[IfNot(R0, 0, Ours), StoreValue(Word, Stack, -4, 0)],
        &look_up,
        &[
            IfNot(R0, 0, Ours),
            At(Kernel),
            Set(R1, peer),
            Set(R2, 0),
            Call(Helper::Redirect),
            Exit,
            At(Ours),
            Set(R0, Action::Pass as i32),
            Exit,
        ],
    ];
    assemble(&table.concat())
}

/// The key of [`bridge`]'s map for a QP number: the word of the BTH that holds it, masked.
pub(super) fn watched_key(qpn: u32) -> u32 {
    u32::from_ne_bytes(qpn.to_be_bytes()) & QPN_MASK.cast_unsigned()
}

/// The program for the ingress of an interface (`tcx`), after the packet sockets and before the
/// kernel's stack. It drops RoCE frames to `addresses`.
pub(in crate::port) fn drop_behind_sockets(addresses: RawFd) -> Vec<Instruction> {
    program(SKB, addresses, &[], &[Set(R0, INGRESS_DROP), Exit], INGRESS_NEXT)
}

/// The destination address as the key of the lookup, at the end of the stack.
const KEY_V4: [Op; 4] = [
    StoreValue(Double, Stack, -16, 0),
    StoreValue(Word, Stack, -8, MAPPED_PREFIX),
    Load(Word, R5, R2, ETHERNET + 16),
    Store(Word, Stack, -4, R5),
];

/// As [`KEY_V4`], for IPv6. Words, because 8 bytes would not be aligned behind a VLAN tag.
const KEY_V6: [Op; 8] = [
    Load(Word, R5, R2, ETHERNET + 24),
    Store(Word, Stack, -16, R5),
    Load(Word, R5, R2, ETHERNET + 28),
    Store(Word, Stack, -12, R5),
    Load(Word, R5, R2, ETHERNET + 32),
    Store(Word, Stack, -8, R5),
    Load(Word, R5, R2, ETHERNET + 36),
    Store(Word, Stack, -4, R5),
];

/// R0 is the destination in the map. A frame to an individual Ethernet address that is not this one
/// is for another host: an interface that is promiscuous receives such frames.
const DESTINATION: [Op; 14] = [
    Load(Byte, R1, R0, IS_CHECKED),
    IfEqual(R1, 0, Ours),
    Load(Byte, R1, R7, 0),
    And(R1, GROUP_BIT),
    IfNot(R1, 0, Ours),
    Load(Half, R1, R0, 0),
    Load(Half, R2, R7, 0),
    IfDifferent(R1, R2, Kernel),
    Load(Half, R1, R0, 2),
    Load(Half, R2, R7, 2),
    IfDifferent(R1, R2, Kernel),
    Load(Half, R1, R0, 4),
    Load(Half, R2, R7, 4),
    IfDifferent(R1, R2, Kernel),
];

/// The beginning of a program: goes to `Kernel` unless the frame is UDP to port 4791, otherwise
/// runs `v4` or `v6` and continues behind this table. `also` first checks the EtherType of untagged
/// frames, which is in R5. R6 is the context, R7 the start of the frame. The offsets from R2 are
/// those of an untagged frame, R4 is the end of the UDP header, and R3 that of the frame.
fn roce_headers(context: Context, also: &[Op], v4: &[Op], v6: &[Op]) -> Vec<Op> {
    let ethernet = [
        Move(R6, R1),
        Load(Word, R2, R1, context.data),
        Load(Word, R3, R1, context.data_end),
        // Ethernet. R2 is the packet, R3 its end, R4 the end of the bytes to be read. R7 stays the
        // start of the frame.
        Move(R7, R2),
        Move(R4, R2),
        Add(R4, 14),
        IfAbove(R4, R3, Kernel),
        Load(Half, R5, R2, ETHERTYPE),
    ];
    let to_v4 = [
        IfNot(R5, network(0x8100), Network),
        // One tag: advance the start of the packet, so that the offsets below apply.
        Add(R4, VLAN_TAG),
        IfAbove(R4, R3, Kernel),
        Load(Half, R5, R2, TAGGED_ETHERTYPE),
        Add(R2, VLAN_TAG),
        // IPv4 or IPv6, UDP to port 4791.
        At(Network),
        IfEqual(R5, network(0x86dd), Ipv6),
        IfNot(R5, network(0x0800), Kernel),
        Move(R4, R2),
        Add(R4, IPV4_END),
        IfAbove(R4, R3, Kernel),
        Load(Byte, R5, R2, ETHERNET),
        IfNot(R5, IPV4_NO_OPTIONS, Kernel),
        Load(Half, R5, R2, ETHERNET + 6),
        And(R5, FRAGMENT_OFFSET),
        IfNot(R5, 0, Kernel),
        Load(Byte, R5, R2, ETHERNET + 9),
        IfNot(R5, UDP, Kernel),
        Load(Half, R5, R2, ETHERNET + 22),
        IfNot(R5, ROCE_V2_PORT, Kernel),
    ];
    let to_v6 = [
        Jump(Lookup),
        At(Ipv6),
        Move(R4, R2),
        Add(R4, IPV6_END),
        IfAbove(R4, R3, Kernel),
        Load(Byte, R5, R2, ETHERNET + 6),
        IfNot(R5, UDP, Kernel),
        Load(Half, R5, R2, ETHERNET + 42),
        IfNot(R5, ROCE_V2_PORT, Kernel),
    ];
    [&ethernet, also, &to_v4, v4, &to_v6, v6, &[At(Lookup)]].concat()
}

/// The program that continues with `ours` for a RoCE frame to one of `addresses` and returns
/// `others` for all other frames. `also` first checks the EtherType of untagged frames, which is in
/// R5.
fn program(
    context: Context,
    addresses: RawFd,
    also: &[Op],
    ours: &[Op],
    others: i32,
) -> Vec<Instruction> {
    let headers = roce_headers(context, also, &KEY_V4, &KEY_V6);
    let lookup = [
        // Look up the destination address.
        Map(R1, addresses),
        Move(R2, Stack),
        Add(R2, -16),
        Call(Helper::MapLookup),
        IfEqual(R0, 0, Kernel),
    ];
    let ends = [At(Kernel), Set(R0, others), Exit];
    let table = [&headers[..], &lookup, &DESTINATION, &[At(Ours)], ours, &ends];
    assemble(&table.concat())
}

/// Number of instructions of `op`.
const fn size(op: Op) -> usize {
    match op {
        At(_) => 0,
        Map(..) => 2,
        _ => 1,
    }
}

/// Encodes the table. The first pass finds the labels, the second one encodes.
fn assemble(table: &[Op]) -> Vec<Instruction> {
    let mut labels = [None; LABELS];
    let mut position = 0;
    for &op in table {
        if let At(label) = op {
            labels[label as usize] = Some(position);
        }
        position += size(op);
    }
    let mut program = Vec::with_capacity(position);
    for &op in table {
        encode(op, &labels, &mut program);
    }
    program
}

fn encode(op: Op, labels: &[Option<usize>; LABELS], program: &mut Vec<Instruction>) {
    // A jump offset counts from the next instruction.
    let next = program.len() + 1;
    let to = |label: Label| {
        let target = labels[label as usize].expect("the table defines every label");
        i16::try_from(target - next).expect("the table is short and jumps forward only")
    };
    let mut emit = |code: u8, dst: Register, src: u8, offset: i16, immediate: i32| {
        program.push(Instruction { code, registers: (src << 4) | dst as u8, offset, immediate });
    };
    match op {
        At(_) => {}
        Move(dst, src) => emit(0xbf, dst, src as u8, 0, 0),
        Set(dst, value) => emit(0xb7, dst, 0, 0, value),
        Add(dst, value) => emit(0x07, dst, 0, 0, value),
        And(dst, value) => emit(0x57, dst, 0, 0, value),
        Load(width, dst, src, offset) => emit(0x61 | width as u8, dst, src as u8, offset, 0),
        Store(width, dst, offset, src) => emit(0x63 | width as u8, dst, src as u8, offset, 0),
        StoreValue(width, dst, offset, value) => emit(0x62 | width as u8, dst, 0, offset, value),
        Map(dst, fd) => {
            const BY_DESCRIPTOR: u8 = 1; // BPF_PSEUDO_MAP_FD, instead of a source register
            emit(0x18, dst, BY_DESCRIPTOR, 0, fd);
            emit(0x00, R0, 0, 0, 0);
        }
        IfAbove(dst, src, label) => emit(0x2d, dst, src as u8, to(label), 0),
        IfEqual(dst, value, label) => emit(0x15, dst, 0, to(label), value),
        IfNot(dst, value, label) => emit(0x55, dst, 0, to(label), value),
        IfDifferent(dst, src, label) => emit(0x5d, dst, src as u8, to(label), 0),
        Jump(label) => emit(0x05, R0, 0, to(label), 0),
        Call(helper) => emit(0x85, R0, 0, 0, helper as i32),
        Exit => emit(0x95, R0, 0, 0, 0),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::super::bpf::{Hook, Map, MapKind, Program};
    use super::super::error::AfXdpError;
    use super::*;
    use crate::log::lines_of;

    #[test]
    fn encodes_as_the_kernel_documents_it() {
        let labels = {
            let mut labels = [None; LABELS];
            labels[Kernel as usize] = Some(5);
            labels
        };
        let encoded = |op| {
            let mut program = Vec::new();
            encode(op, &labels, &mut program);
            program.iter().map(|i| (i.code, i.registers, i.offset, i.immediate)).collect::<Vec<_>>()
        };
        assert_eq!(encoded(Move(R6, R1)), [(0xbf, 0x16, 0, 0)]); // BPF_ALU64 | BPF_MOV | BPF_X
        // BPF_LDX | BPF_H | BPF_MEM
        assert_eq!(encoded(Load(Half, R5, R2, 12)), [(0x69, 0x25, 12, 0)]);
        // BPF_STX | BPF_DW
        assert_eq!(encoded(Store(Double, Stack, -16, R5)), [(0x7b, 0x5a, -16, 0)]);
        // BPF_ST | BPF_W
        assert_eq!(encoded(StoreValue(Word, Stack, -8, 7)), [(0x62, 0x0a, -8, 7)]);
        // BPF_JMP | BPF_JGT | BPF_X
        assert_eq!(encoded(IfAbove(R4, R3, Kernel)), [(0x2d, 0x34, 4, 0)]);
        // BPF_JMP | BPF_JNE | BPF_X
        assert_eq!(encoded(IfDifferent(R1, R2, Kernel)), [(0x5d, 0x21, 4, 0)]);
        // BPF_LD | BPF_DW, map fd
        assert_eq!(encoded(Map(R1, 9)), [(0x18, 0x11, 0, 9), (0, 0, 0, 0)]);
    }

    #[test]
    fn a_label_refers_to_the_next_instruction() {
        let program = assemble(&[Jump(Kernel), Map(R1, 3), At(Kernel), Exit]);
        assert_eq!(program.len(), 4);
        assert_eq!(program[0].offset, 2, "across the two halves of the map instruction");
    }

    /// A UDP datagram to port 4791 of 10.0.0.1 or fd00::1, with the VLAN tags `tags`.
    fn frame(tags: &[u16], version: u8) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0x60, 0x64]);
        }
        if version == 4 {
            frame.extend([
                0x08, 0x00, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1,
            ]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 17, 64]);
            for last in [2, 1] {
                frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
            }
        }
        frame.extend([0xc0, 0, 0x12, 0xb7, 0, 24, 0, 0]);
        frame.extend([0; 16]);
        frame
    }

    /// `frame` with one byte changed; `offset` counts from the end of the Ethernet header.
    fn with(mut frame: Vec<u8>, offset: usize, value: u8) -> Vec<u8> {
        frame[14 + offset] = value;
        frame
    }

    type Addresses = Map<[u8; 16], Destination>;
    type Sockets = Map<u32, u32>;

    /// The maps of a program; `None` without the privilege to load programs.
    fn maps() -> Option<(Addresses, Sockets)> {
        let addresses = match Map::create(MapKind::Hash, "test", 4) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                feroce_test_skip::skip("loading an XDP program needs root");
                return None;
            }
            other => other.expect("a map"),
        };
        Some((addresses, Map::create(MapKind::Xsk, "test", 1).expect("a map")))
    }

    /// Returns a check that is true if the XDP program selects a frame. The check also asserts that
    /// the ingress program drops the same frames.
    fn both_programs(addresses: &Addresses, sockets: &Sockets) -> impl Fn(&[u8]) -> bool {
        // There is no socket, so a selected frame gets the result for that case, here `Drop`.
        let maps = Maps { addresses: addresses.fd(), sockets: sockets.fd() };
        let text = filter(maps, false, Action::Drop);
        let behind = drop_behind_sockets(addresses.fd());
        let load = |hook, text: &[_]| {
            Program::load(hook, text, "feroce_test").expect("the verifier agrees")
        };
        let (program, behind) = (load(Hook::Xdp, &text), load(Hook::Ingress, &behind));
        move |frame: &[u8]| {
            let taken = program.test_run(frame).expect("a run") == Action::Drop as u32;
            match behind.test_run(frame).map(u32::cast_signed) {
                Ok(answer) => {
                    assert_eq!(answer, if taken { INGRESS_DROP } else { INGRESS_NEXT });
                }
                // The frame is too short for the kernel's checks before the program runs.
                Err(error) => assert!(!taken && error.raw_os_error() == Some(libc::EINVAL)),
            }
            taken
        }
    }

    #[test]
    fn only_roce_to_own_addresses_is_selected() {
        let Some((addresses, sockets)) = maps() else { return };
        for address in ["::ffff:10.0.0.1", "fd00::1"] {
            let address: std::net::Ipv6Addr = address.parse().expect("an address");
            addresses.insert(address.octets(), destination(None)).expect("room");
        }
        let taken = both_programs(&addresses, &sockets);

        for tags in [&[][..], &[0x8100]] {
            for version in [4, 6] {
                let frame = frame(tags, version);
                assert!(taken(&frame), "tags {tags:x?}, IPv{version}");
                for length in 14..14 + 4 * tags.len() + if version == 4 { 28 } else { 48 } {
                    assert!(
                        !taken(&frame[..length]),
                        "tags {tags:x?}, IPv{version}, cut to {length} bytes"
                    );
                }
            }
        }
        let passed = [
            ("a service tag, IPv4", frame(&[0x88a8], 4)),
            ("a service tag, IPv6", frame(&[0x88a8], 6)),
            ("a service tag before a VLAN tag", frame(&[0x88a8, 0x8100], 4)),
            ("two VLAN tags", frame(&[0x8100, 0x8100], 4)),
            ("a VLAN tag before a service tag", frame(&[0x8100, 0x88a8], 6)),
            ("another ethertype", {
                let mut f = frame(&[], 4);
                f[12] = 0x88;
                f
            }),
            ("IPv4 options", with(frame(&[], 4), 0, 0x46)),
            ("a later fragment", with(frame(&[], 4), 7, 1)),
            ("a fragment far behind", with(frame(&[], 4), 6, 0x10)),
            ("TCP in IPv4", with(frame(&[], 4), 9, 6)),
            ("another IPv4 address", with(frame(&[], 4), 19, 2)),
            ("another port, IPv4", with(frame(&[], 4), 23, 0xb8)),
            ("another port's high byte", with(frame(&[], 4), 22, 0x13)),
            ("TCP in IPv6", with(frame(&[], 6), 6, 6)),
            ("a fragment header", with(frame(&[], 6), 6, 44)),
            ("another IPv6 address", with(frame(&[], 6), 39, 2)),
            ("another IPv6 prefix", with(frame(&[], 6), 24, 0xfe)),
            ("another port, IPv6", with(frame(&[], 6), 43, 53)),
        ];
        for (what, frame) in passed {
            assert!(!taken(&frame), "{what}");
        }
        assert!(taken(&with(frame(&[], 4), 6, 0x20)), "a first fragment");
        assert!(taken(&with(frame(&[], 4), 1, 0x03)), "congestion experienced");

        let gone: std::net::Ipv6Addr = "fd00::1".parse().expect("an address");
        addresses.remove(gone.octets()).expect("it was there");
        addresses.remove(gone.octets()).expect("removing twice is no error");
        assert!(!taken(&frame(&[], 6)), "an address removed from the map");
        assert!(taken(&frame(&[], 4)), "the other address stays");
    }

    #[test]
    fn a_bridge_passes_only_roce_to_watched_qps() {
        const REDIRECT: u32 = 4;
        if maps().is_none() {
            return;
        }
        let watched: Map<u32, u32> = Map::create(MapKind::Hash, "test", 4).expect("a map");
        let text = bridge(watched.fd(), 1);
        Program::load_aligned(Hook::Xdp, &text).expect("every access is aligned");
        let program = Program::load(Hook::Xdp, &text, "feroce_test").expect("the verifier agrees");
        let passed = |frame: &[u8]| match program.test_run(frame).expect("a run") {
            REDIRECT => false,
            other => {
                assert_eq!(other, Action::Pass as u32);
                true
            }
        };
        let all = 0;
        watched.insert(watched_key(0x12), 1).expect("room");
        for (tags, version) in [(&[][..], 4), (&[][..], 6), (&[0x8100][..], 4), (&[0x8100][..], 6)]
        {
            let bth = 14 + 4 * tags.len() + if version == 4 { 28 } else { 48 };
            let to = |qpn: u8| {
                let mut frame = frame(tags, version);
                frame[bth + 4] = 0xc0; // FECN and BECN, beside the QP number.
                frame[bth + 7] = qpn;
                frame
            };
            assert!(passed(&to(0x12)) && !passed(&to(0x13)), "tags {tags:x?}, IPv{version}");
            assert!(!passed(&to(0x12)[..bth + 11]), "too short for a BTH");
            watched.insert(all, 1).expect("room");
            assert!(passed(&to(0x13)), "tags {tags:x?}, IPv{version}");
            watched.remove(all).expect("it was there");
        }
        watched.insert(all, 1).expect("room");
        assert!(!passed(&with(frame(&[], 4), 9, 6)), "TCP");
        assert!(!passed(&with(frame(&[], 6), 43, 53)), "another port");
    }

    #[test]
    fn frames_to_the_ethernet_addresses_of_other_hosts_are_passed() {
        let Some((addresses, sockets)) = maps() else { return };
        let own = MacAddr([2, 0, 0, 0, 0, 7]);
        for address in ["::ffff:10.0.0.1", "fd00::1"] {
            let address: std::net::Ipv6Addr = address.parse().expect("an address");
            addresses.insert(address.octets(), destination(Some(own))).expect("room");
        }
        let taken = both_programs(&addresses, &sockets);
        for (tags, version) in [(&[][..], 4), (&[], 6), (&[0x8100], 4), (&[0x8100], 6)] {
            let mut frame = frame(tags, version);
            let mut to = |mac: [u8; 6]| {
                frame[..6].copy_from_slice(&mac);
                taken(&frame)
            };
            assert!(to(own.0) && to([0xff; 6]) && to([1, 0, 0x5e, 0, 0, 1]));
            for at in 0..6 {
                let mut other = own.0;
                other[at] ^= 0x40;
                assert!(!to(other), "{tags:x?}, IPv{version}: {}", MacAddr(other));
            }
        }
    }

    #[test]
    fn every_access_is_aligned() {
        let Some((addresses, sockets)) = maps() else { return };
        let maps = Maps { addresses: addresses.fd(), sockets: sockets.fd() };
        for (flow_control, no_socket) in
            [(false, Action::Pass), (true, Action::Pass), (false, Action::Drop)]
        {
            let text = filter(maps, flow_control, no_socket);
            Program::load_aligned(Hook::Xdp, &text).expect("aligned");
        }
        let behind = drop_behind_sockets(addresses.fd());
        Program::load_aligned(Hook::Ingress, &behind).expect("aligned");
    }

    #[test]
    fn a_refused_program_is_explained_in_one_line() {
        if maps().is_none() {
            return;
        }
        let unchecked = [Load(Word, R2, R1, XDP.data), Load(Byte, R0, R2, 0), Exit];
        let mut error = None;
        let log = lines_of(Level::DEBUG, || {
            error = Program::load(Hook::Xdp, &assemble(&unchecked), "feroce_test").err();
        });
        let error = error.expect("a read without a bounds check is refused");
        let reason = error.reason.clone().expect("the verifier gives a reason");
        assert!(reason.contains("outside of the packet") && !reason.contains('\n'), "{reason}");
        assert!(log.starts_with("test: debug: verifier: "), "{log}");
        assert!(log.contains(&format!("verifier: {reason}\n")), "{log}");
        assert!(log.contains("verifier: processed "), "{log}");

        let error = AfXdpError::load(error);
        assert!(matches!(error, AfXdpError::Rejected { .. }), "{error:?}");
        let line = error.to_string();
        assert!(line.contains(&format!("XDP program: {reason} (")), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }

    #[test]
    fn the_verifier_refuses_unaligned_accesses_on_request() {
        if maps().is_none() {
            return;
        }
        let load = |offset| {
            let table = [
                Load(Word, R2, R1, XDP.data),
                Load(Word, R3, R1, XDP.data_end),
                Move(R4, R2),
                Add(R4, IPV6_END),
                IfAbove(R4, R3, Kernel),
                Load(Word, R0, R2, offset),
                At(Kernel),
                Set(R0, Action::Pass as i32),
                Exit,
            ];
            Program::load_aligned(Hook::Xdp, &assemble(&table)).map_err(|error| error.reason)
        };
        load(ETHERNET).expect("aligned, with the 2 bytes before the frame");
        let reason = load(ETHERNET + 2).expect_err("not aligned").expect("a reason");
        assert!(reason.starts_with("misaligned packet access"), "{reason}");
    }

    #[test]
    fn flow_control_is_selected_only_if_requested() {
        let Some((addresses, sockets)) = maps() else { return };
        let maps = Maps { addresses: addresses.fd(), sockets: sockets.fd() };
        let control = feroce_wire::FlowControl::Pause { quanta: 1 };
        let src = feroce_wire::MacAddr([2, 0, 0, 0, 0, 1]);
        let pause = feroce_wire::FlowControlFrame { src, control }.to_bytes();
        let mut tagged = pause.to_vec();
        tagged.splice(12..12, [0x81, 0, 0x60, 0]);
        for flow_control in [false, true] {
            let text = filter(maps, flow_control, Action::Drop);
            let program = Program::load(Hook::Xdp, &text, "feroce_test").expect("it is verified");
            let taken =
                |frame: &[u8]| program.test_run(frame).expect("a run") == Action::Drop as u32;
            assert_eq!(taken(&pause), flow_control);
            assert!(!taken(&tagged) && !taken(&frame(&[], 4)));
        }
    }
}
