//! The kernel's TCP, measured like RoCE and shown in the same tables, for comparison: one stream,
//! one `write` per message (more if it blocks); latency with both ends spinning.
//!
//! Input: the address of the control connection, a message size, a goal, and [`Control`] to stay in
//! touch with the peer during a round. Output: message counts, the time, and round-trip latencies.
//!
//! This module opens one TCP connection per round and closes it. It touches no device, no
//! registered memory and no interface settings, and prints nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::error::PerfError;
use super::exchange::Control;
use super::plan::Goal;
use super::results::{Done, Latencies, histogram, nanos_since};
use super::watch::Watch;
use crate::signal;

/// Time limit for connecting, and for a blocked write to make progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of one blocking write or read, so that the watch runs often enough to send `Alive` in
/// time.
const BLOCKED: Duration = Duration::from_millis(10);
/// Bytes per read of the server, or one message if that is larger.
const READ_BYTES: usize = 1 << 20;

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> PerfError {
    move |source| PerfError::Tcp { action, source }
}

/// Listens for the connection under test, on the local address of the control connection.
pub fn listen(address: IpAddr) -> Result<(TcpListener, u16), PerfError> {
    let listener = TcpListener::bind((address, 0)).map_err(failed("listen"))?;
    let port = listener.local_addr().map_err(failed("listen"))?.port();
    Ok((listener, port))
}

/// Waits for the connection under test.
pub fn accept(listener: &TcpListener) -> Result<TcpStream, PerfError> {
    listener.set_nonblocking(true).map_err(failed("listen"))?;
    let started = Instant::now();
    while !signal::interrupted() {
        match listener.accept() {
            Ok((stream, _)) => return set_up(stream),
            Err(error)
                if error.kind() == ErrorKind::WouldBlock
                    && started.elapsed() < PROGRESS_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed("accept")(error)),
        }
    }
    Err(PerfError::Interrupted)
}

/// Connects to the server.
pub fn connect(server: IpAddr, port: u16) -> Result<TcpStream, PerfError> {
    let address = SocketAddr::new(server, port);
    set_up(TcpStream::connect_timeout(&address, PROGRESS_TIMEOUT).map_err(failed("connect"))?)
}

fn set_up(stream: TcpStream) -> Result<TcpStream, PerfError> {
    let set_up = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| stream.set_read_timeout(Some(BLOCKED)))
        .and_then(|()| stream.set_write_timeout(Some(BLOCKED)));
    set_up.map_err(failed("set up the connection"))?;
    Ok(stream)
}

/// Sends messages of `size` bytes until the goal is reached. The time ends when the server has
/// received all of them.
pub fn send_all(
    mut stream: TcpStream,
    control: &mut Control,
    size: u32,
    goal: Goal,
) -> Result<Done, PerfError> {
    let mut watch = Watch::new(control, true, goal);
    let message = vec![0x5a; size as usize];
    let started = Instant::now();
    let mut count = 0;
    while goal != Goal::Messages(count) && !watch.stop() {
        send_blocking(&mut stream, &message, count, &mut watch)?;
        count += 1;
        watch.turn(count)?;
    }
    stream.shutdown(std::net::Shutdown::Write).map_err(failed("end the stream"))?;
    let there = watch.wait_for_peer()?;
    if there.messages != [count] {
        let detail =
            std::io::Error::other(format!("{:?} of {count} messages arrived", there.messages));
        return Err(failed("deliver")(detail));
    }
    let own = Done { messages: vec![count], nanos: nanos_since(started) };
    watch.send_done(&own)?;
    Ok(own)
}

/// Receives until the stream ends, and reports the number of messages.
pub fn receive_all(
    mut stream: TcpStream,
    control: &mut Control,
    size: u32,
) -> Result<(), PerfError> {
    let mut watch = Watch::new(control, false, Goal::Messages(0));
    let mut buffer = vec![0; READ_BYTES.max(size as usize)];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(failed("receive")(error)),
        }
        watch.turn(bytes / u64::from(size))?;
    }
    watch.send_done(&Done { messages: vec![bytes / u64::from(size)], nanos: 0 })?;
    watch.wait_for_peer()?;
    Ok(())
}

/// Sends a message and spins until it comes back, until the goal is reached.
pub fn ping(
    mut stream: TcpStream,
    control: &mut Control,
    size: u32,
    goal: Goal,
) -> Result<(Done, Latencies), PerfError> {
    let mut watch = Watch::new(control, true, goal);
    let mut latencies = histogram();
    let mut message = vec![0x5a; size as usize];
    stream.set_nonblocking(true).map_err(failed("set up the connection"))?;
    let started = Instant::now();
    let mut count = 0;
    while goal != Goal::Messages(count) && !watch.stop() {
        let sent = Instant::now();
        send_spinning(&mut stream, &message, &mut watch)?;
        if !receive_spinning(&mut stream, &mut message, &mut watch)? {
            return Err(failed("receive")(ErrorKind::UnexpectedEof.into()));
        }
        latencies.saturating_record(nanos_since(sent));
        count += 1;
        watch.turn(count)?;
    }
    let own = Done { messages: vec![count], nanos: nanos_since(started) };
    stream.shutdown(std::net::Shutdown::Write).map_err(failed("end the stream"))?;
    watch.send_done(&own)?;
    watch.wait_for_peer()?;
    Ok((own, latencies))
}

