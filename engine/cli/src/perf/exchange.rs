//! The control connection between client and server: lines of JSON over the kernel's TCP.
//!
//! The first line of each side names the protocol version; different versions are an error. Then
//! the client sends its plan, both sides send their QPs and memory, and each round is: `round`,
//! `ready`; traffic; `done` from both; `verdict` from both; `row`.
//!
//! TCP keep-alive detects a host that is gone; a program that gets no CPU for a while is not an
//! error. Each side sends `alive` every second. If the peer is silent for long, a message is
//! printed.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::clients::PATIENCE;
use super::error::{ExchangeError, PerfError};
use super::message::Message;
use crate::signal;

/// Version of the protocol.
const VERSION: u32 = 2;
/// The connection is closed if the peer's kernel does not answer TCP probes for this long. If only
/// the peer's program is silent for this long, a message is printed.
const SILENCE: Duration = Duration::from_secs(10);
/// Interval of TCP keep-alive probes in seconds.
const KEEP_ALIVE_SECONDS: u32 = 2;
/// Interval of `Alive` messages.
const ALIVE: Duration = Duration::from_secs(1);
/// Time limit of one blocking read.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// Time limit of one blocking write, after which this side reads.
const WRITE_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest line: a `Side` or the counts of 100,000 QPs.
const LINE_MAX: usize = 8 << 20;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    feroce_perf: u32,
}

/// The control connection to the peer.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    peer: SocketAddr,
    bytes: Vec<u8>,
    /// The first bytes that contain no end of a line.
    scanned: usize,
    messages: VecDeque<Message>,
    /// The peer gave up after the queued messages.
    gave_up: Option<(String, bool)>,
    last_sent: Instant,
    last_received: Instant,
    /// The present silence has been reported.
    reported_silence: bool,
    finishes_rounds: bool,
}

