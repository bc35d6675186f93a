//! `librdmacm.so.1` on top of Feroce's connection manager: applications that use the RDMA CM run on
//! it unchanged.
//!
//! The connection manager lives with the engine in `libibverbs.so.1`. This library calls libibverbs
//! as any program does, and in addition through the functions of `connections` of
//! `feroce_verbs_abi`. It contains the objects that programs hold, the queues of their events, and
//! the work that rdma-core's library does for its callers: moving QPs through their states, and
//! waiting where an identifier has no event channel.
//!
//! | question | file |
//! |---|---|
//! | what is behind an identifier? | `id.rs`; its part in event delivery: `id_state.rs` |
//! | what is an event channel? | `event_channel.rs`; how events reach the program: `event.rs` |
//! | on which device is it, and what is its path? | `device.rs`, `address.rs`, `resolve.rs` |
//! | how are names resolved? | `addrinfo.rs`, `resolve_name.rs` |
//! | how is a QP set up? | `qp.rs`, `attributes.rs` |
//! | how is it connected and disconnected? | `connect.rs` |
//! | how is all of that done in one call? | `endpoint.rs`, `addrinfo.rs` |
//! | how does a QP join a multicast group? | `multicast.rs`, `membership.rs` |
//! | what are rsockets? | `rsocket` |
//!
//! `unsafe` is allowed in the whole crate, as in libibverbs: `object` of `feroce_verbs_abi` states
//! what every function relies on. In `SAFETY` comments, "the program" is the C caller, and a "live"
//! object was returned by its create function and is not destroyed.
#![allow(clippy::missing_safety_doc)] // stated by the manual page of each function

use feroce_verbs_abi::{self as abi, channel, errno, object, process};

// Tests link libibverbs statically instead of loading libibverbs.so.1.
#[cfg(test)]
use feroce_libibverbs as _;

mod address;
mod addrinfo;
mod attributes;
mod connect;
mod device;
mod endpoint;
mod event;
mod event_channel;
mod id;
mod id_state;
mod membership;
mod multicast;
mod names;
mod option;
mod outcome;
mod qp;
mod resolve;
mod resolve_name;
mod rsocket;
mod srq;
mod verbs;
