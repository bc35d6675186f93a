//! Two ends under tokio: exchange over TCP, then WRITE, SEND and READ. The program of the crate's
//! front page, which also runs on an interface.
//!
//! ```text
//! cargo run --features tokio --example tokio               both ends, over shared memory
//! cargo run --features tokio --example tokio -- -i eth0    the server
//! cargo run --features tokio --example tokio -- -i eth0 SERVER
//! ```

use std::error::Error;

use clap::Parser;
use feroce_engine::device::{
    Buffer, ConnectOptions, Device, DeviceConfig, Endpoint, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::stream::CompletionStream;
use feroce_engine::verbs::{
    Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Receives of messages take this many bytes, from offset 0 of the buffer on.
const MESSAGE: u32 = 64;
/// Offset of the bytes that the client writes and reads.
const SHARED: u64 = 1024;
const WRITTEN: &[u8] = b"written by the client";
const SENT: &[u8] = b"look at offset 1024";

#[derive(Parser)]
struct Options {
    /// Run one end only, on this interface [default: both ends over shared memory]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// The other end; without it, wait for a connection
    #[arg(requires = "interface")]
    server: Option<String>,
    /// TCP port to listen on or to connect to
    #[arg(short, long, default_value_t = 18601)]
    port: u16,
}

/// One end of a connection.
struct End {
    qp: QueuePair,
    completions: CompletionStream,
    /// Registered memory, which the peer may write and read.
    buffer: Buffer,
    /// The peer's buffer.
    remote: RemoteAddr,
}

impl End {
    async fn connect(device: &Device, tcp: &mut TcpStream) -> Result<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(64)?;
        let mut qp = pd.create_qp(&QpInit::new(&cq))?;
        let buffer = pd.alloc_buffer(4096, Access::ALL)?;

        let (psn, sgid_index) = (device.random_psn()?, gid_index(device, tcp)?);
        tcp.write_all(&qp.endpoint(psn, sgid_index)?.to_bytes()).await?;
        tcp.write_all(&buffer.region().remote_addr(0).to_bytes()).await?;
        let (mut peer, mut remote) = ([0; Endpoint::LEN], [0; RemoteAddr::LEN]);
        tcp.read_exact(&mut peer).await?;
        tcp.read_exact(&mut remote).await?;

        let options = ConnectOptions { sgid_index, ..ConnectOptions::default() };
        qp.connect(psn, &Endpoint::from_bytes(&peer)?, &options)?;
        qp.post_recv(&RecvRequest { wr_id: 1, sges: &[buffer.region().sge(0, MESSAGE)] })?;

        // Neither end sends before both are connected and have posted a receive.
        tcp.write_all(b"!").await?;
        tcp.read_exact(&mut [0]).await?;
        let completions = CompletionStream::new(cq)?;
        Ok(Self { qp, completions, buffer, remote: RemoteAddr::from_bytes(&remote) })
    }

    async fn completion(&mut self) -> Result<Completion> {
        let completion = self.completions.next().await?;
        if completion.is_success() { Ok(completion) } else { Err(completion.status.text().into()) }
    }

    /// Executes `op` with `length` bytes from `offset` of the buffer.
    async fn execute(&mut self, op: SendOp, offset: u64, length: usize) -> Result {
        let sges = [self.buffer.region().sge(offset, u32::try_from(length)?)];
        let data = Data::Sges(&sges);
        self.qp.post_send(&SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED })?;
        self.completion().await.map(drop)
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

/// The GID of the address that the TCP connection uses; the default GID if that is another one.
fn gid_index(device: &Device, tcp: &TcpStream) -> Result<u32> {
    let own = Gid::from(tcp.local_addr()?.ip());
    let found = device.gids().into_iter().find(|(_, entry)| entry.gid == own);
    Ok(found.map_or_else(|| device.default_gid_index(), |(index, _)| index))
}

async fn client(device: Device, mut tcp: TcpStream) -> Result {
    let mut end = End::connect(&device, &mut tcp).await?;
    let there = RemoteAddr { addr: end.remote.addr + SHARED, ..end.remote };

    end.buffer.write(1024, WRITTEN);
    end.execute(SendOp::Write(there), 1024, WRITTEN.len()).await?;
    end.buffer.write(2048, SENT);
    end.execute(SendOp::Send, 2048, SENT.len()).await?;
    end.execute(SendOp::Read(there), 3072, WRITTEN.len()).await?;
    let read = end.bytes(3072, WRITTEN.len());
    println!("client read: {}", String::from_utf8_lossy(&read));
    if read == WRITTEN { Ok(()) } else { Err("the client read other bytes".into()) }
}

async fn server(device: Device, mut tcp: TcpStream) -> Result {
    let mut end = End::connect(&device, &mut tcp).await?;
    let received = end.completion().await?;
    let message = end.bytes(0, received.byte_len as usize);
    println!("server received: {}", String::from_utf8_lossy(&message));
    let written = end.bytes(1024, WRITTEN.len());
    // The READ needs this end until the client has closed the TCP connection.
    let _ = tcp.read(&mut [0]).await;
    let is_right = message == SENT && written == WRITTEN;
    if is_right { Ok(()) } else { Err("the server received other bytes".into()) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let Options { interface, server: host, port } = Options::parse();
    let Some(interface) = interface else {
        let [near, far] = Device::open_pair(&DeviceConfig::default())?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let stream = TcpStream::connect(listener.local_addr()?).await?;
        let (accepted, _) = listener.accept().await?;
        return tokio::try_join!(client(near, stream), server(far, accepted)).map(drop);
    };
    let device = Device::open(&interface, DeviceConfig::default())?;
    match host {
        Some(host) => client(device, TcpStream::connect((host, port)).await?).await,
        None => {
            println!("waiting on TCP port {port}");
            let (accepted, _) = TcpListener::bind(("0.0.0.0", port)).await?.accept().await?;
            server(device, accepted).await
        }
    }
}
