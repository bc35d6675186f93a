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
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use feroce_engine::device::{Endpoint, HostId};
use feroce_engine::net::Gid;
use feroce_wire::{Key, Psn, Qpn};
use nix::sys::socket::{setsockopt, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::options::Plan;
use super::report::Row;
use crate::failure::Failure;
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

/// What can go wrong with the conversation.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody listens.
    #[error(
        "no server at {peer} ({source}): start `feroce perf -i IFACE` there first, with the same -p"
    )]
    NoServer {
        /// Whom we called.
        peer: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The port to listen on is taken, or not ours to take.
    #[error("cannot listen on TCP port {port}: {source} (another one: -p, at both ends)")]
    Listen {
        /// The port.
        port: u16,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The connection ended.
    #[error("{peer} closed the connection: its program ended (see what it printed)")]
    Gone {
        /// The other side.
        peer: SocketAddr,
    },
    /// The peer's kernel does not answer.
    #[error(
        "the host of {peer} has not answered on TCP for {} s: it or the way to it is gone",
        SILENCE.as_secs()
    )]
    Silent {
        /// The other side.
        peer: SocketAddr,
    },
    /// The connection broke.
    #[error("connection to {peer}: {source}")]
    Io {
        /// The other side.
        peer: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The other side speaks another version.
    #[error(
        "{peer} speaks version {theirs} of this exchange, we speak {VERSION}: use the same feroce at both ends"
    )]
    Version {
        /// The other side.
        peer: SocketAddr,
        /// Its version.
        theirs: u32,
    },
    /// The other side is something else, or breaks the protocol.
    #[error("{peer} does not talk like feroce perf ({told})")]
    Nonsense {
        /// The other side.
        peer: SocketAddr,
        /// What was wrong.
        told: String,
    },
    /// The other side gave up and said why.
    #[error("{peer} gave up: {reason}")]
    Peer {
        /// The other side.
        peer: SocketAddr,
        /// Its own words.
        reason: String,
    },
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    feroce_perf: u32,
}

/// All other lines.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// From the client: what to do. Its port carries path MTUs up to `active_mtu`; 0 for TCP.
    Plan { plan: Plan, active_mtu: u32 },
    /// From the server: agreed. Its port carries path MTUs up to `active_mtu`; 0 for TCP.
    Agreed { active_mtu: u32 },
    /// QPs and memory of a side.
    Side(Side),
    /// The QPs are connected.
    Connected,
    /// From the client: the next round. The data are drawn from `salt`.
    Round { size: u32, salt: u64 },
    /// From the server: buffers are prepared. `tcp_port` listens, if TCP is tested.
    Ready { tcp_port: Option<u16> },
    /// This side sends no more in this round; it has sent so many messages on each QP, in so long.
    Done(Done),
    /// The data are right, and so many bytes were compared.
    Verdict { checked: u64 },
    /// From the client: the result of the round.
    Row(Row),
    /// From the client: no more rounds.
    Bye,
    /// Nothing, but alive.
    Alive,
    /// This side gives up.
    Error { reason: String },
}

/// What one side did in a round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Messages by QP.
    pub messages: Vec<u64>,
    /// From the first post to the last completion.
    pub nanos: u64,
}

/// One side's QPs and memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Side {
    pub gid: String,
    /// The host within which this side carries super-frames, if it does.
    #[serde(default)]
    pub super_frames: Option<NonZeroU64>,
    pub qps: Vec<QpLine>,
    /// Where data come from, and where atomics work.
    pub source: RegionLine,
    /// Where data go.
    pub target: RegionLine,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct QpLine {
    pub qpn: u32,
    pub psn: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RegionLine {
    pub addr: u64,
    pub rkey: u32,
}

impl RegionLine {
    /// The key, as work requests name it.
    pub fn key(self) -> Key {
        Key(self.rkey)
    }
}

impl Side {
    /// The QPs as the engine wants them; `None` if the line makes no sense.
    pub fn endpoints(&self) -> Option<Vec<Endpoint>> {
        let gid: Gid = self.gid.parse().ok()?;
        let known = |line: &QpLine| line.qpn >> 24 == 0 && line.psn >> 24 == 0;
        self.qps.iter().all(known).then(|| {
            let endpoint = |line: &QpLine| Endpoint {
                qpn: Qpn::masked(line.qpn),
                psn: Psn::new(line.psn),
                gid,
                super_frames: self.super_frames.map(HostId),
            };
            self.qps.iter().map(endpoint).collect()
        })
    }
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
    pub fn call(server: &str, port: u16) -> Result<Self, Failure> {
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
    pub fn greet(stream: TcpStream, peer: SocketAddr) -> Result<Self, Failure> {
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
            theirs => Err(ExchangeError::Version { peer, theirs }.into()),
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
    /// The other side is gone, gave up or talks nonsense; [`Failure::Interrupted`] on Ctrl-C.
    pub fn receive(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(message);
            }
            if signal::interrupted() && !self.finishes_rounds {
                return Err(Failure::Interrupted);
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
                ExchangeError::Silent { peer }
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
    ) -> (Result<Control, Failure>, thread::JoinHandle<T>) {
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
        assert!(matches!(control.receive(), Err(Failure::Exchange(ExchangeError::Gone { .. }))));
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

    #[test]
    fn numbers_beyond_24_bits_are_no_endpoints() {
        let region = RegionLine { addr: 0, rkey: 0 };
        let side = |qpn, psn| Side {
            gid: "10.0.0.1".to_owned(),
            super_frames: None,
            qps: vec![QpLine { qpn, psn }],
            source: region,
            target: region,
        };
        assert!(side(0x10, 0xff_ffff).endpoints().is_some());
        assert!(side(1 << 24, 0).endpoints().is_none());
        assert!(side(0x10, 1 << 24).endpoints().is_none());
    }
}
