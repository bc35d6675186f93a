//! `librspreload.so.1`: with it in `LD_PRELOAD`, a program's TCP and UDP sockets are rsockets.
//!
//! The program holds a descriptor of `/dev/null` for each socket; `table.rs` says which rsocket, or which socket of the kernel, is
//! behind it. A socket that rsockets do not have, or that cannot connect by them, is the kernel's. Which programs and sockets
//! are meant can be said in `/etc/rdma/rsocket/preload_config` (`choice.rs`).
//!
//! The whole crate is a room for `unsafe`: it stands between programs and the C library, and passes their pointers on as they are.
//! Its functions have the C library's names, so its own code must not use them on the way to them: the standard library's files
//! are read in `choice.rs` alone, where no lock is held.
#![allow(clippy::missing_safety_doc)] // The manual page of the function of that name.

mod calls;
mod choice;
mod descriptors;
mod forking;
mod names;
mod polling;
mod table;
