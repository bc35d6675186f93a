//! `libsysview.so.1`: loaded by `LD_PRELOAD`, it shows a program the files of Feroce's devices in
//! `/sys/class/infiniband`, `/dev/infiniband` and at their other paths. `feroce run` writes these
//! files into a private folder if it cannot mount them at these paths.
//!
//! The library replaces the functions of the C library that take a path. A path below one of the
//! shown paths is replaced by the path of the file in the private folder, before the C library
//! gets it; links in the folder lead on to the host's own files. Every other path reaches the C
//! library unchanged: without allocation or lock, and in a signal handler as well. Results that are
//! paths (`realpath`, `getcwd`) name the shown path again.
//!
//! Not reached: system calls that a program makes itself, calls within the C library (`glob`,
//! `ftw`, `fts_open`), and relative paths that begin in a folder above the shown paths.

#[cfg_attr(test, allow(dead_code))] // Only the library exports the functions.
mod calls;
mod next;
mod view;
