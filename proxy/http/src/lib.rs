#![doc = include_str!("../README.md")]

pub mod client_shares;
pub mod compression;
pub mod downstream;
pub mod message;
pub mod upstream;
