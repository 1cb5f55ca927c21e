//! zlib for Pingora on a machine that has no cmake.
//!
//! `pingora-core` asks `flate2` for its `zlib-ng` backend, whose crate `libz-ng-sys` is built by cmake; a fresh
//! machine has a Rust toolchain and a C compiler only. This crate takes that name (`[patch.crates-io]` in the
//! workspace manifest) and answers with `libz-rs-sys`, the same functions and types written in Rust.
#![no_std]

pub use libz_rs_sys::*;
