//! Clients that have connected to the server. One that says nothing keeps no other out: the server
//! serves whoever speaks first.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use feroce_engine::sys;

use crate::signal;

/// A client sends its first line when it connects; a connection without one is closed after this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Connections that wait. For a further one, the oldest that said nothing is closed.
const MAX_WAITING: usize = 64;

/// A client that is not served yet, and when it connected.
type Waiting = (TcpStream, SocketAddr, Instant);

/// The connections of a server's port.
#[derive(Debug)]
pub struct Clients<'a> {
    listener: &'a TcpListener,
    waiting: VecDeque<Waiting>,
}

impl<'a> Clients<'a> {
    /// `listener` must not block.
    pub fn new(listener: &'a TcpListener) -> Self {
        Self { listener, waiting: VecDeque::new() }
    }

    /// Waits for a client that speaks. `None`: Ctrl-C.
    pub fn next(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let mut scratch = Vec::new();
        while !signal::interrupted() {
            self.accept_all()?;
            if let Some(client) = self.take_speaking()? {
                return Ok(Some(client));
            }
            // Only those that said nothing are left.
            self.waiting.retain(|(_, _, since)| since.elapsed() < PATIENCE);
            let silent = self.waiting.iter().map(|(stream, ..)| stream.as_raw_fd());
            let fds: Vec<_> = [self.listener.as_raw_fd()].into_iter().chain(silent).collect();
            sys::poll_readable(&fds, &mut scratch, Some(Duration::from_secs(1)));
        }
        Ok(None)
    }

    /// Accepts clients. When there are many, those that said nothing make room; the others stay,
    /// and further ones wait in the kernel.
    fn accept_all(&mut self) -> io::Result<()> {
        loop {
            if self.waiting.len() >= MAX_WAITING {
                let Some(at) = self.waiting.iter().position(|client| !speaks(client)) else {
                    return Ok(());
                };
                self.waiting.remove(at);
            }
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    self.waiting.push_back((stream, peer, Instant::now()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the oldest connection whose client has said something. Closes those that their clients
    /// have closed.
    fn take_speaking(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        self.waiting.retain(|(stream, ..)| match stream.peek(&mut [0]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        let Some(at) = self.waiting.iter().position(speaks) else { return Ok(None) };
        let Some((stream, peer, _)) = self.waiting.remove(at) else { return Ok(None) };
        stream.set_nonblocking(false)?;
        Ok(Some((stream, peer)))
    }
}

/// Returns true if the client has said something, or closed the connection.
fn speaks((stream, ..): &Waiting) -> bool {
    stream.peek(&mut [0]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn silent_connections_keep_no_client_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = listener.local_addr().unwrap();
        let mut clients = Clients::new(&listener);
        let silent: Vec<_> = (0..200)
            .map(|_| {
                let stream = TcpStream::connect(server).unwrap();
                clients.accept_all().unwrap();
                stream
            })
            .collect();
        drop(TcpStream::connect(server).unwrap()); // A port scanner.
        for word in ["first", "second"] {
            let mut client = TcpStream::connect(server).unwrap();
            client.write_all(word.as_bytes()).unwrap();
            let (_, peer) = clients.next().unwrap().expect("no signal");
            assert_eq!(peer, client.local_addr().unwrap());
        }
        assert!(clients.waiting.len() <= MAX_WAITING);
        drop(silent);
    }

    /// While another client is served, for however long.
    #[test]
    fn clients_that_spoke_are_all_served_in_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = listener.local_addr().unwrap();
        let mut clients = Clients::new(&listener);
        let mut spoke: Vec<_> = (0..3).map(|_| TcpStream::connect(server).unwrap()).collect();
        spoke.iter_mut().for_each(|client| client.write_all(b"hello").unwrap());
        clients.accept_all().unwrap();
        let long_ago = Instant::now().checked_sub(2 * PATIENCE).expect("the host runs for longer");
        clients.waiting.iter_mut().for_each(|(_, _, since)| *since = long_ago);
        let silent: Vec<_> = (0..2 * MAX_WAITING)
            .map(|_| {
                let stream = TcpStream::connect(server).unwrap();
                clients.accept_all().unwrap();
                stream
            })
            .collect();
        for client in &spoke {
            let (_, peer) = clients.next().unwrap().expect("no signal");
            assert_eq!(peer, client.local_addr().unwrap());
        }
        drop(silent);
    }
}
