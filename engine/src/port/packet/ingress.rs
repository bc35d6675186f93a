//! Keeps frames that the port's sockets have received from the kernel's stack. A BPF program on the
//! ingress of the interface, after the packet sockets and before the stack, drops these frames.
//!
//! Without the program the stack routes each frame to the sockets that hold UDP port 4791
//! ([`super::holder`]), which drop it. That takes a quarter of the cost of a frame, on the sender's
//! core if the link is a veth.

use std::io;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use feroce_wire::MacAddr;

use super::super::af_xdp::bpf::{Attached, Hook, Map, MapKind, Program};
use super::super::af_xdp::program::{self, Destination};
use super::config::ADDRESSES;

/// The attached program. It is detached when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct Ingress {
    addresses: Map<[u8; 16], Destination>,
    attached: Attached,
    /// Another process has detached the program, and the kernel does not attach it again.
    is_lost: AtomicBool,
}

impl Ingress {
    /// Attaches the program to the interface with index `interface`. It drops nothing until
    /// addresses are added.
    ///
    /// # Errors
    /// The kernel refuses. It must be Linux 6.6 or later and requires CAP_BPF and CAP_NET_ADMIN in
    /// the initial user namespace.
    pub fn attach(interface: u32) -> io::Result<Self> {
        let entries = u32::try_from(ADDRESSES).expect("some hundreds");
        let addresses = Map::create(MapKind::Hash, "feroce_stack", entries)?;
        let text = program::drop_behind_sockets(addresses.fd());
        let name = format!("feroce_{}", std::process::id());
        let program = Program::load(Hook::Ingress, &text, &name).map_err(|error| error.source)?;
        let link = program.attach_with(interface, 0)?;
        let attached = Attached::new(program, interface, 0, link);
        Ok(Self { addresses, attached, is_lost: AtomicBool::new(false) })
    }

    /// Attaches the program again if another process has detached it. Returns true then. The port
    /// also works without the program.
    pub fn restore(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        self.attached.restore().unwrap_or_else(|error| {
            tracing::warn!(%error, "another program detached the program on the ingress: the \
                kernel's stack also gets the frames of the port");
            self.is_lost.store(true, Ordering::Relaxed);
            false
        })
    }

    /// Drops frames to `address` from now on, if they are for the Ethernet address `mac` or for a
    /// group; `None`: for any Ethernet address.
    pub fn add(&self, address: Ipv6Addr, mac: Option<MacAddr>) -> io::Result<()> {
        self.addresses.insert(address.octets(), program::destination(mac))
    }

    /// Passes frames to `address` to the stack again. Has no effect if the address was not added.
    pub fn remove(&self, address: Ipv6Addr) -> io::Result<()> {
        self.addresses.remove(address.octets())
    }
}
