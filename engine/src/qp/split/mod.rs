//! Long WRITEs and READs as several messages.

pub(super) mod remote_ranges;
