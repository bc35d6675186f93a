//! The public interface of `feroce-engine`, compared with the list in `tests/public-api.txt`: every
//! change of the interface changes the list, so that reviewers see it and the version follows.
//!
//! The list is read from the sources (`public_api/modules.rs` finds modules, items and names;
//! `public_api/listing.rs` writes them), so that the test needs no compiler and no particular
//! release of rustdoc. Items of macros are listed as the macro's arguments.

#[path = "public_api/listing.rs"]
mod listing;
#[path = "public_api/modules.rs"]
mod modules;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use listing::Listing;
use modules::Crate;

const LIST: &str = "public-api.txt";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn engine() -> Listing {
    Listing::of(&Crate::read(&folder().join("../engine/src/lib.rs")))
}

#[test]
fn the_interface_of_the_engine_matches_the_list() {
    let listed = fs::read_to_string(folder().join(LIST)).unwrap_or_default();
    let found = engine().text;
    if listed == found {
        return;
    }
    let target = folder().join("../target");
    fs::create_dir_all(&target).expect("the folder `target`");
    fs::write(target.join(LIST), &found).expect("the folder `target`");
    let [old, new] = [&listed, &found].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone: Vec<_> = old.difference(&new).map(|line| format!("- {line}")).collect();
    let added: Vec<_> = new.difference(&old).map(|line| format!("+ {line}")).collect();
    panic!(
        "the public interface of feroce-engine has changed:\n{}\n{}\nif this is intended: cp \
         target/{LIST} tests/{LIST}, and a line in CHANGELOG.md. Removed and changed \
         items need a new minor version before 1.0, a new major version afterwards",
        gone.join("\n"),
        added.join("\n"),
    );
}

/// Users can name every type in a public signature without another crate: the type is public here
/// or re-exported.
#[test]
fn types_in_signatures_can_be_named() {
    let hidden = engine().unnameable;
    assert!(hidden.is_empty(), "not public, but in public signatures:\n{}", hidden.join("\n"));
}

/// A small crate.
const SOURCE: &str = "
    pub mod shown {
        pub use super::inner::{Thing as Renamed, helper};
        pub use wire::Key;
        #[doc(hidden)]
        pub use super::inner::Secret;
    }
    mod inner {
        use std::fmt;
        use wire::Psn;
        /// Words.
        #[derive(Debug, Clone)]
        pub struct Thing<T> {
            /// A field.
            pub field: u8,
            other: T,
        }
        impl<T> Thing<T> {
            /// Words.
            pub fn new(
                other: T,
            ) -> Self { Self { field: 0, other } }
            pub(crate) fn unseen(&self) {}
            #[doc(hidden)]
            pub fn hidden(&self) {}
            pub fn secret(&self, psn: Psn, key: wire::Key) -> Secret { Secret }
        }
        impl<T> fmt::Display for Thing<T> {}
        pub struct Secret;
        #[cfg(feature = \"extra\")]
        pub async fn helper() {}
        #[cfg(test)]
        pub fn test() {}
    }
    pub enum Choice { One, Two { many: u8 }, Three(u8) }
    pub trait Act { const N: u8; type Out; fn act(&self) {} }
    struct Private;
    table! { /// Words.
        Row = 1; }
";

/// The list of [`SOURCE`].
const LISTED: &str = "\
enum Choice
    One
    Three(u8)
    Two { many: u8 }
fn shown::helper
    async fn helper()
    cfg(feature = \"extra\")
macro table!
    Row = 1;
mod shown
struct shown::Renamed<T>
    ..
    derive(Debug, Clone)
    field: u8
    fn new(other: T) -> Self
    fn secret(&self, psn: Psn, key: wire::Key) -> Secret
    impl fmt::Display
trait Act
    const N: u8
    fn act(&self)
    type Out
use shown::Key = wire::Key
";

/// The list has the items that a user of the crate can name.
#[test]
fn a_small_crate_is_listed() {
    let listing = Listing::of(&Crate::parse(SOURCE));
    assert_eq!(listing.text, LISTED);
    assert_eq!(
        listing.unnameable,
        ["shown::Renamed: crate::inner::Secret", "shown::Renamed: wire::Psn"]
    );
}
