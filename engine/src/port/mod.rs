//! Ports: receive and transmit Ethernet frames, without any protocol knowledge.
//!
//! A [`Port`] moves bursts of Ethernet frames for one core. [`contract`] defines the trait,
//! [`super_frame`] what super-frames are, and [`registry`] lists the kinds of port that a device
//! opens:
//! - [`af_xdp`]: AF_XDP sockets on every receive queue of an interface,
//! - [`packet`]: packet sockets on any interface, without root,
//! - [`udp`]: UDP sockets on any interface, without any privilege,
//! - [`dpdk`]: any device that DPDK drives,
//! - [`daemon`]: a port that another process owns, for its clients.
//!
//! Tests and the fabric simulator use [`shm`], rings in shared memory. Two wrappers go around any
//! port: [`fault`] (seeded loss, duplication, reordering, corruption) and [`pcap`] (captures what
//! crosses the port).

pub mod af_xdp;
mod classic_bpf;
pub mod contract;
pub mod daemon;
pub mod dpdk;
pub mod ethtool;
pub mod fault;
mod headers;
pub mod kind;
pub mod packet;
mod pages;
pub mod pcap;
pub mod registry;
pub mod shm;
mod socket;
pub mod super_frame;
pub mod udp;

pub use contract::{Port, PortAttributes, PortStats, Priority, RX_BURST, RxFrame};
