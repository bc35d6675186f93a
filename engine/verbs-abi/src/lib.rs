//! The C structures that programs and libraries share, under their names in C.
//!
//! The layout is an ABI: fields are at the offsets of rdma-core's `verbs.h`, and structures that
//! later releases extended have their newest size (releases 44 to 64 only appended). Only what the
//! libraries use is declared. A test compiles a C program against the system's headers and compares
//! every offset.
// names as in C; the manual pages document them
#![allow(non_camel_case_types, non_snake_case, missing_docs)]
#![allow(missing_debug_implementations)] // most are pointers that C programs own

mod attributes;
pub mod channel;
mod cma;
pub mod connections;
mod context;
pub mod errno;
mod later;
pub mod object;
mod objects;
#[cfg(test)]
mod probe;
pub mod process;
pub mod select;
mod work;

pub use attributes::*;
pub use cma::*;
pub use context::*;
pub use later::*;
pub use objects::*;
pub use work::*;

/// Layout of a structure, for the test.
#[derive(Debug)]
pub struct Layout {
    /// Name in C.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Name, offset and size of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Declares C structures and records their layout in `LAYOUTS`.
macro_rules! abi_structs {
    ($(
        $(#[$meta:meta])*
        struct $name:ident [$size:literal] { $( $field:ident: $type:ty, )* }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $( pub $field: $type, )* }

            const _: () = assert!(size_of::<$name>() == $size);
        )*

        #[cfg(test)]
        pub(crate) const LAYOUTS: &[super::Layout] = &[ $( super::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[ $( (
                stringify!($field),
                std::mem::offset_of!($name, $field),
                {
                    const fn size<T, F>(_: Option<fn(T) -> F>) -> usize { size_of::<F>() }
                    size::<$name, $type>(None)
                },
            ), )* ],
        }, )* ];
    };
}
pub(crate) use abi_structs;
