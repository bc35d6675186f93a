//! The kernel's TCP over the same link: a ping-pong with both ends spinning, and one stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::engine::PING_LEN;
use super::{BUFFER_LEN, BULK_LEN, ROUND};

/// Time without data after which a stopped stream counts as empty.
const LINGER: Duration = Duration::from_millis(100);

/// Creates both ends of a TCP connection, non-blocking and without Nagle's algorithm. The near end
/// connects after `enter` has run.
pub fn connect(
    listener: &TcpListener,
    address: SocketAddr,
    enter: impl FnOnce(),
) -> [TcpStream; 2] {
    enter();
    let near = TcpStream::connect(address).expect("TCP connects");
    let (far, _) = listener.accept().expect("TCP accepts");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_nonblocking(true).expect("O_NONBLOCK");
    }
    [near, far]
}

/// Exchanges messages of [`PING_LEN`] bytes for [`ROUND`]. Returns the median of half the
/// round-trip time in seconds.
pub fn ping_half_rtt(ends: &mut [TcpStream; 2]) -> f64 {
    let stop = AtomicBool::new(false);
    let [near, far] = ends;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = [0; PING_LEN];
            while read(far, &mut message, &stop) {
                write(far, &message);
            }
        });
        let start = Instant::now();
        let mut message = [0; PING_LEN];
        let mut times = Vec::with_capacity(1 << 20);
        while start.elapsed() < ROUND {
            let sent = Instant::now();
            write(near, &message);
            read(near, &mut message, &stop);
            times.push(sent.elapsed().as_secs_f64() / 2.0);
        }
        stop.store(true, Ordering::Relaxed);
        super::median(&mut times)
    })
}

/// Writes pieces of [`BULK_LEN`] bytes for [`ROUND`]. Returns the received bytes per second. The
/// buffers (source, target) are as large as those of the engine, and neither end sleeps.
pub fn stream_rate(ends: &mut [TcpStream; 2], buffers: &mut [Vec<u8>; 2]) -> f64 {
    let [near, far] = ends;
    let [source, target] = buffers;
    assert!(source.len() == BUFFER_LEN && target.len() == BUFFER_LEN, "buffers as the engine's");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| read_stream(far, target, &stop));
        let start = Instant::now();
        let (mut sent, mut offset) = (0, 0);
        while start.elapsed() < ROUND {
            write(near, &source[offset..offset + BULK_LEN]);
            sent += BULK_LEN as u64;
            offset = (offset + BULK_LEN) % BUFFER_LEN;
        }
        let elapsed = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let received = receiver.join().expect("the receiver ends");
        assert_eq!(received, sent, "a stream loses nothing");
        received as f64 / elapsed
    })
}

/// Reads until `stop` is set and no data has arrived for [`LINGER`]. Returns the number of bytes.
fn read_stream(stream: &mut TcpStream, target: &mut [u8], stop: &AtomicBool) -> u64 {
    let (mut received, mut offset) = (0, 0);
    let mut last = Instant::now();
    loop {
        match stream.read(&mut target[offset..BUFFER_LEN.min(offset + BULK_LEN)]) {
            Ok(count) => {
                received += count as u64;
                offset = (offset + count) % BUFFER_LEN;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) && last.elapsed() > LINGER {
                    return received;
                }
            }
            Err(error) => panic!("TCP: {error}"),
        }
    }
}

fn read(stream: &mut TcpStream, message: &mut [u8], stop: &AtomicBool) -> bool {
    let mut got = 0;
    while got < message.len() {
        match stream.read(&mut message[got..]) {
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return false;
                }
            }
            Err(error) => panic!("TCP: {error}"),
        }
    }
    true
}

fn write(stream: &mut TcpStream, message: &[u8]) {
    let mut put = 0;
    while put < message.len() {
        match stream.write(&message[put..]) {
            Ok(count) => put += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("TCP: {error}"),
        }
    }
}
