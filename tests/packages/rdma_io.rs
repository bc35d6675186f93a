//! Two processes transfer data with the streams of the crate rdma-io, over each of its three
//! transports: the client writes, the server returns the bytes, and the client compares.
//!   rdma_io [SERVER-ADDRESS]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::read_ring_transport::ReadRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::TransportBuilder;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes that each transport carries in each direction.
const BYTES: usize = 3 << 20;
/// Bytes per call, fewer than a message of any transport.
const CHUNK: usize = 1000;
const PORT: u16 = 18601;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let server = std::env::args().nth(1).map(|address| address.parse::<IpAddr>()).transpose()?;
    run("SEND", 0, SendRecvConfig::stream(), server).await?;
    run("ring with credits", 1, CreditRingConfig::datagram(), server).await?;
    run("ring with READ", 2, ReadRingConfig::datagram(), server).await?;
    println!("all data correct");
    Ok(())
}

/// Runs one transport at its port.
async fn run<B: TransportBuilder>(
    name: &str,
    number: u16,
    builder: B,
    server: Option<IpAddr>,
) -> Result {
    let port = PORT + number;
    match server {
        None => serve(builder, SocketAddr::from(([0, 0, 0, 0], port))).await?,
        Some(address) => call(builder, SocketAddr::new(address, port)).await?,
    }
    println!("{name}: {BYTES} bytes in each direction");
    Ok(())
}

/// Returns what the client sends.
async fn serve<B: TransportBuilder>(builder: B, address: SocketAddr) -> Result {
    let listener = AsyncCmListener::bind(&address)?;
    let mut stream = AsyncRdmaStream::new(builder.accept(&listener).await?);
    let mut buffer = [0; CHUNK];
    let mut left = BYTES;
    while left > 0 {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Err(format!("the client has ended, {left} bytes are missing").into());
        }
        stream.write_all(&buffer[..length]).await?;
        left -= length;
    }
    // The client closes when it has everything.
    while stream.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
    Ok(())
}

/// Sends bytes and compares what returns.
async fn call<B: TransportBuilder>(builder: B, address: SocketAddr) -> Result {
    let mut stream = AsyncRdmaStream::new(connect(&builder, address).await?);
    let mut buffer = [0; CHUNK];
    for from in (0..BYTES).step_by(CHUNK) {
        let length = CHUNK.min(BYTES - from);
        let sent: Vec<u8> = (from..from + length).map(byte).collect();
        stream.write_all(&sent).await?;
        let mut received = 0;
        while received < length {
            let more = stream.read(&mut buffer[received..length]).await?;
            if more == 0 {
                return Err(format!("the server has ended at byte {}", from + received).into());
            }
            received += more;
        }
        if buffer[..length] != sent {
            return Err(format!("other bytes returned, near byte {from}").into());
        }
    }
    stream.shutdown().await?;
    Ok(())
}

/// Connects; the server may not listen yet.
async fn connect<B: TransportBuilder>(builder: &B, address: SocketAddr) -> Result<B::Transport> {
    let mut tries = 0;
    loop {
        match builder.connect(&address).await {
            Ok(transport) => return Ok(transport),
            Err(error) if tries == 20 => return Err(error.into()),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// The byte at an offset: a sequence whose period is longer than any message.
fn byte(offset: usize) -> u8 {
    (offset.wrapping_mul(2_654_435_761) >> 16) as u8
}
