//! The structures that programs and library share, by the names that programs know them by.
//!
//! They are an interface: fields are where rdma-core's `verbs.h` has them, and structures that later releases
//! have made longer have their newest size (44 to 64 only appended). Only what the library touches is spelled
//! out. A test compiles a C program against the system's headers and compares every offset.
#![allow(non_camel_case_types, non_snake_case, missing_docs)] // Names as in C, which the manual pages explain.
#![allow(missing_debug_implementations)] // Most are pointers to what C programs own.

mod attributes;
pub mod channel;
mod cma;
pub mod connections;
mod context;
pub mod errno;
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
pub use objects::*;
pub use work::*;

/// Where a structure's fields are, for the test.
#[derive(Debug)]
pub struct Layout {
    /// Its name in C.
    pub name: &'static str,
    /// Its size here.
    pub size: usize,
    /// Its fields: name, offset, size.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Declares structures of the interface and notes their layout in `LAYOUTS`.
macro_rules! abi_structs {
    ($( $(#[$meta:meta])* struct $name:ident [$size:literal] { $( $field:ident: $type:ty, )* } )*) => {
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
