//! The daemon of an interface (`feroce up`): it owns the port, and many programs use it.
//!
//! ```text
//!  program A   device, QPs, memory ── rings ──┐
//!  program B   device, QPs, memory ── rings ──┼─ switch ─ port ─ link
//!  program C   device, QPs, memory ── rings ──┘   │
//!       └──────────── control socket ───────── server
//! ```
//!
//! The protocol stays in the programs: their devices open the port `daemon`
//! ([`crate::port::daemon`]), which is a pair of rings. The daemon moves frames between the rings
//! and its port, checks the frames, and gives out QP numbers, paths and ports of RDMA CM.
//!
//! | question | file |
//! |---|---|
//! | what happens in one turn? | `switch.rs` |
//! | which program gets a frame? | `tables.rs`, by the slices of QP numbers: `slices.rs` |
//! | which program gets a message of communication management? | `cm_router.rs` |
//! | what if it comes before its program listens? | `early_requests.rs` |
//! | may this program send this frame? | `admission.rs`; in a super-frame: `super_frame.rs` |
//! | what is sent to the peers of a program that has ended? | `cm_router.rs`, `former.rs` |
//! | what state does an attached program have? | `client.rs` |
//! | how do programs attach? | `listener.rs`, `control.rs`; paths: `paths.rs` |
//! | what may programs request? | `port/daemon/protocol.rs` |
//! | what do the threads share? | `shared.rs`; opening and ending: `server.rs` |
//! | what are the limits of a user? | `port/daemon/limits.rs`; rates: `quota.rs` |
//! | how are the addresses of the host followed? | `host.rs` |
//!
//! # Trust
//! The daemon trusts nothing that a program writes: it copies frames before it reads them, checks
//! every frame against what the program may send, and never waits for a program. A program that
//! does not take its frames loses them. Programs see only frames to their own QPs.
//!
//! # Threads
//! One thread runs the turns of the switch, one serves the control socket, a few resolve paths. The
//! switch is behind a lock, like the token of a core: a turn holds the lock, and a thread that
//! changes clients takes it between two turns.

mod admission;
mod client;
mod cm_router;
mod config;
mod control;
mod early_requests;
mod former;
mod frames;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod host;
mod listener;
mod paths;
mod quota;
mod running;
mod server;
mod shared;
mod slices;
mod super_frame;
mod switch;
mod tables;
#[cfg(test)]
mod tests;

pub use crate::port::daemon::limits::Limits;
pub use crate::port::daemon::protocol::{DaemonStat, ProgramFrames, ProgramStat, UserStat};
pub use admission::Dscps;
pub(crate) use client::ClientId;
pub use config::DaemonConfig;
pub use running::{Running, is_served, of, running};
pub use server::{Daemon, DaemonOpenError};
