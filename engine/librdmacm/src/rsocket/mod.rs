//! rsockets: rdma-core's socket calls over RDMA, for stream and datagram sockets.
//!
//! # Protocol
//!
//! rdma-core's rsocket protocol, version 1; `protocol.rs` has its bytes. A stream is an RC
//! connection. Each side has a receive buffer of two halves and posts receives without memory. The
//! sender copies data into its send buffer and writes it into the peer's receive buffer with RDMA
//! WRITE; the immediate data says how many bytes were written. The receiver announces a half that
//! the program has read by writing an entry into the sender's target table, and limits the messages
//! in flight by credits. `riomap` lets the peer write directly into registered buffers of the
//! program. A datagram socket is a UDP socket with a UD QP per local address; peers learn each
//! other's QP numbers over UDP.
//!
//! # What this module needs
//!
//! - From the rest of librdmacm: identifiers with an event channel, binding, listening, resolving,
//!   connecting and QP creation, all through `identifier.rs` and `queues.rs`.
//! - From libibverbs: the functions declared in `crate::verbs` and `verbs.rs`.
//! - From the host: the files in `/etc/rdma/rsocket` (`configuration.rs`).
//!
//! # Threads
//!
//! Program threads execute the calls. They make progress for their own socket: they poll the CQ,
//! first busily for the configured polling time, then asleep on the completion channel (`wait.rs`).
//! One service thread per process (`service.rs`) handles what happens outside calls: connection
//! manager events, datagrams that arrive over UDP, and keep-alive messages. It starts with the
//! first socket that needs it; a forked child starts its own. `dispatch.rs` has its handlers.
//!
//! # Locks
//!
//! - `StreamSocket::sending` and `receiving`: one call sends and one call receives at a time. Taken
//!   first, and held while the call waits.
//! - `Inner` of a socket: its state. Never held while a thread sleeps. Waiters are woken through
//!   their eventfds after each change.
//! - The mutex in `service.rs`: taken for a moment, possibly with `Inner` held.
//! - The table of sockets: read or written for a moment; no other lock is taken while it is held.
//!
//! | question | file |
//! |---|---|
//! | what does this byte mean? | `protocol.rs` |
//! | when may which message be sent? | `stream.rs`, the protocol state, without I/O |
//! | who posts it, and from which memory? | `link.rs`, `queues.rs`, `memory.rs` |
//! | how is a connection set up? | `connecting.rs`, with `attempt.rs` and `identifier.rs` |
//! | what does a call do? | `calls.rs` |
//! | when does a stream call wait? | `socket.rs`, `transfer.rs`, `mapping.rs` |
//! | how do datagrams work? | `datagram.rs`, `port.rs`, `udp.rs` |
//! | how does a program learn that a socket is ready? | `poll.rs`, `epoll.rs`, `wait.rs` |
//! | which options are there? | `options.rs`, `socket_options.rs` |
//! | which defaults may the administrator set? | `configuration.rs` |

mod address;
mod any_socket;
mod attempt;
mod calls;
mod configuration;
mod connecting;
mod datagram;
mod dispatch;
mod epoll;
mod gather;
mod identifier;
mod link;
mod mapped_buffers;
mod mapping;
mod memory;
mod options;
mod poll;
mod port;
mod protocol;
mod queues;
mod service;
mod socket;
mod socket_options;
mod stream;
mod table;
mod transfer;
mod udp;
mod verbs;
mod wait;
