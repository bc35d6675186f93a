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

/// Connections that have said nothing yet. For a further one, the oldest is closed.
const MAX_SILENT: usize = 64;

/// The connections of a server's port.
#[derive(Debug)]
pub struct Clients<'a> {
    listener: &'a TcpListener,
    silent: VecDeque<(TcpStream, SocketAddr, Instant)>,
}

impl<'a> Clients<'a> {
    /// `listener` must not block.
    pub fn new(listener: &'a TcpListener) -> Self {
        Self { listener, silent: VecDeque::new() }
    }

    /// Waits for a client that speaks. `None`: Ctrl-C.
    pub fn next(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let mut scratch = Vec::new();
        while !signal::interrupted() {
            self.accept_all()?;
            self.silent.retain(|(_, _, since)| since.elapsed() < PATIENCE);
            if let Some(client) = self.take_speaking()? {
                return Ok(Some(client));
            }
            let silent = self.silent.iter().map(|(stream, ..)| stream.as_raw_fd());
            let fds: Vec<_> = [self.listener.as_raw_fd()].into_iter().chain(silent).collect();
            sys::poll_readable(&fds, &mut scratch, Some(Duration::from_secs(1)));
        }
        Ok(None)
    }

    fn accept_all(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if self.silent.len() >= MAX_SILENT {
                        self.silent.pop_front();
                    }
                    stream.set_nonblocking(true)?;
                    self.silent.push_back((stream, peer, Instant::now()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the oldest connection whose client has said something. Closes those that their clients
    /// have closed.
    fn take_speaking(&mut self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        self.silent.retain(|(stream, ..)| match stream.peek(&mut [0]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        let speaks = |(stream, ..): &(TcpStream, _, _)| stream.peek(&mut [0]).is_ok();
        let Some(at) = self.silent.iter().position(speaks) else { return Ok(None) };
        let Some((stream, peer, _)) = self.silent.remove(at) else { return Ok(None) };
        stream.set_nonblocking(false)?;
        Ok(Some((stream, peer)))
    }
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
        assert!(clients.silent.len() <= MAX_SILENT);
        drop(silent);
    }
}
