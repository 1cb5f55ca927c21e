//! Routing.

pub(crate) mod decision;
pub(crate) mod explain;
mod policy;
pub(crate) mod route_tests;
pub(crate) mod router;
pub(crate) mod table;
mod trie;

pub use router::{RouteIndex, RouteMatcher, RouteRequest};
