//! A server of HTTP requests in one thread. Time, length and number of requests are bounded: no
//! client delays another for long, or makes the server grow.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use feroce_engine::time::{Clock, Duration, Instant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::request::{self, REQUEST_MAX, Request};

/// Maximum number of connections. A further one replaces the oldest.
const CONNECTIONS: usize = 64;
/// Maximum time of a connection.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read, and ignored, after the response.
const IGNORED_MAX: usize = 64 << 10;
/// Time without accepting after an error: the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum sleep; bounds the time to notice a signal.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// A server.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    clock: Clock,
    connections: Vec<Connection>,
    /// No connection is accepted before.
    accepts_at: Instant,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    until: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The bytes received.
    Reading(Vec<u8>),
    /// The response, and how many bytes are sent. Many connections may share a response.
    Writing(Rc<[u8]>, usize),
    /// The response is sent, and the client has not closed yet. Closing before would discard the
    /// response if the client has sent more than the server has read. Contains how many bytes are
    /// still ignored.
    Closing(usize),
    Closed,
}

impl Server {
    /// A server at `listener`, a listening socket.
    pub fn new(listener: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let clock = Clock::start();
        let accepts_at = clock.now();
        Ok(Self { listener, clock, connections: Vec::new(), accepts_at })
    }

    /// Waits for events and handles them. `respond` makes the response to a request.
    ///
    /// # Errors
    /// Errors of poll(2). A signal is not an error.
    pub fn turn(&mut self, mut respond: impl FnMut(Request) -> Rc<[u8]>) -> io::Result<()> {
        let ready = self.wait()?;
        for (connection, _) in
            self.connections.iter_mut().zip(&ready.connections).filter(|it| *it.1)
        {
            connection.advance(&mut respond);
        }
        let now = self.clock.now();
        self.connections.retain(|connection| {
            connection.until > now && !matches!(connection.state, State::Closed)
        });
        if ready.listener {
            self.accept(now);
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<Ready> {
        let now = self.clock.now();
        let accepts = self.accepts_at <= now;
        let mut fds: Vec<_> = self
            .connections
            .iter()
            .map(|connection| PollFd::new(connection.socket.as_fd(), connection.awaits()))
            .collect();
        if accepts {
            fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        let ends = self.connections.iter().map(|connection| connection.until);
        let ends = ends.chain((!accepts).then_some(self.accepts_at));
        let sleep = ends.map(|end| end.saturating_since(now)).fold(MAX_SLEEP, Duration::min);
        // At least 1 ms: a timeout of 0 would spin until the end of a connection.
        let sleep = u16::try_from(sleep.as_millis()).unwrap_or(u16::MAX).max(1);
        match poll(&mut fds, PollTimeout::from(sleep)) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let listener = accepts && fds.pop().is_some_and(|fd| is_ready(&fd));
        Ok(Ready { connections: fds.iter().map(is_ready).collect(), listener })
    }

    fn accept(&mut self, now: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.listener, flags) {
            Ok(socket) => {
                if self.connections.len() >= CONNECTIONS {
                    self.connections.remove(0); // The oldest.
                }
                let (until, state) = (now + CONNECTION_TIME, State::Reading(Vec::new()));
                self.connections.push(Connection { socket, until, state });
            }
            // The client has gone.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            Err(_) => self.accepts_at = now + PAUSE,
        }
    }
}

/// Which descriptors are ready.
#[derive(Debug, Default)]
struct Ready {
    connections: Vec<bool>,
    listener: bool,
}

impl Connection {
    const fn awaits(&self) -> PollFlags {
        match self.state {
            State::Writing(..) => PollFlags::POLLOUT,
            _ => PollFlags::POLLIN,
        }
    }

    /// Moves on until the socket has no more bytes or no room.
    fn advance(&mut self, respond: &mut impl FnMut(Request) -> Rc<[u8]>) {
        loop {
            let step = match &mut self.state {
                State::Reading(bytes) => {
                    read(&self.socket, REQUEST_MAX - bytes.len()).map(|received| {
                        bytes.extend_from_slice(&received);
                        if received.is_empty() {
                            return Some(State::Closed);
                        }
                        request::parse(bytes).map(|request| State::Writing(respond(request), 0))
                    })
                }
                State::Writing(bytes, sent) if *sent < bytes.len() => {
                    rustix::io::write(&self.socket, &bytes[*sent..]).map(|count| {
                        *sent += count;
                        None
                    })
                }
                State::Writing(..) => shutdown(&self.socket, Shutdown::Write)
                    .map(|()| Some(State::Closing(IGNORED_MAX))),
                State::Closing(left) => read(&self.socket, *left).map(|received| {
                    *left -= received.len();
                    received.is_empty().then_some(State::Closed)
                }),
                State::Closed => return,
            };
            match step {
                Ok(None) => {}
                Ok(Some(state)) => self.state = state,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.state = State::Closed,
            }
        }
    }
}

/// Reads at most `most` bytes. Empty at the end, and if `most` is 0.
fn read(socket: &OwnedFd, most: usize) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; most.min(4096)];
    let count = rustix::io::read(socket, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Serves `body` while `act` runs with the server's address.
    fn serving(body: &str, act: impl FnOnce(SocketAddr)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut server = Server::new(listener.into()).unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    server
                        .turn(|request| match request {
                            Request::Metrics { has_body } => {
                                request::response("text/plain", body, has_body).into()
                            }
                            Request::Refused(status) => request::error(status).into(),
                        })
                        .unwrap();
                }
            });
            // The server's thread ends if `act` panics, too.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(address)));
            is_done.store(true, Ordering::Relaxed);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
    }

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    const GOOD: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    #[test]
    fn requests_are_served() {
        serving("a 1\n", |address| {
            let response = get(address, GOOD);
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert!(response.contains("Content-Type: text/plain\r\n"));
            assert!(response.ends_with("\r\n\r\na 1\n"), "{response}");
            assert!(get(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
            assert!(get(address, "POST /metrics HTTP/1.1\r\n\r\nx").starts_with("HTTP/1.1 405 "));
            assert!(get(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
            let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
            assert!(get(address, &long).starts_with("HTTP/1.1 431 "));
        });
    }

    #[test]
    fn hostile_clients_do_not_hinder_others() {
        let body = "b 2\n".repeat(1 << 20); // More than the kernel buffers for a client.
        serving(&body, |address| {
            let connect = || TcpStream::connect(address).unwrap();
            // Far more connections than the server keeps, each with half a request.
            let mut idle: Vec<_> = (0..300).map(|_| connect()).collect();
            for stream in &mut idle {
                let _ = stream.write_all(&GOOD.as_bytes()[..30]); // May be closed already.
            }
            // Clients that request and never read, and one that never ends its request.
            let mut deaf: Vec<_> = (0..20).map(|_| connect()).collect();
            deaf.iter_mut().for_each(|stream| stream.write_all(GOOD.as_bytes()).unwrap());
            let mut endless = connect();
            while endless.write_all(&[b'x'; 4096]).is_ok() {}
            for _ in 0..5 {
                let response = get(address, GOOD);
                assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with(&body));
            }
            drop((idle, deaf));
        });
    }
}
