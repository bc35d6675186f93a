//! An assertion that types lack a marker trait: the code does not compile if one of them has it.

/// `assert_lacks!(Send: A, B)`. For a type with the marker trait, both implementations below apply,
/// and the compiler cannot choose between them.
macro_rules! assert_lacks {
    ($bound:ident: $($type:ty),+) => {$({
        trait AmbiguousIf<Which> {
            fn is_unique() {}
        }
        impl<T: ?Sized> AmbiguousIf<()> for T {}
        impl<T: ?Sized + $bound> AmbiguousIf<u8> for T {}
        <$type as AmbiguousIf<_>>::is_unique();
    })+};
}
pub(crate) use assert_lacks;
