//! Keeps the kernel's stack out of what the port's sockets have taken: a program on the interface's ingress, behind the
//! packet sockets and ahead of the stack, drops these frames.
//!
//! Without it the stack routes each frame to the sockets that hold UDP port 4791 ([`super::holder`]), which drop it too;
//! that takes a quarter of what a frame costs, on the sender's core if the link is a veth.

use std::io;
use std::net::Ipv6Addr;

use super::super::af_xdp::bpf::{Hook, Link, Map, MapKind, Program};
use super::super::af_xdp::program;
use super::config::ADDRESSES;

/// The attached program. Dropping it, or the end of the process, detaches.
#[derive(Debug)]
pub(super) struct Ingress {
    addresses: Map<[u8; 16], u32>,
    _program: Program,
    _link: Link,
}

impl Ingress {
    /// Attaches the program to the interface with that index; it drops nothing yet.
    ///
    /// # Errors
    /// What the kernel answers: it must be Linux 6.6 or later, and wants CAP_BPF and CAP_NET_ADMIN in the initial user
    /// namespace.
    pub fn attach(interface: u32) -> io::Result<Self> {
        let entries = u32::try_from(ADDRESSES).expect("some hundreds");
        let addresses = Map::create(MapKind::Hash, "feroce_stack", entries)?;
        let text = program::drop_behind_sockets(addresses.fd());
        let name = format!("feroce_{}", std::process::id());
        let program = Program::load(Hook::Ingress, &text, &name).map_err(|error| error.source)?;
        let link = program.attach_with(interface, 0)?;
        Ok(Self { addresses, _program: program, _link: link })
    }

    /// Drops what is for `address`; nothing changes if it is known.
    pub fn add(&self, address: Ipv6Addr) -> io::Result<()> {
        self.addresses.insert(address.octets(), 1)
    }

    /// Leaves what is for `address` to the stack; nothing changes if it is unknown.
    pub fn remove(&self, address: Ipv6Addr) -> io::Result<()> {
        self.addresses.remove(address.octets())
    }
}
