//! A RoCEv2 RNIC in user space, as a library. Its objects are those of verbs: device, protection
//! domain, memory region, completion queue, queue pair. It runs on any Ethernet interface of Linux
//! and speaks RoCEv2; its live peer in tests is Linux rxe. It never met a hardware RNIC.
//!
//! # A complete program
//!
//! Two ends exchange the addresses of their queue pairs and buffers over TCP. Then the client
//! writes into the server's buffer, sends a message, and reads the buffer back.
//!
//! ```toml
//! [dependencies]
//! feroce-engine = { version = "0.1", features = ["tokio"] }
//! tokio = { version = "1", features = ["io-util", "macros", "net", "rt"] }
//! ```
//!
#![cfg_attr(feature = "tokio", doc = "```")]
#![cfg_attr(not(feature = "tokio"), doc = "```ignore")]
//! use std::error::Error;
//!
//! use feroce_engine::device::{
//!     Buffer, ConnectOptions, Device, DeviceConfig, Endpoint, QpInit, QueuePair,
//! };
//! use feroce_engine::memory::Access;
//! use feroce_engine::stream::CompletionStream;
//! use feroce_engine::verbs::{
//!     Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
//! };
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::{TcpListener, TcpStream};
//!
//! type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
//!
//! /// Receives of messages take this many bytes, from offset 0 of the buffer on.
//! const MESSAGE: u32 = 64;
//!
//! /// One end of a connection.
//! struct End {
//!     qp: QueuePair,
//!     completions: CompletionStream,
//!     /// Registered memory, which the peer may write and read.
//!     buffer: Buffer,
//!     /// The peer's buffer.
//!     remote: RemoteAddr,
//! }
//!
//! impl End {
//!     async fn connect(device: &Device, tcp: &mut TcpStream) -> Result<Self> {
//!         let pd = device.alloc_pd();
//!         let cq = device.create_cq(64)?;
//!         let mut qp = pd.create_qp(&QpInit::new(&cq))?;
//!         let buffer = pd.alloc_buffer(4096, Access::ALL)?;
//!
//!         // The exchange. `Endpoint` has a serde form, too (feature `serde`).
//!         let (psn, sgid_index) = (device.random_psn()?, device.default_gid_index());
//!         tcp.write_all(&qp.endpoint(psn, sgid_index)?.to_bytes()).await?;
//!         tcp.write_all(&buffer.region().remote_addr(0).to_bytes()).await?;
//!         let (mut peer, mut remote) = ([0; Endpoint::LEN], [0; RemoteAddr::LEN]);
//!         tcp.read_exact(&mut peer).await?;
//!         tcp.read_exact(&mut remote).await?;
//!
//!         let options = ConnectOptions { sgid_index, ..ConnectOptions::default() };
//!         qp.connect(psn, &Endpoint::from_bytes(&peer)?, &options)?;
//!         qp.post_recv(&RecvRequest { wr_id: 1, sges: &[buffer.region().sge(0, MESSAGE)] })?;
//!
//!         // Neither end sends before both are connected and have posted a receive.
//!         tcp.write_all(b"!").await?;
//!         tcp.read_exact(&mut [0]).await?;
//!         let completions = CompletionStream::new(cq)?;
//!         Ok(Self { qp, completions, buffer, remote: RemoteAddr::from_bytes(&remote) })
//!     }
//!
//!     /// Waits for the next completion. A failed request has a status, for example
//!     /// "transport retry counter exceeded" if the peer is gone.
//!     async fn completion(&mut self) -> Result<Completion> {
//!         let completion = self.completions.next().await?;
//!         match completion.is_success() {
//!             true => Ok(completion),
//!             false => Err(completion.status.text().into()),
//!         }
//!     }
//!
//!     /// Executes `op` with `length` bytes from `offset` of the buffer.
//!     async fn execute(&mut self, op: SendOp, offset: u64, length: u32) -> Result<()> {
//!         let sges = [self.buffer.region().sge(offset, length)];
//!         let data = Data::Sges(&sges);
//!         self.qp.post_send(&SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED })?;
//!         self.completion().await.map(drop)
//!     }
//! }
//!
//! async fn client(device: Device, mut tcp: TcpStream) -> Result<()> {
//!     let mut end = End::connect(&device, &mut tcp).await?;
//!     let there = RemoteAddr { addr: end.remote.addr + 1024, ..end.remote };
//!
//!     end.buffer.write(1024, b"written by the client");
//!     end.execute(SendOp::Write(there), 1024, 21).await?;
//!
//!     end.buffer.write(2048, b"look at offset 1024");
//!     end.execute(SendOp::Send, 2048, 19).await?;
//!
//!     end.execute(SendOp::Read(there), 3072, 21).await?;
//!     let mut read = [0; 21];
//!     end.buffer.read(3072, &mut read);
//!     assert_eq!(&read, b"written by the client");
//!     Ok(()) // Closes the TCP connection, for which the server waits.
//! }
//!
//! async fn server(device: Device, mut tcp: TcpStream) -> Result<()> {
//!     let mut end = End::connect(&device, &mut tcp).await?;
//!     let received = end.completion().await?;
//!     let mut message = vec![0; received.byte_len as usize];
//!     end.buffer.read(0, &mut message);
//!     assert_eq!(message, b"look at offset 1024");
//!     let mut written = [0; 21];
//!     end.buffer.read(1024, &mut written); // The WRITE was executed before the SEND.
//!     assert_eq!(&written, b"written by the client");
//!     tcp.read(&mut [0]).await?; // The READ needs this end until the client has closed.
//!     Ok(())
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<()> {
//!     // Two devices in this process, connected by shared memory: needs no interface and no root.
//!     let [near, far] = Device::open_pair(&DeviceConfig::default())?;
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let stream = TcpStream::connect(listener.local_addr()?).await?;
//!     let (accepted, _) = listener.accept().await?;
//!     tokio::try_join!(client(near, stream), server(far, accepted))?;
//!     Ok(())
//! }
//! ```
//!
//! On two hosts, each end opens its interface instead, and one of the two functions runs there; the
//! TCP connection goes over the same network:
//!
#![cfg_attr(feature = "tokio", doc = "```no_run")]
#![cfg_attr(not(feature = "tokio"), doc = "```ignore")]
//! # use feroce_engine::device::{Device, DeviceConfig};
//! # type Result = std::result::Result<(), Box<dyn std::error::Error>>;
//! # async fn client(_: Device, _: tokio::net::TcpStream) -> Result { Ok(()) }
//! # async fn server(_: Device, _: tokio::net::TcpStream) -> Result { Ok(()) }
//! # async fn run(server_address: Option<&str>) -> Result {
//! # use tokio::net::{TcpListener, TcpStream};
//! let device = Device::open("eth0", DeviceConfig::default())?;
//! match server_address {
//!     Some(address) => client(device, TcpStream::connect((address, 18601)).await?).await,
//!     None => {
//!         let (tcp, _) = TcpListener::bind(("0.0.0.0", 18601)).await?.accept().await?;
//!         server(device, tcp).await
//!     }
//! }
//! # }
//! ```
//!
//! [`DeviceConfig::port`](device::DeviceConfig::port) selects the kind of port: by default AF_XDP,
//! which needs the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF in the interface's network
//! namespace; otherwise packet sockets, which need the first two; otherwise UDP sockets, which need
//! none. If it is not AF_XDP,
//! [`DeviceAttributes::port_reason`](device::DeviceAttributes::port_reason) says why, and so does a
//! warning (warnings go to `tracing`). Only one process can open an interface, unless a daemon
//! ([`daemon`]) runs: then any number of processes use the daemon.
//!
//! The path MTU is the largest that this end's interface and the route carry. The exchange does not
//! negotiate it: if the MTUs of the two interfaces differ, set
//! [`ConnectOptions::path_mtu`](device::ConnectOptions::path_mtu) to the same value at both ends;
//! otherwise requests fail. (RDMA CM negotiates it.) `default_gid_index` is the first address of
//! the interface that is not link-local.
//!
//! `engine/examples/tokio.rs` is the program above; with `-i` it runs one end on an interface.
//!
//! # Where to find what
//!
//! | to | see |
//! |---|---|
//! | open a device, choose port, cores and limits | [`device::Device`], [`device::DeviceConfig`] |
//! | read settings as Feroce's programs do | [`device::settings`] |
//! | register memory | [`device::ProtectionDomain`], [`device::Buffer`], [`device::MemoryRegion`] |
//! | connect QPs by exchanging addresses yourself | [`device::Endpoint`], [`device::QueuePair`] |
//! | connect by address and port (RDMA CM) | [`device::ConnectionManager`], [`cm`] |
//! | post requests | [`verbs::SendRequest`], [`verbs::SendOp`], [`verbs::RecvRequest`] |
//! | send datagrams (UD), also to groups | [`device::AddressHandle`], [`device::Destination`] |
//! | wait for completions | [`device::CompletionQueue`], `stream` (feature `tokio`) |
//! | get errors and changes reported | [`verbs::AsyncEvent`], [`counters`] |
//! | inject losses, reorder, capture | [`port::fault`], [`port::pcap`] |
//! | name a type of the packet format | [`wire`] |
//!
//! # Blocking, threads, errors
//!
//! Handles may be sent to other threads. Posting and polling allocate nothing and never block. With
//! the default [`Driver`](device::Driver), a helper thread per core executes requests; a thread
//! that polls executes them itself, with less latency. Making, connecting and dropping an object
//! wait for the end of the core's current round of work, a few microseconds. [`QueuePair::connect`]
//! and the calls that make an address handle also wait until the next hop has answered ARP or
//! neighbour discovery, at most 3 s: call them in `spawn_blocking`, or in `block_in_place` of a
//! runtime with several threads. The program above calls `connect` directly, because the ends of
//! `open_pair` need no ARP.
//!
//! A mistake of the program is an error of the call ([`PostError`], [`DeviceError`]). A request
//! that fails later completes with a [`Status`](verbs::Status), and its queue pair goes to ERR.
//! Unless it fails, a request without [`SIGNALED`](verbs::SendFlags::SIGNALED) has no completion.
//!
//! [`QueuePair::connect`]: device::QueuePair::connect
//! [`PostError`]: device::PostError
//! [`DeviceError`]: device::DeviceError
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | module `stream`: completions and events as async streams |
//! | `serde` | `Serialize` and `Deserialize` of [`device::Endpoint`] and [`verbs::RemoteAddr`] |
//! | `dpdk` | the [DPDK port](port::dpdk), which needs libdpdk |

#![deny(unsafe_code)]

pub mod cm;
pub mod congestion;
mod core;
pub mod counters;
pub mod daemon;
pub mod device;
#[doc(hidden)] // For Feroce's programs and drop-in libraries: variables that can be trusted.
pub mod environment;
#[doc(hidden)] // For Feroce's programs and drop-in libraries: files that they write.
pub mod files;
mod fresh;
mod idle_policy;
#[doc(hidden)] // For Feroce's programs and drop-in libraries: log lines on standard error.
pub mod log;
#[allow(unsafe_code)] // The arena, the rings, access to registered memory.
pub mod memory;
pub mod net;
pub mod pfc;
mod pool;
#[allow(unsafe_code)] // Rings shared with the kernel and with libdpdk.
pub mod port;
pub mod qp;
mod setting_text;
#[cfg(feature = "tokio")]
pub mod stream;
mod sync;
#[allow(unsafe_code)] // System calls.
#[doc(hidden)] // For Feroce's programs: system calls that std lacks.
pub mod sys;
pub mod time;
mod timer_wheel;
pub mod verbs;
mod wake;

/// Types of the packet format that occur in this crate's interface, from `feroce-wire`.
pub mod wire {
    pub use feroce_wire::{
        FlowHeader, Key, MacAddr, MadError, PathMtu, Pkey, PlacementType, Psn, Qkey, Qpn, RnrTimer,
        Selectivity,
    };

    /// Types of communication management.
    pub mod cm {
        pub use feroce_wire::cm::{PortSpace, RejectReason, SidrStatus};
    }
}
