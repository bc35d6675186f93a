//! The kernel's TCP, measured in the same way and shown in the same tables, for comparison: one stream, one
//! `write` per message; latency with both ends spinning.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::bandwidth::nanos_since;
use super::exchange::{Control, Done};
use super::latency::{Latencies, histogram};
use super::options::Goal;
use super::watch::Watch;
use crate::failure::Failure;

/// How long the other side may take to connect, and a blocked write or read to move.
const PATIENCE: Duration = Duration::from_secs(10);
/// The server reads this much at once, or a message if that is longer.
const READ: usize = 1 << 20;

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |source| Failure::Tcp { action, source }
}

/// Listens for the connection under test, on the address that the conversation uses.
pub fn listen(address: IpAddr) -> Result<(TcpListener, u16), Failure> {
    let listener = TcpListener::bind((address, 0)).map_err(failed("listen"))?;
    let port = listener.local_addr().map_err(failed("listen"))?.port();
    Ok((listener, port))
}

/// Waits for the connection under test.
pub fn accept(listener: &TcpListener) -> Result<TcpStream, Failure> {
    listener.set_nonblocking(true).map_err(failed("listen"))?;
    let started = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => return set_up(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock && started.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed("accept")(error)),
        }
    }
}

/// Connects to the server.
pub fn connect(server: IpAddr, port: u16) -> Result<TcpStream, Failure> {
    let address = SocketAddr::new(server, port);
    set_up(TcpStream::connect_timeout(&address, PATIENCE).map_err(failed("connect"))?)
}

fn set_up(stream: TcpStream) -> Result<TcpStream, Failure> {
    let set_up = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    set_up.map_err(failed("set up the connection"))?;
    Ok(stream)
}

/// Sends messages of `size` bytes until the goal; the time ends when the server has all of them.
pub fn send_all(
    mut stream: TcpStream,
    control: &mut Control,
    size: u32,
    goal: Goal,
) -> Result<Done, Failure> {
    let mut watch = Watch::new(control, true, goal);
    let message = vec![0x5a; size as usize];
    let started = Instant::now();
    let mut count = 0;
    while goal != Goal::Messages(count) && !watch.stop() {
        stream.write_all(&message).map_err(failed("send"))?;
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
pub fn receive_all(mut stream: TcpStream, control: &mut Control, size: u32) -> Result<(), Failure> {
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed("set up the connection"))?;
    let mut buffer = vec![0; READ.max(size as usize)];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("receive")(error)),
        }
    }
    let mut watch = Watch::new(control, false, Goal::Messages(0));
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
) -> Result<(Done, Latencies), Failure> {
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
pub fn pong(mut stream: TcpStream, control: &mut Control, size: u32) -> Result<(), Failure> {
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

fn send_spinning(
    stream: &mut TcpStream,
    message: &[u8],
    watch: &mut Watch<'_>,
) -> Result<(), Failure> {
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
) -> Result<bool, Failure> {
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
