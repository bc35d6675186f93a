//! `librspreload.so.1`: loaded by `LD_PRELOAD`, it turns a program's TCP and UDP sockets into
//! rsockets.
//!
//! The program holds a descriptor of `/dev/null` for each socket; `table.rs` maps it to the rsocket
//! or kernel socket behind it. A kernel socket is used where rsockets do not support the type of
//! socket or cannot connect. `/etc/rdma/rsocket/preload_config` selects programs and sockets
//! (`selection.rs`).
//!
//! `unsafe` is allowed in the whole crate: it stands between programs and the C library and passes
//! their pointers on unchanged. Its functions have the C library's names, so its own code must not
//! call them by accident: only `selection.rs` reads files with the standard library, and no lock is
//! held there.
#![allow(clippy::missing_safety_doc)] // stated by the manual page of each function

mod calls;
mod descriptors;
mod forking;
mod names;
mod polling;
mod selection;
mod socket_options;
mod table;
