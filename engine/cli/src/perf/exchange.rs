//! What client and server tell each other, over the kernel's TCP: lines of JSON.
//!
//! The first line of each side names the version of the exchange; sides of different versions part with an
//! error that says so. Then the client tells its plan, both tell their QPs and memory, and each round is:
//! `round`, `ready`; traffic; `done` from both; `verdict` from both; `row`.
//!
//! A host that is gone is noticed by the kernel's TCP, which asks when nothing is heard: a program that gets no CPU
//! for a while is still there. In between, a line says "alive" every second; without any for long, people are told.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{ExchangeError, PerfError};
use super::message::Message;
use crate::signal;

/// Version of this exchange.
const VERSION: u32 = 1;
/// A host whose kernel is silent is gone after this; a program that is, is worth a word.
const SILENCE: Duration = Duration::from_secs(10);
/// The kernel asks a silent one this often, in seconds.
const ASK_AFTER: u32 = 2;
/// How often we say that we are alive.
const ALIVE: Duration = Duration::from_secs(1);
/// How long a blocking read lasts before it looks around.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line: that of a few thousand QPs.
const LINE_MAX: usize = 1 << 20;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    feroce_perf: u32,
}

/// The conversation with the other side.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    peer: SocketAddr,
    bytes: Vec<u8>,
    waiting: VecDeque<Message>,
    /// The other side gave up, after saying what waits.
    gave_up: Option<String>,
    said: Instant,
    heard: Instant,
    /// Told about the present silence.
    wondered: bool,
    finishes_rounds: bool,
}

