//! rsockets: the calls of sockets, over RDMA.
//!
//! | question | file |
//! |---|---|
//! | what does this byte mean? | `protocol.rs` |
//! | when may what be sent? | `stream.rs`, a value |
//! | who posts it, from which memory? | `link.rs`, `queues.rs`, `memory.rs` |
//! | who connects? | `connecting.rs`, through `identifier.rs`; `service.rs` is the thread that is told |
//! | what does a call do, and when does it wait? | `socket.rs`, `transfer.rs`, `mapping.rs`; of datagrams `datagram.rs` |
//! | how is a program told that a socket is ready? | `poll.rs`, `wait.rs` |
//! | what can be set? | `options.rs`; by the administrator: `configuration.rs` |

use std::ffi::c_int;
use std::os::fd::RawFd;

use datagram::Datagram;
use socket::StreamSocket;
use wait::Awaited;

mod address;
mod calls;
mod configuration;
mod connecting;
mod datagram;
mod gather;
mod identifier;
mod link;
mod mapping;
mod memory;
mod options;
mod poll;
mod port;
mod protocol;
mod queues;
mod service;
mod socket;
mod stream;
mod table;
mod transfer;
mod udp;
mod verbs;
mod wait;

/// A socket of either kind.
#[derive(Debug)]
enum Socket {
    Stream(Box<StreamSocket>),
    Datagram(Box<Datagram>),
}

impl Socket {
    /// Its descriptor.
    fn fd(&self) -> RawFd {
        match self {
            Self::Stream(socket) => socket.fd(),
            Self::Datagram(socket) => socket.fd(),
        }
    }

    /// Does something with its lock held.
    fn with<T>(&self, act: impl FnOnce(&mut dyn Awaited) -> T) -> T {
        match self {
            Self::Stream(socket) => act(&mut *socket.lock()),
            Self::Datagram(socket) => act(&mut *socket.lock()),
        }
    }

    /// The stream that it must be.
    fn stream(&self) -> Result<&StreamSocket, c_int> {
        match self {
            Self::Stream(socket) => Ok(socket),
            Self::Datagram(_) => Err(libc::EOPNOTSUPP),
        }
    }
}
