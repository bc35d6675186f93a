//! The part of libdpdk that Feroce's dpdk port calls: bindings that `bindgen` generates from DPDK's
//! headers, and a C shim (`shim.h`) for inline functions. Empty without the feature `link`.
//!
//! All functions are unsafe, as in C. Only `engine/src/port/dpdk` calls them.
#![cfg(feature = "link")]
// Generated code: names, casts and documentation are those of DPDK.
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
