//! `librdmacm.so.1`, over Feroce's connection manager: programs that connect by addresses run on it unchanged.
//!
//! The connection manager lives with the engine in `libibverbs.so.1`, which this library calls as any program does, and through the
//! functions of `connections` of `feroce_verbs_abi`. Here are the objects that programs hold, the queues of their events, and what
//! rdma-core's library does on their behalf: it moves QPs from state to state, and waits where an identifier has no event channel.
//!
//! | question | file |
//! |---|---|
//! | what is behind an identifier? | `id.rs`; behind a channel and its events: `event.rs` |
//! | which device is it on? | `device.rs`; where does it lead? `address.rs` |
//! | how is a QP set up? | `qp.rs`, `attributes.rs` |
//! | how is it connected, and ended? | `connect.rs` |
//! | what are rsockets? | `rsocket` |
//! | and in one call? | `endpoint.rs`, `addrinfo.rs` |
//! | who is in a group? | `multicast.rs` |
//!
//! The whole crate is a room for `unsafe`, as libibverbs is: what every function relies on is written down in `object` of
//! `feroce_verbs_abi`.
#![allow(clippy::missing_safety_doc)] // The manual page of the function of that name.

use feroce_verbs_abi::{self as abi, channel, errno, object, process};

// In a test, nobody loads libibverbs.so.1.
#[cfg(test)]
use feroce_libibverbs as _;

mod address;
mod addrinfo;
mod attributes;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod multicast;
mod names;
mod option;
mod outcome;
mod qp;
mod rsocket;
mod srq;
mod verbs;
