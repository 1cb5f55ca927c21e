//! Everything in one process: the gateway, both upstreams, the identity pool, and the development parts.

mod folder;
mod landing;
pub mod mail;
mod page;
mod parameter;
mod query;
mod sample;
mod social;
mod store;
