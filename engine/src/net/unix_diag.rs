//! What the kernel knows about a Unix socket (`unix_diag`): its name, and the user who made it.
//!
//! `/proc/net/unix` has no users, and any user can forge its rows: a name may contain line feeds.
//! The crate netlink-packet-sock-diag lacks users as well, and needs another version of
//! netlink-packet-core.

use netlink_packet_core::{NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

/// `SOCK_DIAG_BY_FAMILY`, the type of request and response.
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID` (Linux 5.3): attributes of the response.
const SHOW: u32 = 0x1 | 0x40;
/// `UNIX_DIAG_NAME`.
const NAME: u16 = 0;
/// `UNIX_DIAG_UID`.
const USER: u16 = 7;
/// Lengths in bytes of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const RESPONSE: usize = 16;

/// A Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    /// The user who made it. No process can make a socket that has another user, and passing the
    /// socket to a process of another user changes nothing.
    pub user: u32,
    /// Its name in the abstract namespace, if it has one.
    pub abstract_name: Option<Vec<u8>>,
    /// True for datagrams. Sockets of different types may have the same name.
    pub is_datagram: bool,
}

/// The Unix socket with this inode in the network namespace of the calling thread. `None` if there
/// is no such socket, or the kernel lacks `unix_diag`.
pub(crate) fn unix_socket(inode: u32) -> Option<UnixSocket> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG).ok()?;
    socket.bind_auto().ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    socket.send(&request(inode), 0).ok()?;
    let mut response = vec![0; 4096];
    // The kernel has responded while the request was sent.
    let length = socket.recv(&mut response.as_mut_slice(), libc::MSG_DONTWAIT).ok()?;
    parse(response.get(..length)?)
}

/// `struct nlmsghdr` and `struct unix_diag_req`.
fn request(inode: u32) -> Vec<u8> {
    let family = u32::from(u8::try_from(libc::AF_UNIX).expect("a small number"));
    let any_cookie = [u32::MAX; 2];
    // All states.
    let body = [family.to_le(), u32::MAX, inode, SHOW, any_cookie[0], any_cookie[1]];
    let length = u32::try_from(HEADER + size_of_val(&body)).expect("short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]); // Sequence number and port.
    bytes.extend(body.into_iter().flat_map(u32::to_ne_bytes));
    bytes
}

fn parse(response: &[u8]) -> Option<UnixSocket> {
    // An error has another type.
    if response.get(4..6)? != BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let kind = i32::from(*response.get(HEADER + 1)?);
    let (mut user, mut abstract_name) = (None, None);
    for attribute in NlasIterator::new(response.get(HEADER + RESPONSE..)?) {
        let attribute = attribute.ok()?;
        match attribute.kind() {
            NAME => abstract_name = attribute.value().strip_prefix(b"\0").map(<[u8]>::to_vec),
            USER => user = Some(u32::from_ne_bytes(attribute.value().try_into().ok()?)),
            _ => {}
        }
    }
    Some(UnixSocket { user: user?, abstract_name, is_datagram: kind == libc::SOCK_DGRAM })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

    use super::*;

    fn inode(socket: impl AsFd) -> u32 {
        u32::try_from(rustix::fs::fstat(socket).unwrap().st_ino).unwrap()
    }

    #[test]
    fn the_creator_and_the_name_of_a_socket_are_known() {
        let user = rustix::process::geteuid().as_raw();
        let name = format!("feroce-diag-{}\n0", std::process::id()).into_bytes();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let expected = UnixSocket { user, abstract_name: Some(name), is_datagram: true };
        assert_eq!(unix_socket(inode(&socket)), Some(expected.clone()));
        let other = UnixListener::bind_addr(&address).unwrap();
        let listening = UnixSocket { is_datagram: false, ..expected };
        assert_eq!(unix_socket(inode(&other)), Some(listening));
        let unnamed = UnixDatagram::unbound().unwrap();
        let number = inode(&unnamed);
        let expected = UnixSocket { user, abstract_name: None, is_datagram: true };
        assert_eq!(unix_socket(number), Some(expected));
        drop(unnamed);
        assert_eq!(unix_socket(number), None);
    }

    #[test]
    fn damaged_responses_are_refused() {
        let mut response = vec![0; HEADER + RESPONSE];
        assert_eq!(parse(&response), None);
        response[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        assert_eq!(parse(&response), None);
        response.extend([8, 0, 7, 0]);
        response.extend(1000_u32.to_ne_bytes());
        assert_eq!(parse(&response).map(|socket| socket.user), Some(1000));
        response.truncate(response.len() - 1);
        assert_eq!(parse(&response), None);
        assert_eq!(parse(&[]), None);
    }
}