/// Sends each message back, until the stream ends.
pub fn pong(mut stream: TcpStream, control: &mut Control, size: u32) -> Result<(), PerfError> {
    let mut watch = Watch::new(control, false, Goal::Messages(0));
    let mut message = vec![0; size as usize];
    stream.set_nonblocking(true).map_err(failed("set up the connection"))?;
    let mut count = 0;
    while receive_spinning(&mut stream, &mut message, &mut watch)? {
        send_spinning(&mut stream, &message, &mut watch)?;
        count += 1;
    }
    watch.send_done(&Done { messages: vec![count], nanos: 0 })?;
    watch.wait_for_peer()?;
    Ok(())
}

/// Sends one message. `count`: messages sent before.
fn send_blocking(
    stream: &mut TcpStream,
    message: &[u8],
    count: u64,
    watch: &mut Watch<'_>,
) -> Result<(), PerfError> {
    let mut rest = message;
    let mut blocked: Option<Instant> = None;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(written) => {
                rest = &rest[written..];
                blocked = None;
            }
            Err(error) if would_block(&error) => {
                if blocked.get_or_insert_with(Instant::now).elapsed() >= PROGRESS_TIMEOUT {
                    return Err(failed("send")(ErrorKind::TimedOut.into()));
                }
            }
            Err(error) => return Err(failed("send")(error)),
        }
        if !rest.is_empty() {
            watch.turn(count)?;
        }
    }
    Ok(())
}

fn send_spinning(
    stream: &mut TcpStream,
    message: &[u8],
    watch: &mut Watch<'_>,
) -> Result<(), PerfError> {
    let mut rest = message;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if would_block(&error) => watch.turn(0)?,
            Err(error) => return Err(failed("send")(error)),
        }
    }
    Ok(())
}

/// Receives one message. Returns false if the stream ended before its first byte.
fn receive_spinning(
    stream: &mut TcpStream,
    message: &mut [u8],
    watch: &mut Watch<'_>,
) -> Result<bool, PerfError> {
    let mut have = 0;
    while have < message.len() {
        match stream.read(&mut message[have..]) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(failed("receive")(ErrorKind::UnexpectedEof.into())),
            Ok(count) => have += count,
            Err(error) if would_block(&error) => watch.turn(0)?,
            Err(error) => return Err(failed("receive")(error)),
        }
    }
    Ok(true)
}

fn would_block(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread;

    use super::super::message::Message;
    use super::*;

    /// Longer than the interval of `Alive` messages.
    const PAUSE: Duration = Duration::from_millis(1500);

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    }

    /// The peer: its end of the control connection and of the connection under test.
    struct Peer {
        control: BufReader<TcpStream>,
        stream: TcpStream,
    }

    impl Peer {
        fn line(&mut self) -> String {
            let mut line = String::new();
            self.control.read_line(&mut line).unwrap();
            line
        }

        /// Reads lines up to `done`, and answers with `done`.
        fn end(&mut self, done: &Done) -> Vec<String> {
            let mut lines = vec![self.line()];
            while !lines.last().unwrap().contains("done") {
                assert_ne!(lines.last().unwrap(), "", "the end came too soon: {lines:?}");
                lines.push(self.line());
            }
            self.report_done(done);
            lines
        }

        fn report_done(&mut self, done: &Done) {
            let mut line = serde_json::to_string(&Message::Done(done.clone())).unwrap();
            line.push('\n');
            self.control.get_mut().write_all(line.as_bytes()).unwrap();
        }
    }

    /// Runs `run` in a thread. Returns the peer's side.
    fn against<T: Send + 'static>(
        run: impl FnOnce(TcpStream, &mut Control) -> Result<T, PerfError> + Send + 'static,
    ) -> (Peer, thread::JoinHandle<Result<T, PerfError>>) {
        let [ours, theirs] = pair();
        let [own, other] = pair();
        let thread = thread::spawn(move || {
            let peer = own.peer_addr().unwrap();
            run(set_up(ours)?, &mut Control::handshake(own, peer)?)
        });
        let mut other = Peer { control: BufReader::new(other), stream: theirs };
        let greeting = other.line(); // Both sides use the same version.
        other.control.get_mut().write_all(greeting.as_bytes()).unwrap();
        (other, thread)
    }

    #[test]
    fn a_waiting_receiver_sends_alive() {
        let (mut other, thread) = against(|stream, control| receive_all(stream, control, 100));
        other.stream.write_all(&[0x5a; 250]).unwrap();
        thread::sleep(PAUSE);
        other.stream.write_all(&[0x5a; 50]).unwrap();
        other.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let lines = other.end(&Done { messages: vec![3], nanos: 1 });
        assert!(lines[0].contains("alive"), "{lines:?}");
        assert!(lines.last().unwrap().contains("[3]"), "{lines:?}");
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_receiver_notices_that_the_peer_is_gone() {
        let (other, thread) = against(|stream, control| receive_all(stream, control, 100));
        let Peer { control, stream } = other;
        drop(control);
        let failure = thread.join().unwrap().unwrap_err();
        assert!(matches!(failure, PerfError::Exchange(_)), "{failure}");
        drop(stream);
    }

    #[test]
    fn a_blocked_sender_sends_alive() {
        const SIZE: u32 = 64 << 20;
        let (mut other, thread) =
            against(|stream, control| send_all(stream, control, SIZE, Goal::Messages(1)));
        thread::sleep(PAUSE);
        let got = std::io::copy(&mut other.stream, &mut std::io::sink()).unwrap();
        assert_eq!(got, u64::from(SIZE));
        other.report_done(&Done { messages: vec![1], nanos: 0 });
        let done = thread.join().unwrap().unwrap();
        assert_eq!(done.messages, [1]);
        let line = other.line();
        assert!(line.contains("alive"), "{line}");
    }
}
