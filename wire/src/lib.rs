//! RoCEv2 packets: parsing and writing. No state, no time, no I/O, no heap, no `unsafe` but for one
//! call in `icrc/fold.rs`.
//!
//! # Map of a packet
//!
//! ```text
//!  bytes  what                     file            covered by the ICRC
//!  14     Ethernet                 ethernet.rs     no
//!  0/4    802.1Q tag               vlan.rs         no
//!  20/40  IPv4 or IPv6             ipv4.rs ipv6.rs yes, hop-by-hop fields masked
//!  8      UDP, port 4791           udp.rs          yes, checksum masked
//!  12     BTH                      bth.rs          yes, byte 4 (FECN, BECN) masked
//!  0-28   extended headers         ext.rs          yes
//!  0-4096 payload                  payload.rs      yes
//!  0-3    pad                      packet.rs       yes
//!  4      ICRC                     icrc.rs         -
//!         Ethernet padding         packet.rs       no
//! ```
//!
//! The opcode decides which extended headers a packet carries: the table in [`opcode`]. Each
//! extended header has a file of its own with a figure at the top: [`reth`], [`aeth`], [`atomic`],
//! [`deth`], [`immdt`], [`ieth`], [`xrceth`], [`flush`].
//!
//! The payload of a NAK may be a selective acknowledgement: [`sack`].
//!
//! The payload of a packet to QP 1 is a management datagram: [`mad`] and, for communication
//! management, [`cm`].
//!
//! PFC and PAUSE frames, which are not RoCEv2 packets but stop them, are in [`pause`].
//!
//! # Receiving and sending
//!
//! [`Packet::parse`] reads a received frame, in one or two slices; [`Packet::icrc_valid`] checks
//! its ICRC. [`PacketView`] is the same for an engine, which uses few of the fields. To send, write
//! the transport headers with [`write_transport`] behind the space for the lower headers, then the
//! payload, and let [`FlowHeader::seal`] add everything around it.
//!
//! # Panic contract
//!
//! Bytes from the network never cause a panic: every `parse` returns a value or a [`ParseError`]
//! that names the field at fault. Functions that write (`write`, `seal`) panic if the *caller's*
//! buffer is too short; each documents this. Only [`Packet::emit`] returns an error instead,
//! because its length comes from the packet.
//!
//! # Adding a header
//!
//! 1. A file with the figure, a value struct, a private `#[repr(C)]` view in network byte order and
//!    the two conversions between them; `fixed_header!` generates `LEN`, `parse`, `to_bytes` and
//!    `write` from these.
//! 2. A flag in [`Headers`] and a line in the list of `ext.rs`, at its place in the order of the
//!    packet.
//! 3. The opcodes that carry it, in the table of `opcode.rs`.
//! 4. A literal-bytes test in the file, and a fuzz entry in `fuzz/`.

#![no_std]
#![deny(unsafe_code)]

#[cfg(any(test, feature = "std"))]
extern crate std;

#[macro_use]
mod codec;

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod builder;
pub mod cm;
pub mod cnp;
pub mod deth;
pub mod ecn;
pub mod error;
pub mod ethernet;
pub mod ext;
pub mod flow;
pub mod flush;
pub mod icrc;
pub mod ids;
pub mod ieth;
pub mod immdt;
pub mod ipv4;
pub mod ipv6;
pub mod mac;
pub mod mad;
pub mod mark;
pub mod opcode;
pub mod packet;
pub mod pause;
pub mod payload;
mod pretty;
pub mod psn;
pub mod recovery;
pub mod reth;
pub mod sack;
pub mod udp;
pub mod vlan;
pub mod xrceth;

pub use aeth::{Aeth, CreditCode, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use builder::{write_extended, write_transport};
pub use cm::{CmMad, CmMessage};
pub use deth::Deth;
pub use ecn::Ecn;
pub use error::{EmitError, IcrcError, ParseError};
pub use ethernet::EthernetHeader;
pub use ext::{ExtHeaders, ExtView};
pub use flow::{Audience, FlowHeader, FlowSpec, IpAddresses};
pub use flush::{Feth, PlacementType, Selectivity};
pub use ids::{Key, Msn, PathMtu, Pkey, Qkey, Qpn};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use mac::MacAddr;
pub use mad::{MAD_LEN, MadError, MadHeader};
pub use mark::mark_ce;
pub use opcode::{Headers, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Transport};
pub use packet::{IpHeader, Packet, PacketView};
pub use pause::{FlowControl, FlowControlFrame};
pub use payload::Payload;
pub use psn::Psn;
pub use recovery::{Recovered, Recovery};
pub use reth::Reth;
pub use sack::Sack;
pub use udp::{ROCE_PORT, UdpHeader};
pub use vlan::VlanTag;
pub use xrceth::XrcEth;
