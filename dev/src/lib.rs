//! Pretended systems for development and tests, in place of those that an operator provides: an
//! identity pool, a mail catcher, a social provider, an actor service and a document service.
//!
//! Never in production: they have no passwords where real systems do, and accept loopback
//! connections only. [`DevelopmentServices`] runs all of them over one data folder.

// All of them together.
mod addresses;
mod services;

// The pretended systems.
mod actors;
mod documents;
pub mod mail;
pub mod pool;
mod social;

// Parts shared by the above.
mod caller;
pub mod data_folder;
pub mod database;
mod random;
mod samples;
mod signing_key;
mod web;

pub use addresses::{Addresses, DevelopmentSockets};
pub use services::{ADMIN_TOKEN, DevelopmentServices, Part, landing_page_url, social_callback_url};
