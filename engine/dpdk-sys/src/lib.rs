//! What Feroce's dpdk port calls of libdpdk: bindings that `bindgen` makes of DPDK's own headers, and a C
//! shim (`shim.h`) for the functions that are inline there. Empty without the feature `link`.
//!
//! Everything is as unsafe as in C. Only `engine/src/port/dpdk` calls it.
#![cfg(feature = "link")]
// Generated: the names, the casts and the documentation are DPDK's.
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    missing_debug_implementations,
    unsafe_op_in_unsafe_fn,
    unnecessary_transmutes,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::ptr_as_ptr
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
