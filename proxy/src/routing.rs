//! Routing: the route of a request and the policy decision.
//!
//! - **Enters:** host, canonical path, query, method and header fields, and a verified caller.
//! - **Leaves:** a route, or 404 or 405; a decision to forward or a problem code. Also the route
//!   tests of the configuration and the `explain` command, which use the same code.
//! - **May depend on:** [`crate::config`], `certificates` for the services of client
//!   certificates, and [`postern_http::message`].

pub(crate) mod decision;
pub(crate) mod difference;
pub(crate) mod explain;
pub mod listing;
pub(crate) mod outcome;
mod policy;
pub(crate) mod route_tests;
pub(crate) mod router;
pub(crate) mod table;
mod trie;
pub(crate) mod variables;
pub mod warnings;

pub use router::{RouteIndex, RouteMatcher, RouteRequest};
