//! `libibverbs.so.1` on top of Feroce's engine: verbs applications run on it unchanged.
//!
//! The library exports every function of rdma-core's libibverbs under its own name.
//! `libibverbs.map` assigns the symbol versions, and `scripts/build-libs.sh` links the shared
//! library. A feature that the engine lacks is not advertised, and using it fails with rdma-core's
//! error number.
//!
//! `unsafe` is allowed in the whole crate: the callers are C programs, which must pass valid
//! pointers as the manual pages require. `object` of `feroce_verbs_abi` states once what every
//! function relies on. In `SAFETY` comments, "the program" is the C caller; an "open context" was
//! returned by `ibv_open_device` and is not closed; a "live" object was returned by its create
//! function and is not destroyed. A panic does not unwind into a C program: `extern "C"` functions
//! abort.
//!
//! Imports point downwards: `convert`, `lock`, `errno`, `fork`, `log` and `device` import no object
//! module; `engine` and `context` are below all objects; `ops`, on top, fills the function tables
//! of a new context.
#![allow(clippy::missing_safety_doc)] // stated by the manual page of each function

use feroce_verbs_abi::{self as abi, channel, object, process};

mod address;
mod batch;
mod buffer;
mod completion;
mod connections;
mod context;
mod convert;
mod counter;
mod cq;
mod cq_ex;
mod create_qp;
mod device;
mod device_memory;
mod dma_handle;
mod domain;
mod ece;
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
mod ops;
mod pcap;
mod post;
mod private;
mod qp;
mod qp_state;
mod query;
mod rate;
mod srq;
mod symver;
mod sysfs;
mod window;
mod wr;
mod xrc;
mod xrc_domain;
