//! HTTP helpers of the development services: HTML pages, query strings, and header parameters.
//!
//! Depends on no other module of the crate.

pub(crate) mod header_parameters;
pub(crate) mod html;
pub(crate) mod landing_page;
pub(crate) mod query;
