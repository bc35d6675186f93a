//! `librspreload.so.1`: loaded by `LD_PRELOAD`, it turns a program's TCP and UDP sockets into
//! rsockets.
//!
//! The program holds a descriptor of `/dev/null` for each socket; `table.rs` maps it to the rsocket
//! or kernel socket behind it. A kernel socket is used where rsockets do not support the type of
//! socket or cannot connect. `/etc/rdma/rsocket/preload_config` selects programs and sockets
//! (`selection.rs`).
//!
//! `unsafe` is allowed in the whole crate: the functions pass the pointers of programs on to the C
//! library unchanged. They have the C library's names, so this crate's own code must not call them
//! by accident: only `selection.rs` reads files with the standard library, and holds no lock then.
#![allow(clippy::missing_safety_doc)] // stated by the manual page of each function

mod calls;
mod descriptors;
mod forking;
mod names;
mod polling;
mod selection;
mod socket_options;
mod table;
