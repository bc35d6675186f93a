//! Memory: the arena that the engine lives in, and the one checked door to the program's buffers.
//!
//! This is an `unsafe` room. What it promises to the rest of the engine, which has none:
//! * [`Arena`](arena::Arena) hands out zeroed, exclusively owned [`Block`](arena::Block)s;
//! * rings ([`work_ring`], [`shared_ring`], [`frame_ring`]) give each side `&mut` only to slots it owns;
//! * every access to registered memory passes [`MrTable`], which checks key, protection domain,
//!   rights and bounds before a byte moves, and keeps the ordering promises listed in [`access`].

pub mod access;
pub mod arena;
pub mod buffer;
pub mod dma_buf;
pub mod frame_ring;
mod key;
mod on_demand;
mod region;
pub mod shared_ring;
mod window;
pub mod work_ring;

pub use access::AccessError;
pub use key::KeySpace;
pub use on_demand::is_supported as on_demand_is_supported;
#[cfg(test)]
pub(crate) use region::leaked_table;
pub use region::{Access, MrTable, PdId, Region, Scope, TableFull};
pub use window::{BindError, WindowBind, WindowType};
