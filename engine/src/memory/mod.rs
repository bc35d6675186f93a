//! Memory: access rights ([`Access`]), memory windows ([`WindowBind`]), buffers
//! ([`buffer::SharedBytes`]), the [arena] of the engine's own structures, and checked access to the
//! program's buffers.
//!
//! `unsafe` is allowed here. The safe interfaces that the rest of the engine uses guarantee:
//! * [`Arena`](arena::Arena) hands out zeroed [`Block`](arena::Block)s, each with one owner;
//! * rings (`work_ring`, `shared_ring`, `frame_ring`, `queue`) give each side `&mut` only to slots
//!   that this side owns;
//! * every access to registered memory goes through `MrTable`, which checks key, protection
//!   domain, rights and bounds before a byte is read or written, and keeps the order described in
//!   `access`.

pub(crate) mod access;
#[doc(hidden)] // For the fabric.
pub mod ahead;
pub mod arena;
pub(crate) mod bell;
pub mod buffer;
mod copy;
pub(crate) mod dma_buf;
pub(crate) mod frame_ring;
mod frame_ring_error;
mod key;
mod key_word;
mod on_demand;
#[doc(hidden)] // For libibverbs.
pub mod pages;
pub(crate) mod queue;
mod recent;
mod region;
mod rights;
pub(crate) mod shared_memory;
pub(crate) mod shared_ring;
mod tail;
#[cfg(test)]
mod test_bounds;
mod window;
#[doc(hidden)] // For a benchmark of Feroce.
pub mod work_ring;

pub(crate) use access::Source;
pub use frame_ring::FrameRingError;
pub(crate) use key::KeySpace;
pub use on_demand::is_supported as on_demand_is_supported;
pub(crate) use recent::{Memory, Recent};
#[cfg(test)]
pub(crate) use region::leaked_table;
pub use region::{Access, AccessError};
pub(crate) use region::{MrTable, PdId, Region, Scope, TableFull};
pub use window::{BindError, WindowBind, WindowType};
