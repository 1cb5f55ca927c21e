//! HTTP helpers of the development services: HTML pages.
//!
//! Depends on no other module of the crate.

pub(crate) mod api_page;
pub(crate) mod landing_page;
pub(crate) mod page;

use std::time::Duration;

use postern_service::http::{BodyBudgets, Limits};

/// Limits of the development services' HTTP servers.
pub(crate) const SERVER_LIMITS: Limits = Limits {
    bodies: BodyBudgets::anonymous(16 << 20),
    body: 256 << 10,
    connections: 1024,
    head_timeout: Duration::from_secs(10),
    linger: Duration::ZERO,
    drain: Duration::from_millis(500),
};
