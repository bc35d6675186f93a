//! What the service thread does with a ready descriptor, and closing a socket.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::any_socket::Socket;
use super::service::{self, Handlers};
use super::table;

/// Sets the handlers of the service thread. Must be called before the first socket is created.
pub fn install() {
    service::set_handlers(Handlers { on_readable, on_tick });
}

fn on_readable(fd: RawFd) -> bool {
    match table::find(fd).as_deref() {
        Some(Socket::Stream(stream)) => stream.on_readable(),
        Some(Socket::Datagram(datagram)) => datagram.on_readable(),
        None => return false,
    }
    true
}

fn on_tick() {
    for socket in table::all() {
        if let Socket::Stream(stream) = &*socket {
            stream.keep_alive();
        }
    }
}

/// Closes a socket and removes it from the table, with the accepted connections that the program
/// has not taken from it.
pub fn close(socket: &Arc<Socket>) {
    table::remove(socket.fd());
    service::unwatch(socket.fd());
    match &**socket {
        Socket::Stream(stream) => {
            for accepted in stream.close().into_iter().filter_map(table::find) {
                close(&accepted);
            }
        }
        Socket::Datagram(datagram) => datagram.close(),
    }
}
