//! Everything in one process: the gateway, both upstreams, the identity pool, and the development
//! parts (sample services, social provider, mail catcher).
//!
//! It is the same code as the separate processes with the same configuration files (`conf/`), over
//! SQLite and memory. [`start`] brings it up in a data folder; [`Running`] is what runs. With
//! configuration files of one's own ([`start_configured`]) the three services run without any
//! development part.

mod codes;
mod configured;
mod development;
mod environment;
mod folder;
mod greeting;
mod landing;
mod layer;
pub mod mail;
mod page;
mod parameter;
mod query;
mod running;
mod sample;
mod services;
mod social;
mod sockets;
mod start;
mod store;
mod templates;
mod token;

pub use configured::start_configured;
pub use greeting::greeting;
pub use running::Running;
pub use sockets::Addresses;
pub use start::{Options, start};
pub use token::{service_token, user_token};