impl Control {
    /// Connects to a server.
    pub fn connect(server: &str, port: u16) -> Result<Self, PerfError> {
        let failed = |source: std::io::Error| {
            let peer = format!("{server} port {port}");
            match source.kind() {
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                    ExchangeError::NoRoute { peer, source }
                }
                _ => ExchangeError::NoServer { peer, source },
            }
        };
        let unknown = |source| ExchangeError::NoAddress { host: server.to_owned(), source };
        let mut last = std::io::Error::from(ErrorKind::NotFound);
        for address in (server, port).to_socket_addrs().map_err(unknown)? {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => return Self::handshake(stream, address),
                Err(error) => last = error,
            }
        }
        Err(failed(last).into())
    }

    /// Starts the protocol on the connection to a client, which must send its first line soon.
    pub fn greet(stream: TcpStream, peer: SocketAddr) -> Result<Self, PerfError> {
        Self::handshake_within(stream, peer, Some(PATIENCE))
    }

    /// Starts the protocol on the connection to a server, which may be busy with another client.
    pub fn handshake(stream: TcpStream, peer: SocketAddr) -> Result<Self, PerfError> {
        Self::handshake_within(stream, peer, None)
    }

    /// Exchanges versions.
    fn handshake_within(
        stream: TcpStream,
        peer: SocketAddr,
        patience: Option<Duration>,
    ) -> Result<Self, PerfError> {
        // A dual-stack listener sees IPv4 clients as mapped addresses.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let now = Instant::now();
        let mut control = Self {
            stream,
            peer,
            bytes: Vec::new(),
            scanned: 0,
            messages: VecDeque::new(),
            gave_up: None,
            last_sent: now,
            last_received: now,
            reported_silence: false,
            finishes_rounds: false,
        };
        control.set_up().map_err(|source| ExchangeError::Io { peer, source })?;
        control.write_line(&Greeting { feroce_perf: VERSION })?;
        let line = loop {
            if let Some(line) = control.take_line()? {
                break line;
            }
            if patience.is_some_and(|patience| now.elapsed() > patience) {
                return Err(
                    ExchangeError::NoGreeting { peer: control.peer, after: PATIENCE }.into()
                );
            }
            control.read(Some(READ_TIMEOUT))?;
        };
        let greeting: Greeting = control.parse(&line)?;
        match greeting.feroce_perf {
            VERSION => Ok(control),
            theirs => Err(ExchangeError::Version { peer, theirs, ours: VERSION }.into()),
        }
    }

    fn set_up(&self) -> std::io::Result<()> {
        let milliseconds = u32::try_from(SILENCE.as_millis()).expect("seconds");
        self.stream.set_nodelay(true)?;
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        setsockopt(&self.stream, sockopt::KeepAlive, &true)?;
        setsockopt(&self.stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_SECONDS)?;
        setsockopt(&self.stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_SECONDS)?;
        Ok(setsockopt(&self.stream, sockopt::TcpUserTimeout, &milliseconds)?)
    }

    /// Address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Local address of the connection.
    pub fn local(&self) -> Result<SocketAddr, ExchangeError> {
        let peer = self.peer;
        self.stream.local_addr().map_err(|source| ExchangeError::Io { peer, source })
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message) -> Result<(), ExchangeError> {
        self.write_line(message)
    }

    /// From now on Ctrl-C does not abort [`Control::receive`]: it ends the round, which is then
    /// completed.
    pub fn finish_rounds(&mut self) {
        self.finishes_rounds = true;
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// If the peer is gone, gave up or violates the protocol; [`PerfError::Interrupted`] on Ctrl-C.
    pub fn receive(&mut self) -> Result<Message, PerfError> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(message);
            }
            if signal::interrupted() && !self.finishes_rounds {
                return Err(PerfError::Interrupted);
            }
            self.send_alive()?;
            self.receive_available(Some(READ_TIMEOUT))?;
        }
    }

    /// Returns the next message, if one has arrived. Sends `Alive` when due, so call this
    /// regularly.
    pub fn poll(&mut self) -> Result<Option<Message>, ExchangeError> {
        self.send_alive()?;
        self.receive_available(None)?;
        Ok(self.messages.pop_front())
    }

    /// Sends the reason for giving up; `wrong_data`: because the data check failed. Errors are
    /// ignored: the connection is of no further use.
    pub fn give_up(&mut self, reason: &str, wrong_data: bool) {
        let _ = self.write_line(&Message::Error { reason: reason.to_owned(), wrong_data });
    }

    /// The error for an unexpected message.
    pub fn unexpected(&self, message: &Message) -> ExchangeError {
        ExchangeError::Invalid { peer: self.peer, detail: format!("unexpected {message:?}") }
    }

    /// The error for a message with invalid content.
    pub fn invalid(&self, detail: &str) -> ExchangeError {
        ExchangeError::Invalid { peer: self.peer, detail: detail.to_owned() }
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), ExchangeError> {
        let mut text = serde_json::to_string(line).expect("plain data");
        text.push('\n');
        self.last_sent = Instant::now();
        self.write_all(text.as_bytes()).map_err(|source| self.connection_error(source))
    }

    /// Writes `text`, and reads while the peer takes no more: the peer may be writing a long line
    /// as well.
    fn write_all(&mut self, mut text: &[u8]) -> std::io::Result<()> {
        while !text.is_empty() {
            match self.stream.write(text) {
                Ok(written) => text = &text[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The next write reports a connection that is gone.
                    while matches!(self.read(None), Ok(true)) {}
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// For long work between two messages: sends `Alive` when due, and takes what the peer sends,
    /// so that the peer's kernel does not give up.
    ///
    /// # Errors
    /// If the peer is gone or gave up.
    pub fn keep_alive(&mut self) -> Result<(), ExchangeError> {
        self.send_alive()?;
        self.receive_available(None)
    }

    fn send_alive(&mut self) -> Result<(), ExchangeError> {
        if self.last_sent.elapsed() < ALIVE { Ok(()) } else { self.write_line(&Message::Alive) }
    }

    /// Reads what has arrived, or waits for up to `wait`, and queues the messages except `Alive`.
    fn receive_available(&mut self, wait: Option<Duration>) -> Result<(), ExchangeError> {
        let over = match self.gave_up.take() {
            Some((reason, wrong_data)) => {
                return Err(ExchangeError::Peer { peer: self.peer, reason, wrong_data });
            }
            None => self.read(wait),
        };
        while let Some(line) = self.take_line()? {
            match self.parse(&line)? {
                Message::Alive => {}
                Message::Error { reason, wrong_data } if self.messages.is_empty() => {
                    return Err(ExchangeError::Peer { peer: self.peer, reason, wrong_data });
                }
                Message::Error { reason, wrong_data } => self.gave_up = Some((reason, wrong_data)),
                message => self.messages.push_back(message),
            }
        }
        // Messages that arrived before the end are delivered first.
        if self.messages.is_empty() { over.map(|_| ()) } else { Ok(()) }
    }

    /// Reads what has arrived, or waits for up to `wait`. Returns false if nothing has arrived.
    fn read(&mut self, wait: Option<Duration>) -> Result<bool, ExchangeError> {
        let mut buffer = [0; 16 << 10];
        let read = match wait {
            Some(_) => {
                let wait = self.stream.set_read_timeout(wait);
                wait.and_then(|()| self.stream.read(&mut buffer))
            }
            None => self.read_now(&mut buffer),
        };
        match read {
            Ok(0) => Err(ExchangeError::Gone { peer: self.peer }),
            Ok(count) => {
                self.bytes.extend_from_slice(&buffer[..count]);
                self.last_received = Instant::now();
                self.reported_silence = false;
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                    self.report_silence();
                    Ok(false)
                }
                _ => Err(self.connection_error(error)),
            },
        }
    }

    fn report_silence(&mut self) {
        if self.last_received.elapsed() >= SILENCE
            && !std::mem::replace(&mut self.reported_silence, true)
        {
            eprintln!(
                "feroce: the program at {} has been silent for {} s: its host answers, so the \
                 program is stopped or gets no CPU (Ctrl-C ends the wait)",
                self.peer,
                SILENCE.as_secs()
            );
        }
    }

    fn read_now(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let read = self.stream.read(buffer);
        self.stream.set_nonblocking(false)?;
        read
    }

    fn take_line(&mut self) -> Result<Option<Vec<u8>>, ExchangeError> {
        let scanned = std::mem::take(&mut self.scanned);
        match self.bytes[scanned..].iter().position(|&byte| byte == b'\n') {
            Some(end) => Ok(Some(self.bytes.drain(..=scanned + end).collect())),
            None if self.bytes.len() > LINE_MAX => Err(self.invalid("a line that is too long")),
            None => {
                self.scanned = self.bytes.len();
                Ok(None)
            }
        }
    }

    fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, ExchangeError> {
        serde_json::from_slice(line).map_err(|error| self.invalid(&error.to_string()))
    }

    fn connection_error(&self, source: std::io::Error) -> ExchangeError {
        let peer = self.peer;
        match source.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ExchangeError::Gone { peer },
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                ExchangeError::Silent { peer, after: SILENCE }
            }
            _ => ExchangeError::Io { peer, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// This side of a connection to `other`, which gets the other end.
    fn connect<T: Send + 'static>(
        other: impl FnOnce(TcpStream) -> T + Send + 'static,
    ) -> (Result<Control, PerfError>, thread::JoinHandle<T>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = thread::spawn(move || other(listener.accept().unwrap().0));
        (Control::connect("127.0.0.1", port), other)
    }

    fn accepted(stream: TcpStream) -> Control {
        let peer = stream.peer_addr().unwrap();
        Control::handshake(stream, peer).unwrap()
    }

    #[test]
    fn messages_arrive_in_order_without_alive() {
        let (control, other) = connect(|stream| {
            let mut control = accepted(stream);
            for message in [Message::Alive, Message::Connected, Message::Alive, Message::Bye] {
                control.send(&message).unwrap();
            }
        });
        let mut control = control.unwrap();
        assert!(matches!(control.receive(), Ok(Message::Connected)));
        assert!(matches!(control.receive(), Ok(Message::Bye)));
        other.join().unwrap();
        assert!(matches!(control.receive(), Err(PerfError::Exchange(ExchangeError::Gone { .. }))));
    }

    #[test]
    fn both_sides_may_send_long_lines_at_once() {
        let long = || Message::Error { reason: "x".repeat(LINE_MAX / 2), wrong_data: false };
        let side = move |mut control: Control| {
            control.send(&Message::Bye).unwrap();
            control.send(&long()).unwrap();
            assert!(matches!(control.receive(), Ok(Message::Bye)));
            let detail = control.receive().unwrap_err().to_string();
            assert!(detail.len() > LINE_MAX / 2, "{}", detail.len());
        };
        let (control, other) = connect(move |stream| side(accepted(stream)));
        side(control.unwrap());
        other.join().unwrap();
    }

    #[test]
    fn other_versions_and_other_programs_are_refused() {
        let (control, _other) = connect(|mut stream| {
            stream.write_all(b"{\"feroce_perf\":99,\"more\":1}\n").unwrap();
            stream
        });
        let detail = control.unwrap_err().to_string();
        assert!(detail.contains("version 99"), "{detail}");
        let (control, _other) = connect(|mut stream| {
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
            stream
        });
        let detail = control.unwrap_err().to_string();
        assert!(detail.contains("does not speak the protocol of feroce perf"), "{detail}");
    }

    #[test]
    fn a_peer_that_gives_up_reports_the_reason() {
        let (control, _other) = connect(|stream| {
            let mut control = accepted(stream);
            control.give_up("no more QPs", false);
            control
        });
        let detail = control.unwrap().receive().unwrap_err().to_string();
        assert!(detail.contains("gave up: no more QPs"), "{detail}");
    }

    /// Whatever the words are: they may change or be cut.
    #[test]
    fn the_peers_wrong_data_are_told_apart_from_other_failures() {
        for wrong_data in [true, false] {
            let (control, _other) = connect(move |stream| {
                let mut control = accepted(stream);
                control.give_up("data check failed", wrong_data);
                control
            });
            let error = control.unwrap().receive().unwrap_err();
            assert_eq!(error.is_wrong_data(), wrong_data);
        }
    }

    #[test]
    fn messages_before_giving_up_are_delivered() {
        let (control, other) = connect(|stream| {
            let mut control = accepted(stream);
            control.send(&Message::Bye).unwrap();
            control.give_up("interrupted", false);
            control
        });
        other.join().unwrap();
        let mut control = control.unwrap();
        assert!(matches!(control.receive(), Ok(Message::Bye)));
        let detail = control.receive().unwrap_err().to_string();
        assert!(detail.contains("gave up: interrupted"), "{detail}");
    }
}
