//! A bridge between two interfaces in the kernel: an XDP program on each sends every frame out of
//! the other, except the RoCE frames to watched QPs, which the kernel's packet sockets receive.

use super::bpf::{Hook, Link, Map, MapKind, Program};
use super::config::XdpMode;
use super::error::AfXdpError;
use super::filter;
use super::interface::Interface;
use super::program;

/// Maximum number of watched QPs.
const QPS: u32 = 4096;
/// Stands for all QPs: no packet has it.
const ALL: u32 = 0;

/// A bridge between two interfaces. The programs are detached when it is dropped or when the
/// process ends.
#[derive(Debug)]
pub struct Bridge {
    watched: Map<u32, u32>,
    /// The programs on both interfaces.
    _links: [Link; 2],
}

impl Bridge {
    /// Opens a bridge between two interfaces of the caller's network namespace. At first all RoCE
    /// frames are left to the packet sockets.
    ///
    /// In native mode both drivers must be able to send redirected frames; on a veth the program of
    /// the other end too.
    ///
    /// # Errors
    /// An interface does not exist or has a program, or the kernel refuses.
    pub fn open(interfaces: [&str; 2], mode: XdpMode) -> Result<Self, AfXdpError> {
        let made = |e| AfXdpError::system("create the XDP program's maps", e);
        let watched = Map::create(MapKind::Hash, "feroce_watched", QPS).map_err(made)?;
        watched.insert(ALL, 1).map_err(made)?;
        let [one, other] = interfaces;
        let (one, other) = (Interface::query(one)?, Interface::query(other)?);
        let attach = |on: &Interface, peer: &Interface| {
            let peer = i32::try_from(peer.index).expect("the kernel counts from 1");
            let text = program::bridge(watched.fd(), peer);
            let program = Program::load(Hook::Xdp, &text, &filter::program_name_of_this_process());
            let program = program.map_err(AfXdpError::load)?;
            filter::attach(&program, on, mode).map(|(link, _)| link)
        };
        let links = [attach(&one, &other)?, attach(&other, &one)?];
        Ok(Self { watched, _links: links })
    }

    /// Leaves all RoCE frames to the packet sockets, or only those to the QPs that are watched.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch_all(&self, all: bool) -> Result<(), AfXdpError> {
        let done = if all { self.watched.insert(ALL, 1) } else { self.watched.remove(ALL) };
        done.map_err(|e| AfXdpError::system("change the XDP program's map", e))
    }

    /// Leaves the frames to a QP to the packet sockets, or no longer.
    ///
    /// # Errors
    /// The kernel refuses: 4095 QPs are watched already.
    pub fn watch(&self, qpn: u32, watched: bool) -> Result<(), AfXdpError> {
        let key = program::watched_key(qpn);
        let done = if watched { self.watched.insert(key, 1) } else { self.watched.remove(key) };
        done.map_err(|e| AfXdpError::system("change the XDP program's map", e))
    }
}