impl Control {
    /// Calls a server.
    pub fn call(server: &str, port: u16) -> Result<Self, PerfError> {
        let failed =
            |source| ExchangeError::NoServer { peer: format!("{server} port {port}"), source };
        let mut last = std::io::Error::from(ErrorKind::NotFound);
        for address in (server, port).to_socket_addrs().map_err(failed)? {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => return Self::greet(stream, address),
                Err(error) => last = error,
            }
        }
        Err(failed(last).into())
    }

    /// Begins to talk on a connection: versions first.
    pub fn greet(stream: TcpStream, peer: SocketAddr) -> Result<Self, PerfError> {
        // An IPv4 client of a listener for both.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let now = Instant::now();
        let mut control = Self {
            stream,
            peer,
            bytes: Vec::new(),
            waiting: VecDeque::new(),
            gave_up: None,
            said: now,
            heard: now,
            wondered: false,
            finishes_rounds: false,
        };
        control.set_up().map_err(|source| ExchangeError::Io { peer, source })?;
        control.say(&Greeting { feroce_perf: VERSION })?;
        let line = loop {
            if let Some(line) = control.take_line()? {
                break line;
            }
            control.read(Some(LOOK))?;
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
        setsockopt(&self.stream, sockopt::KeepAlive, &true)?;
        setsockopt(&self.stream, sockopt::TcpKeepIdle, &ASK_AFTER)?;
        setsockopt(&self.stream, sockopt::TcpKeepInterval, &ASK_AFTER)?;
        Ok(setsockopt(&self.stream, sockopt::TcpUserTimeout, &milliseconds)?)
    }

    /// The other side.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Our own address towards it.
    pub fn local(&self) -> Result<SocketAddr, ExchangeError> {
        let peer = self.peer;
        self.stream.local_addr().map_err(|source| ExchangeError::Io { peer, source })
    }

    /// Tells something.
    pub fn send(&mut self, message: &Message) -> Result<(), ExchangeError> {
        self.say(message)
    }

    /// From now on Ctrl-C does not end the conversation: it ends the round, which is then finished.
    pub fn finish_rounds(&mut self) {
        self.finishes_rounds = true;
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The other side is gone, gave up or talks nonsense; [`PerfError::Interrupted`] on Ctrl-C.
    pub fn receive(&mut self) -> Result<Message, PerfError> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(message);
            }
            if signal::interrupted() && !self.finishes_rounds {
                return Err(PerfError::Interrupted);
            }
            self.say_alive()?;
            self.listen(Some(LOOK))?;
        }
    }

    /// The next message, if one is there. Also keeps the conversation alive; call it now and then.
    pub fn poll(&mut self) -> Result<Option<Message>, ExchangeError> {
        self.say_alive()?;
        self.listen(None)?;
        Ok(self.waiting.pop_front())
    }

    /// Tells the other side why we give up. Whether it still listens does not matter any more.
    pub fn give_up(&mut self, reason: &str) {
        let _ = self.say(&Message::Error { reason: reason.to_owned() });
    }

    /// The error for a message that does not belong here.
    pub fn unexpected(&self, message: &Message) -> ExchangeError {
        ExchangeError::Nonsense { peer: self.peer, told: format!("unexpected {message:?}") }
    }

    /// The error for a message whose content makes no sense.
    pub fn nonsense(&self, told: &str) -> ExchangeError {
        ExchangeError::Nonsense { peer: self.peer, told: told.to_owned() }
    }

    fn say(&mut self, line: &impl Serialize) -> Result<(), ExchangeError> {
        let mut text = serde_json::to_string(line).expect("plain data");
        text.push('\n');
        self.said = Instant::now();
        self.stream.write_all(text.as_bytes()).map_err(|source| self.broken(source))
    }

    fn say_alive(&mut self) -> Result<(), ExchangeError> {
        if self.said.elapsed() < ALIVE { Ok(()) } else { self.say(&Message::Alive) }
    }

    /// Reads what there is, or waits for it; sorts out what was only a sign of life.
    fn listen(&mut self, wait: Option<Duration>) -> Result<(), ExchangeError> {
        let over = match self.gave_up.take() {
            Some(reason) => return Err(ExchangeError::Peer { peer: self.peer, reason }),
            None => self.read(wait),
        };
        while let Some(line) = self.take_line()? {
            match self.parse(&line)? {
                Message::Alive => {}
                Message::Error { reason } if self.waiting.is_empty() => {
                    return Err(ExchangeError::Peer { peer: self.peer, reason });
                }
                Message::Error { reason } => self.gave_up = Some(reason),
                message => self.waiting.push_back(message),
            }
        }
        // What was said before the end still counts.
        if self.waiting.is_empty() { over } else { Ok(()) }
    }

    fn read(&mut self, wait: Option<Duration>) -> Result<(), ExchangeError> {
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
                self.heard = Instant::now();
                self.wondered = false;
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                    self.wonder();
                    Ok(())
                }
                _ => Err(self.broken(error)),
            },
        }
    }

    fn wonder(&mut self) {
        if self.heard.elapsed() >= SILENCE && !std::mem::replace(&mut self.wondered, true) {
            eprintln!(
                "feroce: the program at {} has said nothing for {} s: its host is there, so it is stopped or gets \
                 no CPU (Ctrl-C ends the wait)",
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
        match self.bytes.iter().position(|&byte| byte == b'\n') {
            Some(end) => Ok(Some(self.bytes.drain(..=end).collect())),
            None if self.bytes.len() > LINE_MAX => Err(self.nonsense("an endless line")),
            None => Ok(None),
        }
    }

    fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T, ExchangeError> {
        serde_json::from_slice(line).map_err(|error| self.nonsense(&error.to_string()))
    }

    fn broken(&self, source: std::io::Error) -> ExchangeError {
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

    /// Our side of a conversation with `other`, which gets the other end of the connection.
    fn talk<T: Send + 'static>(
        other: impl FnOnce(TcpStream) -> T + Send + 'static,
    ) -> (Result<Control, PerfError>, thread::JoinHandle<T>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = thread::spawn(move || other(listener.accept().unwrap().0));
        (Control::call("127.0.0.1", port), other)
    }

    fn greeted(stream: TcpStream) -> Control {
        let peer = stream.peer_addr().unwrap();
        Control::greet(stream, peer).unwrap()
    }

    #[test]
    fn messages_arrive_in_order_and_signs_of_life_are_not_messages() {
        let (control, other) = talk(|stream| {
            let mut control = greeted(stream);
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
    fn other_versions_and_other_programs_are_told_apart() {
        let (control, _other) = talk(|mut stream| {
            stream.write_all(b"{\"feroce_perf\":99,\"more\":1}\n").unwrap();
            stream
        });
        let told = control.unwrap_err().to_string();
        assert!(told.contains("version 99"), "{told}");
        let (control, _other) = talk(|mut stream| {
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
            stream
        });
        let told = control.unwrap_err().to_string();
        assert!(told.contains("does not talk like feroce perf"), "{told}");
    }

    #[test]
    fn a_peer_that_gives_up_says_why() {
        let (control, _other) = talk(|stream| {
            let mut control = greeted(stream);
            control.give_up("no more QPs");
            control
        });
        let told = control.unwrap().receive().unwrap_err().to_string();
        assert!(told.contains("gave up: no more QPs"), "{told}");
    }

    #[test]
    fn what_was_said_before_giving_up_counts() {
        let (control, other) = talk(|stream| {
            let mut control = greeted(stream);
            control.send(&Message::Bye).unwrap();
            control.give_up("interrupted");
            control
        });
        other.join().unwrap();
        let mut control = control.unwrap();
        assert!(matches!(control.receive(), Ok(Message::Bye)));
        let told = control.receive().unwrap_err().to_string();
        assert!(told.contains("gave up: interrupted"), "{told}");
    }
}
