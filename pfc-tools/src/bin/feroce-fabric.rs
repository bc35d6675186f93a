//! `feroce-fabric`.
fn main() {}
