//! The kernel's TCP, measured in the same way and shown in the same tables, for comparison: one stream, one
//! `write` per message, or more where it blocks; latency with both ends spinning.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::error::PerfError;
use super::exchange::Control;
use super::plan::Goal;
use super::results::{Done, Latencies, histogram, nanos_since};
use super::watch::Watch;
use crate::signal;

/// How long the other side may take to connect, and a blocked write to move.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a blocked write or read lasts: the watch looks around every few of them, and must say in time
/// that we are alive.
const LOOK: Duration = Duration::from_millis(10);
/// The server reads this much at once, or a message if that is longer.
const READ: usize = 1 << 20;

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> PerfError {
    move |source| PerfError::Tcp { action, source }
}

/// Listens for the connection under test, on the address that the conversation uses.
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
            Err(error) if error.kind() == ErrorKind::WouldBlock && started.elapsed() < PATIENCE => {
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
    set_up(TcpStream::connect_timeout(&address, PATIENCE).map_err(failed("connect"))?)
}

fn set_up(stream: TcpStream) -> Result<TcpStream, PerfError> {
    let set_up = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| stream.set_read_timeout(Some(LOOK)))
        .and_then(|()| stream.set_write_timeout(Some(LOOK)));
    set_up.map_err(failed("set up the connection"))?;
    Ok(stream)
}

/// Sends messages of `size` bytes until the goal; the time ends when the server has all of them.
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
        let told =
            std::io::Error::other(format!("{:?} of {count} messages arrived", there.messages));
        return Err(failed("deliver")(told));
    }
    let own = Done { messages: vec![count], nanos: nanos_since(started) };
    watch.tell_done(&own)?;
    Ok(own)
}

/// Receives all that comes, and tells how many messages that was.
pub fn receive_all(mut stream: TcpStream, control: &mut Control, size: u32) -> Result<(), PerfError> {
    let mut watch = Watch::new(control, false, Goal::Messages(0));
    let mut buffer = vec![0; READ.max(size as usize)];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) if is_nothing_yet(&error) => {}
            Err(error) => return Err(failed("receive")(error)),
        }
        watch.turn(bytes / u64::from(size))?;
    }
    watch.tell_done(&Done { messages: vec![bytes / u64::from(size)], nanos: 0 })?;
    watch.wait_for_peer()?;
    Ok(())
}

/// Sends a message and spins until one comes back, until the goal.
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
    watch.tell_done(&own)?;
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
    watch.tell_done(&Done { messages: vec![count], nanos: 0 })?;
    watch.wait_for_peer()?;
    Ok(())
}

/// Sends one message, of which `count` were sent before.
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
            Err(error) if is_nothing_yet(&error) => {
                if blocked.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
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
            Err(error) if is_nothing_yet(&error) => watch.turn(0)?,
            Err(error) => return Err(failed("send")(error)),
        }
    }
    Ok(())
}

/// False if the stream ended before the message.
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
            Err(error) if is_nothing_yet(&error) => watch.turn(0)?,
            Err(error) => return Err(failed("receive")(error)),
        }
    }
    Ok(true)
}

fn is_nothing_yet(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread;

    use super::super::message::Message;
    use super::*;

    /// Longer than the time between two signs of life.
    const WHILE: Duration = Duration::from_millis(1500);

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    }

    /// The other side of a conversation, and of the connection under test.
    struct Other {
        control: BufReader<TcpStream>,
        stream: TcpStream,
    }

    impl Other {
        fn line(&mut self) -> String {
            let mut line = String::new();
            self.control.read_line(&mut line).unwrap();
            line
        }

        /// Reads lines up to that which tells what was done, and answers with `done`.
        fn end(&mut self, done: &Done) -> Vec<String> {
            let mut lines = vec![self.line()];
            while !lines.last().unwrap().contains("done") {
                assert_ne!(lines.last().unwrap(), "", "the end came too soon: {lines:?}");
                lines.push(self.line());
            }
            self.tell(done);
            lines
        }

        fn tell(&mut self, done: &Done) {
            let mut line = serde_json::to_string(&Message::Done(done.clone())).unwrap();
            line.push('\n');
            self.control.get_mut().write_all(line.as_bytes()).unwrap();
        }
    }

    /// Runs `run` in a thread against what is returned.
    fn against<T: Send + 'static>(
        run: impl FnOnce(TcpStream, &mut Control) -> Result<T, PerfError> + Send + 'static,
    ) -> (Other, thread::JoinHandle<Result<T, PerfError>>) {
        let [ours, theirs] = pair();
        let [own, other] = pair();
        let thread = thread::spawn(move || {
            let peer = own.peer_addr().unwrap();
            run(set_up(ours)?, &mut Control::greet(own, peer)?)
        });
        let mut other = Other { control: BufReader::new(other), stream: theirs };
        let greeting = other.line(); // We speak the same version.
        other.control.get_mut().write_all(greeting.as_bytes()).unwrap();
        (other, thread)
    }

    #[test]
    fn a_receiver_that_waits_says_that_it_is_alive() {
        let (mut other, thread) = against(|stream, control| receive_all(stream, control, 100));
        other.stream.write_all(&[0x5a; 250]).unwrap();
        thread::sleep(WHILE);
        other.stream.write_all(&[0x5a; 50]).unwrap();
        other.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let lines = other.end(&Done { messages: vec![3], nanos: 1 });
        assert!(lines[0].contains("alive"), "{lines:?}");
        assert!(lines.last().unwrap().contains("[3]"), "{lines:?}");
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_receiver_notices_that_the_other_side_is_gone() {
        let (other, thread) = against(|stream, control| receive_all(stream, control, 100));
        let Other { control, stream } = other;
        drop(control);
        let failure = thread.join().unwrap().unwrap_err();
        assert!(matches!(failure, PerfError::Exchange(_)), "{failure}");
        drop(stream);
    }

    #[test]
    fn a_sender_that_is_blocked_says_that_it_is_alive() {
        const SIZE: u32 = 64 << 20;
        let (mut other, thread) =
            against(|stream, control| send_all(stream, control, SIZE, Goal::Messages(1)));
        thread::sleep(WHILE);
        let got = std::io::copy(&mut other.stream, &mut std::io::sink()).unwrap();
        assert_eq!(got, u64::from(SIZE));
        other.tell(&Done { messages: vec![1], nanos: 0 });
        let done = thread.join().unwrap().unwrap();
        assert_eq!(done.messages, [1]);
        let line = other.line();
        assert!(line.contains("alive"), "{line}");
    }
}
