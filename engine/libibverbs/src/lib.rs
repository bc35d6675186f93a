//! `libibverbs.so.1`, with Feroce's engine behind it: programs written for verbs run on it unchanged.
//!
//! Every function of rdma-core's library is here under its own name; `libibverbs.map` gives each its version, and
//! `scripts/build-libs.sh` links the shared library. What the engine cannot do is refused with the error that
//! rdma-core has for it, and is not advertised.
//!
//! The whole crate is a room for `unsafe`: its callers are C programs, who answer for the pointers they pass as
//! the manual pages say. What every function relies on is written down once, in `object` of `feroce_verbs_abi`. A panic does not
//! unwind into a C program: `extern "C"` functions abort.
#![allow(clippy::missing_safety_doc)] // The manual page of the function of that name.

use feroce_verbs_abi::{self as abi, channel, object, process};

mod address;
mod completion;
mod connections;
mod context;
mod cq;
mod cq_ex;
mod device;
mod device_memory;
mod domain;
mod engine;
mod errno;
mod events;
mod fork;
mod kernel;
mod legacy;
mod lock;
mod log;
mod memory;
mod modify;
mod names;
mod pcap;
mod post;
mod private;
mod qp;
mod query;
mod rate;
mod srq;
mod sysfs;
mod window;
mod wr;
mod xrc;
