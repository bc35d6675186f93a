//! Kernel TCP over the same link: a spinning ping-pong.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::ROUND;
use super::engine::PING_LEN;

/// Two ends of a TCP connection, non-blocking and without Nagle.
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

/// Messages of 64 bytes to and fro for a round; returns half a round trip in seconds (median).
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
