//! Symbols with a version that the linker's script cannot give them, because several versions of
//! the name exist. Each is a jump to its target under a private name, which the linker exports as
//! `name@version`. `scripts/build-libs.sh` makes the linker take them from the archive.

/// Exports names in a version: `TARGET "VERSION": NAME ...;`.
macro_rules! versioned {
    ($( $target:ident $version:literal: $( $name:ident )*; )*) => {
        $( crate::symver::versioned!(@names $target $version $( $name )*); )*
    };
    (@names $target:ident $version:literal $( $name:ident )*) => { $(
        #[cfg(target_arch = "x86_64")]
        crate::symver::jump!("@function", "jmp ", "@PLT", $target $version $name);
        #[cfg(target_arch = "aarch64")]
        crate::symver::jump!("%function", "b ", "", $target $version $name);
    )* };
}

/// Defines a jump to `target` and exports it as `name@version`.
macro_rules! jump {
    ($kind:literal, $jump:literal, $suffix:literal, $target:ident $version:literal $name:ident) => {
        std::arch::global_asm!(concat!(
            ".text\n.globl feroce_",
            $version,
            "_",
            stringify!($name),
            "\n",
            ".type feroce_",
            $version,
            "_",
            stringify!($name),
            ", ",
            $kind,
            "\n",
            "feroce_",
            $version,
            "_",
            stringify!($name),
            ": ",
            $jump,
            stringify!($target),
            $suffix,
            "\n.symver feroce_",
            $version,
            "_",
            stringify!($name),
            ", ",
            stringify!($name),
            "@",
            $version,
            "\n",
        ));
    };
}

pub(crate) use {jump, versioned};
