//! HTTP helpers of the development services: HTML pages.
//!
//! Depends on no other module of the crate.

pub(crate) mod api_page;
pub(crate) mod landing_page;
pub(crate) mod page;
