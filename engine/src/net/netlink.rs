//! Netlink sockets: requests with their responses, and events with a bounded wait.
//!
//! A socket belongs to the network namespace of the thread that opened it.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use super::NetError;
use crate::time::Duration;

/// Buffer size in bytes. The kernel fills at most 32 KiB per dump step, and a set of attributes is
/// below 64 KiB.
const BUFFER_LEN: usize = 64 * 1024;

/// Timeout of a response. The kernel responds while the request is being sent, so a timeout means
/// an error.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of attempts at a dump: a table that changes during a dump makes the dump inconsistent.
const DUMP_TRIES: usize = 16;

/// Length of a netlink message header in bytes.
const HEADER_LEN: usize = 16;

/// How long [`Connection::receive`] waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Return the available messages.
    No,
    /// Wait until something arrives, at most for this time.
    AtMost(Duration),
    /// Wait until something arrives.
    Forever,
}

/// Result of [`Connection::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Messages were appended, possibly none.
    Messages,
    /// The kernel dropped events because they were not read in time.
    Overrun,
    /// Nothing arrived.
    Nothing,
}

/// An rtnetlink socket.
pub(super) struct Connection {
    socket: Arc<Socket>,
    /// A duplicate of the socket's descriptor, for setting the receive timeout.
    timeout: UnixDatagram,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Ends a [`Connection::receive`] in which another thread waits.
#[derive(Debug, Clone)]
pub(super) struct Waker(Arc<Socket>);

impl Connection {
    /// Opens a socket in the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self, NetError> {
        let action = "open a netlink socket";
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(|error| failed(action, &error))?;
        socket.bind_auto().map_err(|error| failed(action, &error))?;
        let second = socket.as_fd().try_clone_to_owned().map_err(|error| failed(action, &error))?;
        Ok(Self {
            socket: Arc::new(socket),
            timeout: UnixDatagram::from(second),
            sequence: 0,
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
        })
    }

    /// Subscribes to the events of `group` (a number of `enum rtnetlink_groups`).
    pub(super) fn join(&self, group: u32) -> Result<(), NetError> {
        let joined = self.socket.add_membership(group);
        joined.map_err(|error| failed("subscribe to netlink events", &error))
    }

    /// Returns a handle that ends a wait of this connection from another thread.
    pub(super) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.socket))
    }

    /// Sends one request and returns its responses. `action` describes the request in errors.
    pub(super) fn request(
        &mut self,
        action: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        let (replies, _) = self.exchange(action, message, flags | NLM_F_ACK)?;
        Ok(replies)
    }

    /// Reads a whole table, and again if it changed meanwhile.
    pub(super) fn dump(
        &mut self,
        action: &'static str,
        message: &RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        for _ in 0..DUMP_TRIES {
            let (replies, interrupted) = self.exchange(action, message.clone(), NLM_F_DUMP)?;
            if !interrupted {
                return Ok(replies);
            }
        }
        Err(NetError::Unsteady { action })
    }

    fn exchange(
        &mut self,
        action: &'static str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(Vec<RouteNetlinkMessage>, bool), NetError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        send(&self.socket, message).map_err(|error| failed(action, &error))?;
        self.set_timeout(Some(ANSWER_TIMEOUT))?;

        let mut replies = Vec::new();
        let mut interrupted = false;
        loop {
            let length = self.receive_bytes(0).map_err(|error| failed(action, &error))?;
            for message in messages(self.buffer.get(..length).ok_or(NetError::Truncated)?) {
                let (header, payload) = match message {
                    Ok(message) => message.into_parts(),
                    Err(detail) => {
                        // One unusual interface must not hide all others.
                        tracing::warn!(action, detail, "netlink message not understood, skipped");
                        continue;
                    }
                };
                if header.sequence_number != self.sequence {
                    continue; // A late response to an abandoned request.
                }
                interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
                match payload {
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    NetlinkPayload::Error(error) => {
                        outcome(action, error.raw_code())?;
                        return Ok((replies, interrupted));
                    }
                    NetlinkPayload::Done(done) => {
                        outcome(action, done.code)?;
                        return Ok((replies, interrupted));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Appends the events of one datagram to `events`.
    pub(super) fn receive(
        &mut self,
        wait: Wait,
        events: &mut Vec<RouteNetlinkMessage>,
    ) -> Result<Received, NetError> {
        let flags = if wait == Wait::No { libc::MSG_DONTWAIT } else { 0 };
        self.set_timeout(match wait {
            // The kernel takes zero for "forever".
            Wait::AtMost(time) => Some(time.max(Duration::from_millis(1))),
            Wait::No | Wait::Forever => None,
        })?;
        let length = match self.receive_bytes(flags) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                return Ok(Received::Overrun);
            }
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(Received::Nothing),
                    io::ErrorKind::Interrupted => Ok(Received::Messages),
                    _ => Err(failed("read netlink events", &error)),
                };
            }
        };
        for message in messages(self.buffer.get(..length).ok_or(NetError::Truncated)?) {
            match message.map(NetlinkMessage::into_parts) {
                Ok((_, NetlinkPayload::InnerMessage(event))) => events.push(event),
                Ok(_) => {}
                Err(detail) => tracing::debug!(detail, "netlink event not understood, skipped"),
            }
        }
        Ok(Received::Messages)
    }

    /// Returns the length of the next datagram, which may exceed the buffer.
    fn receive_bytes(&mut self, flags: i32) -> io::Result<usize> {
        loop {
            let mut room = &mut self.buffer[..];
            let (length, sender) = self.socket.recv_from(&mut room, flags | libc::MSG_TRUNC)?;
            if sender.port_number() == 0 {
                return Ok(length); // Only the kernel has port 0.
            }
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), NetError> {
        let set = self.timeout.set_read_timeout(timeout);
        set.map_err(|error| failed("set a netlink timeout", &error))
    }
}

impl Waker {
    /// Requests an acknowledgement of a message without effect. The acknowledgement ends the wait.
    pub(super) fn wake(&self) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_ACK;
        send(&self.0, NetlinkMessage::new(header, NetlinkPayload::Noop))
    }
}

fn send(socket: &Socket, mut message: NetlinkMessage<RouteNetlinkMessage>) -> io::Result<()> {
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    // A socket that is not connected sends to the kernel.
    socket.send(&bytes, 0).map(|_| ())
}

/// Returns the messages of a datagram; `Err` describes a message that could not be parsed.
fn messages(
    mut bytes: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<RouteNetlinkMessage>, String>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk::<4>()?);
        let length = usize::try_from(length).ok()?;
        if length < HEADER_LEN {
            return None;
        }
        let message = bytes.get(..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage::deserialize(message).map_err(|error| error.to_string()))
    })
}

/// Converts the code of an acknowledgement or of the end of a dump: 0 or a negated error number.
fn outcome(action: &'static str, code: i32) -> Result<(), NetError> {
    match code {
        0 => Ok(()),
        code => Err(failed(action, &io::Error::from_raw_os_error(code.saturating_neg()))),
    }
}

fn failed(action: &'static str, error: &io::Error) -> NetError {
    match error.raw_os_error() {
        Some(libc::EPERM) => NetError::Permission { action },
        errno => NetError::System { action, errno: errno.unwrap_or(libc::EIO) },
    }
}
