//! Marks on an interface that prove CAP_NET_RAW: packet sockets of an experimental EtherType.
//!
//! Only a process with this capability in the interface's network namespace can make a mark.
//! Everybody in that namespace sees the mark in `/proc/net/packet`, and the mark ends with the
//! process. The socket receives nothing.

use std::fs::File;
use std::io::{self, Read};

use super::socket::Socket;

/// The packet sockets of the calling thread's network namespace.
const SOCKETS: &str = "/proc/thread-self/net/packet";

/// EtherType of a mark whose process claims the interface. IEEE 802 reserves this number, and the
/// next one, for experiments: no driver or protocol of the kernel uses them.
const CLAIMING: u16 = 0x88b5;
/// EtherType of a mark whose process owns the interface, unless another process has such a mark.
const OWNING: u16 = 0x88b6;

/// Bytes that are read at once: more than the kernel returns, which is a page, some 60 sockets. At
/// the end of a part, the kernel skips a socket if another process closes an earlier one.
const PART: usize = 64 << 10;

/// Errors that say that this process may not make marks.
const NOT_PERMITTED: [i32; 3] = [libc::EPERM, libc::EACCES, libc::EAFNOSUPPORT];

/// A mark, until dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    socket: Socket,
    interface: u32,
    inode: u64,
}

impl Mark {
    /// Marks the interface with index `interface` as claimed by this process. `None` if this
    /// process lacks CAP_NET_RAW, or other processes could not see the mark.
    ///
    /// # Errors
    /// The system's error.
    pub fn claim(interface: u32) -> io::Result<Option<Self>> {
        let socket = match Socket::open() {
            Err((_, error))
                if error.raw_os_error().is_some_and(|code| NOT_PERMITTED.contains(&code)) =>
            {
                return Ok(None);
            }
            other => other.map_err(|(_, error)| error)?,
        };
        socket.bind(interface, CLAIMING)?;
        let inode = socket.inode()?;
        // `/proc` may be missing, and a sandbox may show an empty table.
        let is_visible = marks(interface).is_ok_and(|marks| marks.iter().any(|m| m.inode == inode));
        Ok(is_visible.then_some(Self { socket, interface, inode }))
    }

    /// Marks the interface as owned by this process.
    ///
    /// # Errors
    /// The system's error, for example if the interface is gone.
    pub fn own(&self) -> io::Result<()> {
        self.socket.bind(self.interface, OWNING)
    }

    /// The mark as others see it has this inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A mark of any process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// True if the process owns the interface, false if it only claims it.
    pub is_owning: bool,
    /// The user who made the mark.
    pub user: u32,
    /// Inode of the socket.
    pub inode: u64,
}

/// The marks on the interface with index `interface`, of the calling thread's network namespace.
///
/// # Errors
/// `/proc` is not mounted, or the kernel has no packet sockets.
pub(crate) fn marks(interface: u32) -> io::Result<Vec<Seen>> {
    let mut file = File::open(SOCKETS)?;
    let (mut table, mut part) = (Vec::new(), vec![0; PART]);
    while let length @ 1.. = file.read(&mut part)? {
        table.extend_from_slice(&part[..length]);
    }
    Ok(parse(&String::from_utf8_lossy(&table), interface))
}

/// Columns: address, references, type, protocol, interface, running, memory, user, inode.
fn parse(table: &str, interface: u32) -> Vec<Seen> {
    let rows = table.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let &[_, _, _, protocol, index, _, _, user, inode] = columns.as_slice() else {
            return None;
        };
        let is_owning = match u16::from_str_radix(protocol, 16).ok()? {
            CLAIMING => false,
            OWNING => true,
            _ => return None,
        };
        let is_here = index.parse() == Ok(interface);
        is_here.then_some(Seen { is_owning, user: user.parse().ok()?, inode: inode.parse().ok()? })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_among_other_packet_sockets() {
        let table = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
0000000000000000 3      3    0003   2     1 0      0      4711  
0000000000000000 3      3    88b5   2     1 0      1000   4712  
0000000000000000 3      3    88b6   2     0 0      0      4713  
0000000000000000 3      3    88b6   3     1 0      0      4714  
0000000000000000 3      2    88cc   2     1 0      0      4715  
";
        let wanted = Seen { is_owning: false, user: 1000, inode: 4712 };
        let owned = Seen { is_owning: true, user: 0, inode: 4713 };
        assert_eq!(parse(table, 2), [wanted, owned]);
        assert_eq!(parse(table, 4), []);
    }
}
